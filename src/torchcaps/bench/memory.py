"""Peak memory of a training step: what `estimate_memory` says beside what a fresh process takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from torchcaps.bench.estimate import estimate_memory
from torchcaps.bench.measure import MIB, Row, Tell, in_fresh_process, peak_of, silent
from torchcaps.bench.subject import Subject, training_step

STEPS = 3  # the second is the first with the optimiser's state


def peak(subject: dict[str, Any], precision: str, training: bool = True) -> dict[str, float]:
    """Resident memory in MiB before the model exists, and at most until it has made a few steps (or forward passes)."""
    chosen = Subject(**subject)

    def run() -> None:
        model = chosen.build()
        images, labels = chosen.data(model)
        if not training:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                for _ in range(STEPS):
                    model(images)
            return
        step = training_step(model, images, labels, precision)
        for _ in range(STEPS):
            step()

    return peak_of(run)


def compare_memory(
    subject: Subject, batches: Sequence[int], precisions: Sequence[str], tell: Tell = silent
) -> list[Row]:
    """A row for each batch size and precision: predicted and measured peak over the process without a model."""
    rows = []
    for precision in precisions:
        for batch in batches:
            tell(f"{precision}, batch {batch}")
            chosen = replace(subject, batch=batch)
            estimate = estimate_memory(chosen.build(), batch, precision)
            found = in_fresh_process("training", subject=asdict(chosen), precision=precision)
            measured = found["peak_mib"] - found["before_mib"]
            parts = {f"{name} MiB": value / MIB for name, value in estimate.to_dict().items() if name != "total"}
            row: Row = {"batch": batch, "precision": precision}
            row |= {"predicted MiB": estimate.total / MIB, "measured MiB": measured}
            row["predicted / measured"] = estimate.total / MIB / measured
            rows.append(row | parts)
    return rows
