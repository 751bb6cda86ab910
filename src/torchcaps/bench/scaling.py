"""How time grows: of a routed layer with each of its sizes, of a trained network's answer with the images at once."""

from collections.abc import Sequence
from dataclasses import fields, replace
from statistics import median

import numpy as np

from torchcaps.bench.baselines import VARIANTS, select
from torchcaps.bench.layer import Sizes, passes_of
from torchcaps.bench.timing import Clock, Log, Row, alternate, silent
from torchcaps.bench.workload import Workload, answer_of
from torchcaps.errors import ArgumentError

AXES = tuple(field.name for field in fields(Sizes))
BATCHES = (1, 2, 4, 8, 16, 32)
QUICK = Sizes(batch=32, children=288)


def fitted_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """p of seconds = c * size^p, by least squares between the logarithms. Raises ValueError for fewer than two
    different sizes, or values that are not above zero."""
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(*sizes, *seconds) <= 0:
        raise ArgumentError(
            "sizes",
            f"expected two or more, different and above zero, got {list(sizes)}, {list(seconds)}",
        )
    return float(np.polyfit(np.log(sizes), np.log(seconds), deg=1)[0])


def series(middle: int, count: int = 5) -> list[int]:
    """Sizes that double from one to the next, around this one; at least 1, and none twice."""
    return sorted({max(1, round(middle * 2.0 ** (n - count // 2))) for n in range(count)})


def benchmark_scaling(
    impls: Sequence[str],
    middle: Sizes,
    repeats: int,
    clock: Clock,
    count: int = 5,
    log: Log = silent,
) -> list[Row]:
    """A row for each size's name and implementation: milliseconds of a forward and backward pass, and the exponent.
    Raises UnknownNameError for an implementation that does not exist."""
    rows = []
    impls = select("impl", impls, VARIANTS)
    for axis in AXES:
        sizes = series(getattr(middle, axis), count)
        cases = {
            f"{axis} {n}, {impl}": (impl, replace(middle, **{axis: n}))
            for n in sizes
            for impl in impls
        }
        timings = alternate(
            {name: passes_of(*case)[1] for name, case in cases.items()},
            repeats,
            clock=clock,
            log=log,
        )
        for impl in impls:
            seconds = [median(timings[f"{axis} {size}, {impl}"]) for size in sizes]
            row: Row = {
                "against": axis,
                "impl": impl,
                "exponent": fitted_exponent(sizes, seconds),
                "sizes": sizes,
            }
            rows.append(row | {"ms": [1e3 * s for s in seconds]})
    return rows


def benchmark_latency(
    workload: Workload,
    precisions: Sequence[str],
    runs: int,
    clock: Clock,
    batches: Sequence[int] = BATCHES,
    log: Log = silent,
) -> list[Row]:
    """A row for each batch size and precision: median and 95th percentile of a forward pass, in milliseconds."""
    model = workload.build().eval()
    cases = {
        f"batch {batch}, {precision}": (batch, precision)
        for precision in precisions
        for batch in batches
    }
    work = {
        name: answer_of(model, replace(workload, batch=batch).data(model)[0], precision)
        for name, (batch, precision) in cases.items()
    }
    rows = []
    for name, seconds in alternate(work, runs, warm_up=3, clock=clock, log=log).items():
        batch, precision = cases[name]
        middle, late = (1e3 * float(np.percentile(seconds, percent)) for percent in (50, 95))
        rows.append(
            {
                "batch": batch,
                "precision": precision,
                "median ms": middle,
                "95 % ms": late,
                "ms / image": middle / batch,
                "runs": runs,
            }
        )
    return rows
