"""torchcaps evaluate and torchcaps predict."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

import torchcaps as tc
from torchcaps.cli.console import UsageError, counting, note_without_plots, show
from torchcaps.cli.flags import Data, Device, Json, Root, Run


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
    """Measure a trained model; write plots. Of a classifier: accuracy overall and per class, loss, calibration.

    Example: torchcaps evaluate runs/capsnet-digits --json

    Args:
        split: Which images.
        output: Folder for evaluation.json and plots; by default the run folder, or for other data or another split a
            folder of that name in it.
    """
    folder = output if output is not None else tc.reporting.evaluation_folder(run, data, split)
    with counting("evaluating") as progress:
        task, images = tc.reporting.open_task(run, data, root=root, split=split, device=device)
        evaluation = task.evaluate(images, progress=progress)
    # Shown first: a folder that cannot be written to takes no figures away.
    show(json, evaluation.to_dict(), evaluation.table().lines, evaluation.summary)
    tc.reporting.api.write_evaluation(folder, evaluation, task, images)
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
    """Say what a trained model makes of image files, or of all images in folders.

    A classifier gives the class and its activation, which for capsules is a length and not a probability.

    Example: torchcaps predict runs/capsnet-digits photo.png folder/

    Args:
        paths: A run folder or a model.safetensors file, then image files and folders. Images alone go to a network
            that comes with the package and knows digits.
        output: Folder for what the model's task draws of each image: masks and overlays of a model of pixels.
        json: Print JSON: for each image its path, and all that the model's task says; of classes all activations.
    """
    is_image_name = tc.data.images.is_image_name
    first = paths[0] if paths else Path()
    alone = (
        len(paths) == 1 and first.is_dir() and not (first / tc.training.run.CONFIG_FILE).exists()
    )
    run, *images = (
        [tc.models.weights_file(), *paths]
        if alone or is_image_name(first.name)
        else [first, *paths[1:]]
    )
    if not images:
        raise UsageError("images: expected image files or folders after the run, got none")
    rows = tc.predict(run, images, device=device, output=output)
    shown = [
        {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        for row in rows
    ]
    heads = [
        "image" if name == "path" else "class" if name == "label" else name for name in shown[0]
    ]
    cells = [
        [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()]
        for row in shown
    ]
    show(json, rows, [heads, *cells])
    return 0
