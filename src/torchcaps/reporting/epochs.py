"""What the metrics of a run's epochs say."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from torchcaps.settings import TrainConfig
from torchcaps.training import RunFolder

Rows = Sequence[Mapping[str, Any]]


def epochs_of(run: RunFolder) -> list[dict[str, Any]]:
    """The metrics of the epochs done so far; RunError if they are damaged."""
    return [row for row in run.rows() if row["kind"] == "epoch"]


def score_of(epochs: Rows) -> str:
    """The name of the figure that the epoch was chosen by; early versions, which do not write it, had the accuracy."""
    return str(epochs[-1].get("score", "accuracy")) if epochs else "accuracy"


def is_finished(config: TrainConfig, epochs: Rows) -> bool:
    """Whether all epochs are done, or the score that ends the training was reached."""
    if not epochs:
        return False
    best = max(row.get(f"val_{score_of(epochs)}", -inf) for row in epochs)
    return epochs[-1]["epoch"] >= config.run.epochs or (
        config.run.stop_at is not None and best >= config.run.stop_at
    )


def best_epoch(epochs: Rows) -> int | None:
    """Whose model is kept, counted from 1: the best by validation, or without one the last; None before the first."""
    best = [row for row in epochs if row.get("best")] or epochs
    return int(best[-1]["epoch"]) if best else None


def training_seconds(epochs: Rows, batch_size: int | None) -> float | None:
    """Time in training steps, from the images per second of each epoch; None where that was not recorded. Only runs of
    early versions, which do not count their images, need the batch size."""
    total, before = 0.0, 0
    for row in epochs:
        count, speed = (
            row.get("images", (row["step"] - before) * (batch_size or 0)),
            row.get("images_per_second"),
        )
        if not (count and speed):
            return None
        total, before = total + count / speed, row["step"]
    return total if epochs else None
