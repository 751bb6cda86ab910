"""Pictures of what capsules encode: reconstructions and perturbed pose dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from torchcaps import evaluation
from torchcaps.data import images_in
from torchcaps.errors import RunError
from torchcaps.evaluation import example_indices
from torchcaps.report.plots import PLOTS, reconstruction_figure, save_figure
from torchcaps.report.run import open_run
from torchcaps.tasks.exhibits import evenly
from torchcaps.training import load
from torchcaps.types import spec_of
from torchcaps.viz import drawable

MOST_PAIRS = 80


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
    """Write a picture of originals over their reconstructions from the longest capsule; of more than 80, evenly spread.

    Args:
        run: a run folder, or a model file.
        images: own image files or folders; without them, test images.
        data: another data set than the run's own.
        root: where a named set is looked for first.
        per_class: test images of each class.
        seed: of their choice.
        output: the picture; by default plots/reconstructions.png in the run folder.

    Raises:
        RunError: if the model has no decoder. RunError, DataError: as `open_run`.
    """
    model, pictures, labels, _ = _chosen(run, images, data, root, per_class, seed)
    _check_decoder(run, model)
    some = evenly(torch.arange(len(pictures)), MOST_PAIRS)
    figure = reconstruction_figure(model, pictures[some], None if labels is None else labels[some])
    return save_figure(figure, _plots(run) / "reconstructions.png" if output is None else Path(output))


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
        RunError: if the model has no decoder. RunError, DataError: as `open_run`.
        ValueError: if span or steps cannot be used.
    """
    from torchcaps import viz

    model, pictures, labels, names = _chosen(run, images, data, root, 1, seed)
    _check_decoder(run, model)
    folder = _plots(run) if output is None else Path(output)
    classes = drawable(model.classes)  # type: ignore[arg-type]
    written = []
    for index, name in enumerate(names):
        one = slice(index, index + 1)
        found = evaluation.perturb(
            model, pictures[one], None if labels is None else labels[one], span=span, steps=steps
        )
        title = f"pose of class capsule {classes[int(found.shown)]!r}, one dimension at a time"
        figure = viz.perturbations(found.reconstructions[0], found.offsets, title=title)
        written.append(save_figure(figure, folder / f"perturb_{name}.png"))
    return written


def _chosen(
    run: str | Path, images: Sequence[str | Path], data: str | None, root: str | None, per_class: int, seed: int
) -> tuple[nn.Module, Tensor, Tensor | None, list[str]]:
    """Model, images, their labels if known, and a name for each."""
    if images:
        model, files = load(run), images_in(images)
        pictures = [model.preprocess(file) for file in files]  # type: ignore[operator]
        return model, torch.stack(pictures), None, _file_names([file.stem for file in files])
    task, test = open_run(run, data=data, root=root, device="cpu")
    model = task.model
    chosen = example_indices(test.labels, per_class, seed)
    labels = test.labels[chosen]
    return model, test.float_images(chosen), labels, _file_names([test.classes[k] for k in labels.tolist()])


def _check_decoder(run: str | Path, model: nn.Module) -> None:
    if not spec_of(model).decoder:
        raise RunError(f"{run}: this model has no decoder, so there is nothing that could draw its capsules")


def _plots(run: str | Path) -> Path:
    path = Path(run)
    return (path if path.is_dir() else path.parent) / PLOTS


def _file_names(texts: Sequence[str]) -> list[str]:
    """Names of classes or files as parts of file names, each once."""
    names: dict[str, str] = {}  # by their lower case, which some file systems do not tell from the upper
    for text in texts:
        name = plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in text)
        number = 2
        while name.lower() in names:
            name, number = f"{plain}-{number}", number + 1
        names[name.lower()] = name
    return list(names.values())
