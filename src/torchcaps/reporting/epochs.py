"""What the metrics of a run's epochs say."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from torchcaps.settings import TrainConfig
from torchcaps.training import Run

Rows = Sequence[Mapping[str, Any]]


def epochs_of(run: Run) -> list[dict[str, Any]]:
    """The metrics of the epochs done so far; RunError if they are damaged."""
    return [row for row in run.rows if row["kind"] == "epoch"]


def score_of(epochs: Rows) -> str:
    """The name of the figure that the epoch was chosen by; empty before the first."""
    return str(epochs[-1]["score"]) if epochs else ""


def is_finished(config: TrainConfig, epochs: Rows) -> bool:
    """Whether all epochs are done, or the score that ends the training was reached."""
    if not epochs:
        return False
    best = max(row[f"val_{score_of(epochs)}"] for row in epochs)
    stop_at = inf if config.training.stop_at is None else config.training.stop_at
    return epochs[-1]["epoch"] >= config.training.epochs or best >= stop_at


def best_epoch(epochs: Rows) -> int | None:
    """Whose model is kept, counted from 1; None before the first."""
    best = [int(row["epoch"]) for row in epochs if row["best"]]
    return best[-1] if best else None


def training_seconds(epochs: Rows) -> float | None:
    """Time in training steps, from the images per second of each epoch; None before the first, or
    where one took too long to measure."""
    if not epochs or not all(row["images_per_second"] for row in epochs):
        return None
    return sum(row["images"] / row["images_per_second"] for row in epochs)
