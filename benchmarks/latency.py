"""Answers of a network: the time of a forward pass for 1 to 32 images at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.plots import add_plot, latency_curves, save
from benchmarks.report import Row, finish, make_parser, parse, run
from benchmarks.timing import Clock, add_timing, alternate, clock_of
from benchmarks.workload import Workload, add_workload, autocast, workload_of

BATCHES = (1, 2, 4, 8, 16, 32)


def benchmark_latency(
    workload: Workload,
    precisions: Sequence[str],
    runs: int,
    clock: Clock,
    batches: Sequence[int] = BATCHES,
) -> list[Row]:
    """Time forward passes of a network by turns.

    Args:
        workload: the network.
        precisions: "fp32", "bf16" or both.
        runs: number of passes of each.
        clock: see `clock_of`.
        batches: numbers of images at once.

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
    for name, seconds in alternate(work, runs, warm_up=3, clock=clock).items():
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


def answer_of(model: nn.Module, images: Tensor, precision: str) -> Callable[[], object]:
    """A function that makes one forward pass without gradients; see `training_step`."""

    def answer() -> object:
        with torch.inference_mode(), autocast(images.device, precision):
            return model(images)

    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "latency")
    add_workload(parser)
    add_timing(parser, repeats=100)
    add_plot(parser)
    options = parse(parser, arguments)
    rows = benchmark_latency(
        workload_of(options), options.precision, options.repeats, clock_of(options)
    )
    save(options.plot, latency_curves, rows)
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)
