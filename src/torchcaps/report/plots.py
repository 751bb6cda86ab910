"""Plots of a run, as PNG files. Only here and in pictures.py is matplotlib needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from torchcaps.evaluation import reconstructions
from torchcaps.training import RunFolder
from torchcaps.training.checkpoint import atomic
from torchcaps.training.lock import make_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = "plots"


def can_plot() -> bool:
    """Whether matplotlib is installed; without it a run has its figures, but no plots."""
    return find_spec("matplotlib") is not None


def plot_training(run: RunFolder, loss: str) -> Path:
    """Write curves of loss and score over epochs; a loss of reconstruction is measured in training alone.

    Raises:
        RunError, TrainingError: if the metrics cannot be read, or the plot cannot be written.
    """
    from torchcaps import viz

    epochs = [row for row in run.rows() if row["kind"] == "epoch"]
    return save_figure(viz.curves(curve_rows(epochs, loss)), run.path / PLOTS / "curves.png")


def curve_rows(epochs: Sequence[Mapping[str, Any]], loss: str) -> list[dict[str, Any]]:
    """Metrics of epochs with, as "train_loss", the part of the loss that "val_loss" is of, and the score by that name.

    Args:
        epochs: rows of kind "epoch".
        loss: the name of that part; early versions called it "margin".
    """
    return [
        {**row, "train_loss": row.get(f"train_{loss}", row.get("train_margin", row["train_loss"]))} for row in epochs
    ]


def reconstruction_figure(model: nn.Module, images: Tensor, labels: Tensor | None) -> Figure:
    """Originals over what the decoder makes of their longest capsule; with labels, wrong answers are marked."""
    from torchcaps import viz

    drawn = reconstructions(model, images)
    classes = viz.drawable(model.classes)  # type: ignore[arg-type]
    truth = drawn.predictions if labels is None else labels
    return viz.reconstructions(images, drawn.images, truth, predictions=drawn.predictions, classes=classes)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically, in the format that the ending of `path` names (PNG without one); folders are made.

    Raises:
        ValueError: for an ending that is no picture format.
        RunError, TrainingError: if it cannot be written.
    """
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise ValueError(f"output: expected a file ending in one of {', '.join(sorted(known))}, got {path.name}")
    make_folder(path.parent)
    with atomic(path) as partial:
        figure.savefig(partial, format=kind, dpi=120)
    return path
