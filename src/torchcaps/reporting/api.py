"""What is measured of a trained model. Each function takes a model or a run."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from torchcaps import evaluation
from torchcaps.data import ImageSet
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, DataError
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.models._pretrained import FOLDER
from torchcaps.reporting.subject import Data, ModelOrRun, load_model, open_task
from torchcaps.tasks import Task
from torchcaps.training import Run
from torchcaps.training.files import atomic, make_folder, write_json
from torchcaps.training.run import EVALUATION_FILE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = "plots"
Progress = Callable[[int, int], None]


def evaluate(
    model_or_run: ModelOrRun,
    data: Data | None = None,
    *,
    root: str | None = None,
    split: str = "test",
    device: str = "auto",
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Measure a trained model on images that training had no part in.

    Args:
        model_or_run: a model; a run, or its folder; or a file of weights.
        data: an `ImageSet`, (images, labels), or the name or path of a data set; by default the one
            that the run was trained on.
        root: where a named set is looked for first.
        split: "test" or "train", of a named set.
        device: "auto" leaves a model where it is.
        output: a folder for evaluation.json and, where matplotlib is installed, plots.
        progress: called with (images done, images in all).

    Returns:
        What the task measures: of a classifier `accuracy`, per class and overall, loss, calibration
        and confusions; of any task `to_dict()`, `summary` and `table()`.

    Raises:
        RunError: for no run, or data whose classes are not the model's.
        DataError: if the data cannot be had.
        ArgumentError: for a model without data, or data that its task does not take.

    Example:
        >>> tc.evaluate("runs/capsnet-digits").accuracy
        0.985
    """
    try:
        task, images = open_task(model_or_run, data, root=root, split=split, device=device)
    except DataError as error:
        if isinstance(model_or_run, nn.Module) or data is not None:
            raise
        run = model_or_run if isinstance(model_or_run, Run) else Run(model_or_run)
        raise DataError(
            f"{error}; the model is trained and kept in {run.model_path}, but not evaluated"
        ) from error
    result = task.evaluate(images, progress=progress)
    if output is not None:
        write_evaluation(output, result, task, images)
        if current().is_main and isinstance(model_or_run, Run) and can_plot():
            save_figure(model_or_run.curves(), Path(output) / PLOTS / "curves.png")
    return result


def diagnose(
    model_or_run: ModelOrRun,
    data: Data | None = None,
    *,
    baseline: ModelOrRun | None = None,
    count: int = 256,
    seed: int = 0,
    root: str | None = None,
    split: str = "test",
    device: str = "auto",
) -> evaluation.Diagnosis:
    """Every measure of what routing does in a trained model, with a verdict in words for each.

    Args:
        baseline: a model or run to compare with on the same images, such as a CNN of equal size.
        count, seed: so many random images are looked at; see `evaluation.diagnose`.
        model_or_run, data, root, split, device: see `evaluate`, whose errors are raised too.

    Raises:
        ArgumentError: for a model without routed layers.
    """
    task, images = open_task(model_or_run, data, root=root, split=split, device=device)
    other = None if baseline is None else load_model(baseline, device)
    return evaluation.diagnose(task.model, images, baseline=other, count=count, seed=seed)


def evaluation_folder(run: str | Path, data: str | None = None, split: str = "test") -> Path:
    """Where an evaluation belongs: the run folder for its own test images, else a folder in it named after the data.
    For weights of the package that is the present folder."""
    folder = Path(run)
    if not folder.is_dir():
        folder = Path() if folder.parent == FOLDER else folder.parent
    if data is None and split == "test":
        return folder
    return folder / "evaluations" / f"{Path(data).name.split('.')[0] if data else 'own'}-{split}"


def write_evaluation(
    folder: str | Path, result: EvaluationResult, task: Task, images: ImageSet
) -> None:
    """Write evaluation.json and, where matplotlib is installed, plots/, by the first process.

    Raises RunError or TrainingError if the folder cannot be written to.
    """
    if not current().is_main:
        return
    folder = Path(folder)
    make_folder(folder)
    write_json(folder / EVALUATION_FILE, result.to_dict())
    if can_plot():
        for item in task.report_items(result, images):
            if item.figure is not None:
                save_figure(item.figure, folder / PLOTS / f"{item.key}.png")


def can_plot() -> bool:
    """Whether matplotlib is installed; without it a run has its figures, but no plots."""
    return find_spec("matplotlib") is not None


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically, in the format that the ending of `path` names (PNG without one); folders are made.
    Raises ValueError for an ending that is no picture format; RunError or TrainingError if it cannot be written."""
    path = Path(path)
    file_format = path.suffix.removeprefix(".").lower() or "png"
    formats = figure.canvas.get_supported_filetypes()
    if file_format not in formats:
        endings = ", ".join(sorted(formats))
        raise ArgumentError(
            "output", f"expected a file ending in one of {endings}, got {path.name}"
        )
    make_folder(path.parent)
    with atomic(path) as partial:
        figure.savefig(partial, format=file_format, dpi=120)
    return path
