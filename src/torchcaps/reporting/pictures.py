"""Pictures of what capsules encode: reconstructions and perturbed pose dimensions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps import evaluation
from torchcaps.data import images_in
from torchcaps.errors import RunError
from torchcaps.evaluation import example_indices
from torchcaps.reporting.api import PLOTS, evaluation_folder, save_figure
from torchcaps.reporting.prediction import unique_names
from torchcaps.reporting.subject import open_task
from torchcaps.tasks.report_items import evenly
from torchcaps.training import load
from torchcaps.types import model_metadata, spec_of

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
    Raises RunError if the model has no decoder; RunError or DataError as `open_task`, whose arguments are not said
    again.

    Args:
        images: own image files or folders; without them, test images.
        per_class: test images of each class, chosen by `seed`.
        output: the picture; by default plots/reconstructions.png in the run folder.
    """
    from torchcaps import viz

    model, shown, labels, _ = _chosen(run, images, data, root, per_class, seed)
    some = evenly(torch.arange(len(shown)), MOST_PAIRS)
    drawn = evaluation.reconstructions(model, shown[some])
    truth, classes = (
        drawn.predictions if labels is None else labels[some],
        viz.names.drawable(model_metadata(model).classes),
    )
    figure = viz.reconstructions(
        shown[some], drawn.images, truth, predictions=drawn.predictions, classes=classes
    )
    return save_figure(figure, output or evaluation_folder(run) / PLOTS / "reconstructions.png")


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
    """Write, for each image, a grid of reconstructions: a row per pose dimension, a column per offset; the files.

    A dimension moves from -span to span in so many steps, at least 2. Without own images, it is one test image of each
    class. The folder of the pictures is by default plots/ in the run folder. Raises ValueError if span or steps cannot
    be used; otherwise as `reconstruct_run`."""
    from torchcaps import viz

    model, shown, labels, names = _chosen(run, images, data, root, 1, seed)
    folder = evaluation_folder(run) / PLOTS if output is None else Path(output)
    classes, written = viz.names.drawable(model_metadata(model).classes), []
    for index, name in enumerate(_file_names(names)):
        label = None if labels is None else labels[index : index + 1]
        found = evaluation.perturb(model, shown[index : index + 1], label, span=span, steps=steps)
        title = f"pose of class capsule {classes[int(found.shown)]!r}, one dimension at a time"
        figure = viz.perturbations(found.reconstructions[0], found.offsets, title=title)
        written.append(save_figure(figure, folder / f"perturb_{name}.png"))
    return written


def _chosen(
    run: str | Path,
    images: Sequence[str | Path],
    data: str | None,
    root: str | None,
    per_class: int,
    seed: int,
) -> tuple[Any, Tensor, Tensor | None, list[str]]:
    """A model with a decoder of class capsules, images, their labels where they are known, and a name for each."""
    if images:
        model = _with_decoder(run, load(run))
        files = images_in(images)
        return (
            model,
            torch.stack([model_metadata(model).preprocess(file) for file in files]),
            None,
            [file.stem for file in files],
        )
    task, test = open_task(run, data=data, root=root, device="cpu")
    model = _with_decoder(run, task.model)
    first = test.labels.view(len(test), -1)[:, 0]
    some = example_indices(first, per_class, seed)
    return (
        model,
        test.float_images(some),
        first[some],
        [test.classes[k] for k in first[some].tolist()],
    )


def _with_decoder(run: str | Path, model: Any) -> Any:
    if not (
        spec_of(model).decoder and model_metadata(model).classes and not spec_of(model).is_dense
    ):
        raise RunError(
            f"{run}: this model has no decoder of class capsules, so there is nothing that could draw them"
        )
    return model


def _file_names(texts: Sequence[str]) -> list[str]:
    """Names of classes or files as parts of file names, each once."""
    return unique_names("".join(c if c.isalnum() or c in "-_" else "_" for c in t) for t in texts)
