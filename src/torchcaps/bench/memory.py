"""Peak memory of training steps: predicted, and measured in a fresh process each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from torchcaps.bench.timing import MIB, Log, Row, in_fresh_process, peak_of, silent
from torchcaps.bench.workload import Workload, training_step
from torchcaps.training.memory import estimate_memory

NUM_STEPS = 3  # the second is the first with the optimizer's state


def peak(workload: dict[str, Any], precision: str) -> dict[str, float]:
    """Resident memory in MiB before the model exists, and at most until it has made a few steps."""
    subject = Workload(**workload)

    def run() -> None:
        model = subject.build()
        step = training_step(model, *subject.data(model), precision)
        for _ in range(NUM_STEPS):
            step()

    return peak_of(run)


def benchmark_memory(
    workload: Workload,
    batches: Sequence[int],
    precisions: Sequence[str],
    log: Log = silent,
) -> list[Row]:
    """Predict the peak memory of training steps, and measure it in fresh processes.

    Args:
        workload: the model.
        batches: numbers of images.
        precisions: "fp32", "bf16" or both.
        log: called with a line about the work that begins.

    Returns:
        A row for each precision and batch size: both peaks over the process without a model, and
        the parts of the prediction.
    """
    rows = []
    for precision, batch in product(precisions, batches):
        log(f"{precision}, batch {batch}")
        subject = replace(workload, batch=batch)
        estimate = estimate_memory(subject.build(), batch, precision)
        marks = in_fresh_process("memory", workload=asdict(subject), precision=precision)
        predicted = estimate.total / MIB
        peak_mib = marks["peak_mib"] - marks["before_mib"]
        row: Row = {
            "batch": batch,
            "precision": precision,
            "predicted MiB": predicted,
            "measured MiB": peak_mib,
            "predicted / measured": predicted / peak_mib,
        }
        for name, num_bytes in asdict(estimate).items():
            row[f"{name} MiB"] = num_bytes / MIB
        rows.append(row)
    return rows
