"""Plots of a run, as files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from torchcaps.report.epochs import Rows, curve_rows, epochs_of, score_of
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
    """Write curves of a task's loss (by its name) and of the score over epochs.

    Raises:
        RunError, TrainingError: if the metrics cannot be read, or the plot cannot be written.
    """
    return save_figure(training_figure(epochs_of(run), loss), run.path / PLOTS / "curves.png")


def training_figure(epochs: Rows, loss: str) -> Figure:
    """Curves of a loss and of the score; parts of the loss that are measured in training alone are left out."""
    from torchcaps import viz

    return viz.curves(curve_rows(epochs, loss), loss=loss, score=score_of(epochs))


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
