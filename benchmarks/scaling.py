"""How the time of a routed layer grows with each of its sizes."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from statistics import median

import numpy as np

from benchmarks.baselines import VARIANTS, verify
from benchmarks.layer import Sizes, add_sizes, passes_of, sizes_of
from benchmarks.plots import add_plot, save, scaling_curves
from benchmarks.report import Row, finish, make_parser, parse, positive, run
from benchmarks.timing import Clock, add_timing, alternate, clock_of


def fitted_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """p of seconds = c * size^p, by least squares between the logarithms.

    Raises ValueError for fewer than two different sizes, or numbers that are not above zero.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(*sizes, *seconds) <= 0:
        raise ValueError(
            f"sizes: expected two or more, different and above zero, got {sizes}, {seconds}"
        )
    return float(np.polyfit(np.log(sizes), np.log(seconds), deg=1)[0])


def series(middle: int, count: int = 5) -> list[int]:
    """Sizes around this one that double from one to the next; at least 1, and each once."""
    return sorted({max(1, round(middle * 2.0 ** (n - count // 2))) for n in range(count)})


def benchmark_scaling(
    impls: Sequence[str],
    middle: Sizes,
    repeats: int,
    clock: Clock,
    count: int = 5,
) -> list[Row]:
    """Time a forward and backward pass of a routed layer against each of its sizes.

    Args:
        impls: names of variants.
        middle: sizes of the layer; one at a time is varied around them.
        repeats: number of runs of each.
        clock: see `clock_of`.
        count: number of different sizes.

    Returns:
        A row for each name of a size and variant: milliseconds, and the exponent of their growth.
    """
    rows = []
    for axis in [field.name for field in fields(Sizes)]:
        sizes = series(getattr(middle, axis), count)
        work = {}
        for size, impl in product(sizes, impls):
            layer_sizes = replace(middle, **{axis: size})
            work[f"{axis} {size}, {impl}"] = passes_of(impl, layer_sizes)[1]
        times = alternate(work, repeats, clock=clock)
        for impl in impls:
            seconds = [median(times[f"{axis} {size}, {impl}"]) for size in sizes]
            row: Row = {
                "against": axis,
                "impl": impl,
                "exponent": fitted_exponent(sizes, seconds),
                "sizes": sizes,
                "ms": [1e3 * time for time in seconds],
            }
            rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "scaling")
    add_sizes(parser)
    add_timing(parser)
    add_plot(parser)
    parser.add_argument("--impl", nargs="+", choices=VARIANTS, default=["auto"])
    parser.add_argument("--count", type=positive, default=5, help="different values of each size")
    options = parse(parser, arguments)
    middle = sizes_of(options)
    errors = verify(options.impl, middle.layer())
    rows = benchmark_scaling(
        options.impl, middle, options.repeats, clock_of(options), options.count
    )
    save(options.plot, scaling_curves, rows)
    return finish(options, {"rows": rows, "errors": errors, "middle": asdict(middle)})


if __name__ == "__main__":
    run(main)
