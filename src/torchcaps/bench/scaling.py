"""How time grows: of a routed layer with each of its sizes, of a trained network's answer with the images at once."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace

import numpy as np

from torchcaps.bench.baselines import check_known
from torchcaps.bench.layer import Sizes, passes_of
from torchcaps.bench.timing import Clock, Log, Row, alternate, quartiles, silent
from torchcaps.bench.workload import Workload, answer_of

AXES = tuple(field.name for field in fields(Sizes))
BATCHES = (1, 2, 4, 8, 16, 32)
QUICK = Sizes(batch=32, children=288)


def fitted_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """p of seconds = c * size^p, by least squares between the logarithms. Raises ValueError for fewer than two
    different sizes, or values that are not above zero."""
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(*sizes, *seconds) <= 0:
        raise ValueError(f"sizes: expected two or more, different and above zero, got {list(sizes)}, {list(seconds)}")
    return float(np.polyfit(np.log(sizes), np.log(seconds), deg=1)[0])


def series(middle: int, count: int = 5) -> list[int]:
    """Sizes that double from one to the next, around this one; at least 1, and none twice."""
    return sorted({max(1, round(middle * 2.0 ** (n - count // 2))) for n in range(count)})


def benchmark_scaling(
    impls: Sequence[str], middle: Sizes, repeats: int, clock: Clock, count: int = 5, log: Log = silent
) -> list[Row]:
    """A row for each size's name and implementation: milliseconds of a forward and backward pass, and the exponent.
    Raises UnknownNameError for an implementation that does not exist."""
    check_known("impl", impls)
    rows = []
    for axis in AXES:
        sizes = series(asdict(middle)[axis], count)
        work = {
            f"{axis} {size}, {impl}": passes_of(impl, replace(middle, **{axis: size}))[1]
            for size in sizes
            for impl in impls
        }
        found = alternate(work, repeats, clock=clock, log=log)
        for impl in impls:
            seconds = [quartiles(found[f"{axis} {size}, {impl}"])["median"] for size in sizes]
            exponent = fitted_exponent(sizes, seconds)
            rows.append({
                "against": axis, "impl": impl, "exponent": exponent, "sizes": sizes, "ms": [1e3 * s for s in seconds],
            })  # fmt: skip
    return rows


def benchmark_latency(
    workload: Workload, precisions: Sequence[str], runs: int, clock: Clock, batches: Sequence[int] = BATCHES,
    log: Log = silent,
) -> list[Row]:  # fmt: skip
    """A row for each batch size and precision: median and 95th percentile of a forward pass, in milliseconds."""
    model = workload.build().eval()
    cases = [(batch, precision) for precision in precisions for batch in batches]
    work = {
        f"batch {batch}, {precision}": answer_of(model, replace(workload, batch=batch).data(model)[0], precision)
        for batch, precision in cases
    }
    seconds = alternate(work, runs, warm_up=3, clock=clock, log=log)
    rows = []
    for batch, precision in cases:
        found = 1e3 * np.array(seconds[f"batch {batch}, {precision}"])
        row: Row = {"batch": batch, "precision": precision, "median ms": float(np.median(found))}
        row["95 % ms"] = float(np.percentile(found, 95))
        rows.append(row | {"ms / image": row["median ms"] / batch, "runs": runs})
    return rows
