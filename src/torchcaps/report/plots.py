"""Plots of a run, as PNG files. Only here and in pictures.py is matplotlib needed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import bidirectional

import torch
from torch import Tensor, nn

from torchcaps.data import ImageSet, PairSet
from torchcaps.evaluation import Evaluation, example_indices, match_segments, reconstructions, segment
from torchcaps.training import RunFolder
from torchcaps.training.checkpoint import atomic
from torchcaps.training.lock import make_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = "plots"
EXAMPLES, PAIRS, OVERLAPS = 12, 40, 24


def can_plot() -> bool:
    """Whether matplotlib is installed; without it a run has its figures, but no plots."""
    return find_spec("matplotlib") is not None


def plot_training(run: RunFolder) -> Path:
    """Write curves of margin loss and accuracy over epochs; the loss of reconstruction is measured in training alone.

    Raises:
        RunError, TrainingError: if the metrics cannot be read, or the plot cannot be written.
    """
    from torchcaps import viz

    epochs = [row | {"train_loss": row.get("train_margin")} for row in run.rows() if row["kind"] == "epoch"]
    return save_figure(viz.curves(epochs), run.path / PLOTS / "curves.png")


def plot_evaluation(folder: str | Path, found: Evaluation, model: nn.Module, images: ImageSet) -> list[Path]:
    """Write confusion matrix, per-class bars, calibration, example lengths and, with a decoder, reconstructions.

    Args:
        folder: the plots go into plots/ in it.
        found: what `evaluate` made of `model` and `images`.
        model: the model.
        images: the images.

    Raises:
        RunError, TrainingError: if the folder cannot be written to.
    """
    from torchcaps import viz

    accuracies = [row["accuracy"] for row in found.per_class]
    counts = [row["count"] for row in found.per_class]
    names = drawable(found.classes)
    shown = example_indices(found.labels, per_class=2, seed=0)
    some = evenly(shown, EXAMPLES)
    figures = {
        "confusion_matrix": viz.confusion_matrix(found.confusion, names),
        "per_class": viz.per_class_bars(accuracies, names, counts),
        "calibration": viz.calibration(found.to_dict()["calibration"]),
        "activations": viz.activation_bars(
            images.float_images(some), found.activations[some], found.labels[some], classes=names
        ),
    }
    if getattr(model, "decoder", None) is not None:
        pairs = evenly(shown, PAIRS)
        figures["reconstructions"] = reconstruction_figure(model, images.float_images(pairs), found.labels[pairs])
    return [save_figure(figure, Path(folder) / PLOTS / f"{name}.png") for name, figure in figures.items()]


def plot_overlaps(folder: str | Path, model: nn.Module, images: PairSet) -> Path:
    """Write plots/overlaps.png: composites, and what the decoder draws from their two longest capsules, one by one.

    Raises:
        RunError, TrainingError: if the folder cannot be written to.
    """
    from torchcaps import viz

    some = evenly(torch.arange(len(images)), OVERLAPS)
    pictures, labels = images.float_images(some), images.labels[some].cpu()
    drawn = match_segments(segment(model, pictures), labels)
    figure = viz.overlaps(
        pictures, drawn.images, labels, shown=drawn.shown, lengths=drawn.lengths, classes=drawable(images.classes)
    )
    return save_figure(figure, Path(folder) / PLOTS / "overlaps.png")


def reconstruction_figure(model: nn.Module, images: Tensor, labels: Tensor | None) -> Figure:
    """Originals over what the decoder makes of their longest capsule; with labels, wrong answers are marked."""
    from torchcaps import viz

    drawn = reconstructions(model, images)
    classes = drawable(model.classes)  # type: ignore[arg-type]
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


def drawable(classes: Sequence[str]) -> list[str]:
    """The names as pictures can show them: by number where the font lacks a letter, or the script runs to the left."""
    from matplotlib import font_manager

    letters = font_manager.get_font(font_manager.findfont(font_manager.FontProperties())).get_charmap()
    return [
        label
        if all(ord(c) in letters and bidirectional(c) not in ("R", "AL") for c in " ".join(label.split()))
        else f"class {index}"
        for index, label in enumerate(classes)
    ]


def evenly(indices: Tensor, most: int) -> Tensor:
    """At most `most` of these, spread over all of them in their order."""
    return indices[torch.linspace(0, len(indices) - 1, min(most, len(indices))).round().long()]
