"""Pictures of what capsules encode: reconstructions and perturbed pose dimensions."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps import evaluation
from torchcaps.data.classes import first_labels
from torchcaps.data.inputs import list_inputs
from torchcaps.errors import DataError, RunError
from torchcaps.evaluation import example_indices
from torchcaps.reporting.api import PLOTS, evaluation_folder, open_task, save_figure
from torchcaps.tasks import evenly
from torchcaps.training import load
from torchcaps.types import model_metadata, spec_of
from torchcaps.words import UniqueNames

MAX_PAIRS = 80


class Examples(NamedTuple):
    """Images to draw, and the model whose decoder draws them."""

    model: Any
    images: Tensor  # [n, channels, height, width]
    labels: Tensor | None  # [n]; None for own images
    names: list[str]  # of classes or files


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

    Of more than 80 images, 80 evenly spread ones are drawn.

    Args:
        run: a run folder or a file of weights.
        images: own image files or folders; without them, test images.
        data: name or path of another data set than the run's own.
        root: where a named data set is looked for first.
        per_class: number of test images of each class.
        seed: of their choice.
        output: the picture; by default plots/reconstructions.png in the run folder.

    Returns:
        The picture.

    Raises:
        RunError: for no run, or a model without a decoder.
        DataError: if the images cannot be read.
    """
    from torchcaps import viz

    examples = _choose_examples(run, images, data, root, per_class, seed)
    indices = evenly(torch.arange(len(examples.images)), MAX_PAIRS)
    originals = examples.images[indices]
    decoded = evaluation.reconstructions(examples.model, originals)
    labels = decoded.predictions
    if examples.labels is not None:
        labels = examples.labels[indices]
    figure = viz.reconstructions(
        originals,
        decoded.images,
        labels,
        predictions=decoded.predictions,
        classes=viz.names.drawable(model_metadata(examples.model).classes),
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
    """Write a grid of reconstructions of each image: a row per pose dimension, a column per offset.

    Args:
        run: a run folder or a file of weights.
        images: own image files or folders; without them, one test image of each class.
        data: name or path of another data set than the run's own.
        root: where a named data set is looked for first.
        span: each dimension moves from -span to span.
        steps: number of offsets, at least 2.
        seed: of the choice of test images.
        output: folder of the pictures; by default plots/ in the run folder.

    Returns:
        The pictures.

    Raises:
        ValueError: for `span` or `steps` out of range.
        RunError, DataError: see `reconstruct_run`.
    """
    from torchcaps import viz

    examples = _choose_examples(run, images, data, root, 1, seed)
    folder = evaluation_folder(run) / PLOTS if output is None else Path(output)
    classes = viz.names.drawable(model_metadata(examples.model).classes)
    unique_name = UniqueNames()
    pictures = []
    for index, name in enumerate(examples.names):
        one = slice(index, index + 1)
        label = None if examples.labels is None else examples.labels[one]
        perturbed = evaluation.perturb(
            examples.model,
            examples.images[one],
            label,
            span=span,
            steps=steps,
        )
        figure = viz.perturbations(
            perturbed.reconstructions[0],
            perturbed.offsets,
            title=f"pose of class capsule {classes[int(perturbed.selected)]!r}, "
            "one dimension at a time",
        )
        file = unique_name(re.sub(r"[^\w-]", "_", name))
        pictures.append(save_figure(figure, folder / f"perturb_{file}.png"))
    return pictures


def _choose_examples(
    run: str | Path,
    images: Sequence[str | Path],
    data: str | None,
    root: str | None,
    per_class: int,
    seed: int,
) -> Examples:
    """Own images, or test images of each class."""
    if images:
        model = _check_decoder(run, load(run))
        preprocess = model_metadata(model).preprocess
        pixels = []
        names = []
        for name, source, _ in list_inputs(images, preprocess):
            if isinstance(source, DataError):
                raise source
            pixels.append(preprocess(source, name))
            names.append(Path(str(name)).stem)
        return Examples(model, torch.stack(pixels), None, names)
    task, test_images = open_task(run, data=data, root=root, device="cpu")
    model = _check_decoder(run, task.model)
    labels = first_labels(test_images.labels)
    indices = example_indices(labels, per_class, seed)
    names = [test_images.classes[label] for label in labels[indices].tolist()]
    return Examples(model, test_images.float_images(indices), labels[indices], names)


def _check_decoder(run: str | Path, model: Any) -> Any:
    """The model. Raises RunError unless it has a decoder of class capsules."""
    spec = spec_of(model)
    if not (spec.decoder and model_metadata(model).classes) or spec.is_dense:
        raise RunError(f"{run}: this model has no decoder of class capsules, so it cannot draw")
    return model
