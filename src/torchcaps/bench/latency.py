"""How long an answer takes: a trained network on one image, and on a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.bench.timing import Clock, Log, Row, alternate, silent
from torchcaps.bench.workload import Workload

BATCHES = (1, 2, 4, 8, 16, 32)


def benchmark_latency(
    workload: Workload, precisions: Sequence[str], runs: int, clock: Clock, batches: Sequence[int] = BATCHES,
    log: Log = silent,
) -> list[Row]:  # fmt: skip
    """A row for each batch size and precision: median and 95th percentile of a forward pass, in milliseconds."""
    model = workload.build().eval()
    cases = [(batch, precision) for precision in precisions for batch in batches]
    work = {
        f"batch {batch}, {precision}": _answer(model, replace(workload, batch=batch).data(model)[0], precision)
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


def _answer(model: nn.Module, images: Tensor, precision: str) -> Callable[[], Tensor]:
    def answer() -> Tensor:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            lengths: Tensor = model(images)
        return lengths

    return answer
