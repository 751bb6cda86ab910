"""How time grows: of a routed layer with its sizes, of a network's answer with the batch."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from statistics import median

import numpy as np

from torchcaps.bench.baselines import VARIANTS, select
from torchcaps.bench.layer import Sizes, passes_of
from torchcaps.bench.timing import Clock, Log, Row, alternate, silent
from torchcaps.bench.workload import Workload, answer_of
from torchcaps.errors import ArgumentError

BATCHES = (1, 2, 4, 8, 16, 32)
QUICK = Sizes(batch=32, children=288)


def fitted_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """p of seconds = c * size^p, by least squares between the logarithms.

    Raises ArgumentError for fewer than two different sizes, or numbers that are not above zero.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(*sizes, *seconds) <= 0:
        raise ArgumentError(
            "sizes",
            f"expected two or more, different and above zero, got {list(sizes)}, {list(seconds)}",
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
    log: Log = silent,
) -> list[Row]:
    """Time a forward and backward pass of a routed layer against each of its sizes.

    Args:
        impls: names of variants.
        middle: sizes of the layer; one at a time is varied around them.
        repeats: number of runs of each.
        clock: see `timing.use_clock`.
        count: number of different sizes.
        log: called with a line about the work that begins.

    Returns:
        A row for each name of a size and variant: milliseconds, and the exponent of their growth.

    Raises:
        UnknownNameError: for a variant that does not exist.
    """
    rows = []
    impls = select("impl", impls, VARIANTS)
    for axis in [field.name for field in fields(Sizes)]:
        sizes = series(getattr(middle, axis), count)
        work = {}
        for size, impl in product(sizes, impls):
            layer_sizes = replace(middle, **{axis: size})
            work[f"{axis} {size}, {impl}"] = passes_of(impl, layer_sizes)[1]
        times = alternate(work, repeats, clock=clock, log=log)
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


def benchmark_latency(
    workload: Workload,
    precisions: Sequence[str],
    runs: int,
    clock: Clock,
    batches: Sequence[int] = BATCHES,
    log: Log = silent,
) -> list[Row]:
    """Time forward passes of a network by turns.

    Args:
        workload: the network.
        precisions: "fp32", "bf16" or both.
        runs: number of passes of each.
        clock: see `timing.use_clock`.
        batches: numbers of images at once.
        log: called with a line about the work that begins.

    Returns:
        A row for each precision and batch size: median and 95th percentile, in milliseconds.
    """
    model = workload.build().eval()
    cases = {}
    work = {}
    for precision, batch in product(precisions, batches):
        images, _ = replace(workload, batch=batch).data(model)
        name = f"batch {batch}, {precision}"
        cases[name] = (batch, precision)
        work[name] = answer_of(model, images, precision)
    rows = []
    for name, seconds in alternate(work, runs, warm_up=3, clock=clock, log=log).items():
        batch, precision = cases[name]
        median_ms = 1e3 * float(np.percentile(seconds, 50))
        row = {
            "batch": batch,
            "precision": precision,
            "median ms": median_ms,
            "95 % ms": 1e3 * float(np.percentile(seconds, 95)),
            "ms / image": median_ms / batch,
            "runs": runs,
        }
        rows.append(row)
    return rows
