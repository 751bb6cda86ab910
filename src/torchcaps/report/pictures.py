"""Pictures of what capsules encode: reconstructions and perturbed pose dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from torchcaps import evaluation, viz
from torchcaps.data import images_in
from torchcaps.evaluation import example_indices
from torchcaps.report.run import PLOTS, open_run, save_figure
from torchcaps.training import load


def reconstruct_run(
    run: str | Path,
    images: Sequence[str | Path] = (),
    *,
    data: str | None = None,
    root: str | None = None,
    per_class: int = 2,
    seed: int = 0,
    output: str | Path | None = None,
) -> Path:
    """Write a picture of originals over their reconstructions from the longest capsule.

    Args:
        run: a run folder, or a model file.
        images: own image files or folders; without them, test images.
        data: another data set than the run's own.
        root: where a named set is looked for first.
        per_class: test images of each class.
        seed: of their choice.
        output: the picture; by default plots/reconstructions.png in the run folder.

    Raises:
        ValueError: if the model has no decoder. RunError, DataError: as `open_run`.
    """
    model, pictures, labels, _ = _chosen(run, images, data, root, per_class, seed)
    path = _plots(run) / "reconstructions.png" if output is None else Path(output)
    return save_figure(reconstruction_figure(model, pictures[:80], None if labels is None else labels[:80]), path)


def perturb_run(
    run: str | Path,
    images: Sequence[str | Path] = (),
    *,
    data: str | None = None,
    root: str | None = None,
    span: float = 0.25,
    steps: int = 11,
    seed: int = 0,
    output: str | Path | None = None,
) -> list[Path]:
    """Write, for each image, a grid of reconstructions: a row per pose dimension, a column per offset.

    Args:
        run: a run folder, or a model file.
        images: own image files or folders; without them, one test image of each class.
        data, root, seed: as `reconstruct_run`.
        span: the dimension moves from -span to span.
        steps: in this many steps, at least 2.
        output: folder of the pictures; by default plots/ in the run folder.

    Returns:
        The files written.

    Raises:
        ValueError: if the model has no decoder, or span or steps cannot be used. RunError, DataError: as `open_run`.
    """
    model, pictures, labels, names = _chosen(run, images, data, root, 1, seed)
    found = evaluation.perturb(model, pictures, labels, span=span, steps=steps)
    folder = _plots(run) if output is None else Path(output)
    classes: tuple[str, ...] = model.classes  # type: ignore[assignment]
    written = []
    for name, drawn, shown in zip(names, found.reconstructions, found.shown.tolist(), strict=True):
        title = f"pose of class capsule {classes[shown]!r}, one dimension at a time"
        figure = viz.perturbations(drawn, found.offsets, title=title)
        written.append(save_figure(figure, folder / f"perturb_{name}.png"))
    return written


def reconstruction_figure(model: nn.Module, images: Tensor, labels: Tensor | None) -> Figure:
    """Originals over reconstructions; with labels, wrong answers are marked."""
    drawn = evaluation.reconstructions(model, images)
    classes: tuple[str, ...] = model.classes  # type: ignore[assignment]
    truth = drawn.predictions if labels is None else labels
    return viz.reconstructions(images, drawn.images, truth, predictions=drawn.predictions, classes=classes)


def _chosen(
    run: str | Path, images: Sequence[str | Path], data: str | None, root: str | None, per_class: int, seed: int
) -> tuple[nn.Module, Tensor, Tensor | None, list[str]]:
    """Model, images, their labels if known, and a name for each."""
    if images:
        model, files = load(run), images_in(images)
        return model, torch.stack([model.preprocess(file) for file in files]), None, [file.stem for file in files]  # type: ignore[operator]
    model, test = open_run(run, data=data, root=root, device="cpu")
    chosen = example_indices(test.labels, per_class, seed)
    labels = test.labels[chosen]
    return model, test.float_images(chosen), labels, [_file_name(test.classes[k]) for k in labels.tolist()]


def _plots(run: str | Path) -> Path:
    path = Path(run)
    return (path if path.is_dir() else path.parent) / PLOTS


def _file_name(text: str) -> str:
    """A class name as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text)
