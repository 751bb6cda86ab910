"""torchcaps evaluate and torchcaps predict."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import torchcaps as tc
from torchcaps.cli.console import UsageError, counting, note_without_plots, show
from torchcaps.cli.flags import Data, Device, Json, Root, Run

HEADS = {"path": "image", "label": "class"}  # of the columns of predictions


def evaluate(
    run: Run,
    /,
    data: Data = None,
    root: Root = None,
    split: Literal["test", "train"] = "test",
    device: Device = "auto",
    output: Path | None = None,
    json: Json = False,
) -> int:
    """Measure a trained model on images that were not used in training, and write plots.

    For a classifier: accuracy overall and per class, loss, calibration.

    Example: torchcaps evaluate runs/capsnet-digits --json

    Args:
        split: Images of the test split or of the training split.
        output: Folder for evaluation.json and plots; by default the run folder, or, for other data
            or another split, a folder of that name in it.
    """
    folder = output or tc.reporting.evaluation_folder(run, data, split)
    with counting("evaluating") as progress:
        evaluation = tc.evaluate(
            run,
            data,
            root=root,
            split=split,
            device=device,
            output=folder,
            progress=progress,
        )
    show(json, evaluation.to_dict(), evaluation.table().lines, evaluation.summary)
    note_without_plots()
    return 0


def predict(
    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN] IMAGE...")
    ],
    /,
    device: Device = "auto",
    output: Path | None = None,
    json: bool = False,
) -> int:
    """Apply a trained model to image files, or to all images in folders.

    For a classifier, print the class and its activation, which for capsules is a length and not a
    probability.

    Example: torchcaps predict runs/capsnet-digits photo.png folder/

    Args:
        paths: A run folder or a model.safetensors file, then image files and folders. Without a
            run, a network for digits that comes with the package is used.
        output: Folder for pictures of the task for each image, such as masks and overlays of a
            model that classifies pixels.
        json: Print JSON: for each image its path and all outputs of the task; for a classifier,
            the activations of all classes.
    """
    if paths and not _are_images(paths):
        run, *images = paths
    else:
        run = tc.models.weights_file()
        images = [*paths]
    if not images:
        raise UsageError("images: expected image files or folders after the run, got none")
    predictions = tc.predict(run, images, device=device, output=output)
    cells = [_cells(prediction) for prediction in predictions]
    rows = [[HEADS.get(name, name) for name in cells[0]]]
    for row in cells:
        rows.append(list(row.values()))
    show(json, predictions, rows)
    return 0


def _are_images(paths: tuple[Path, ...]) -> bool:
    """Whether the first path is an image, or the only one a folder that is no run folder."""
    first = paths[0]
    is_run = tc.training.run.is_run(first)
    is_image_folder = len(paths) == 1 and first.is_dir() and not is_run
    return is_image_folder or tc.data.images.is_image_name(first.name)


def _cells(prediction: dict[str, Any]) -> dict[str, str]:
    """A prediction as text, by column; without what is no single number or name."""
    return {
        name: f"{cell:.3f}" if isinstance(cell, float) else str(cell)
        for name, cell in prediction.items()
        if not isinstance(cell, dict | list)
    }
