"""Measurements of a trained model. Each function takes a model or a run."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from torchcaps import evaluation
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, RunError
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.models._pretrained import FOLDER
from torchcaps.reporting.prediction import ModelOrRun, load_model
from torchcaps.reporting.subject import Data, open_task
from torchcaps.tasks import evaluate_task
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
    emit: Callable[[str], None] | None = None,
    **options: Any,
) -> EvaluationResult:
    """Measure a trained model on images that were not used in training.

    Args:
        model_or_run: a model; a run, or its folder; or a file of weights.
        data: a `Dataset`, (images, labels), or the name or path of a data set; by default the one
            that the run was trained on. Its classes are matched with the model's by name. Those
            without images have no accuracy. Of a path without train and test that is not the one
            of the run, all images are measured.
        root: where a named set is looked for first.
        split: "test" or "train".
        device: "auto" leaves a model where it is.
        output: a folder for evaluation.json and, where matplotlib is installed, plots. The first
            process writes them.
        progress: called with (images done, images in all).
        emit: called with each sentence on what was read and what was left out.
        options: how image files are read, as `load_dataset` takes them: `skip_damaged`,
            `label_column`, ...; by default as in the training where that was with the same data.

    Returns:
        What the task measures: of a classifier `accuracy`, per class and overall, loss, calibration
        and confusions; of any task `to_dict()`, `summary` and `table()`.

    Raises:
        RunError: for no run, or, before anything is measured, an output folder that cannot be
            written to.
        DataError: if the data cannot be read, or has images of a class that the model does not
            know.
        ArgumentError: for a model without data, or data that its task does not take.

    Example:
        >>> tc.evaluate("runs/capsnet-digits").accuracy
        0.985
    """
    task, images = open_task(model_or_run, data, root=root, split=split, device=device, **options)
    if emit is not None:
        for sentence in images.notes:
            emit(sentence)
    writes = output is not None and current().is_main
    folder = Path(output or "")
    if writes:
        _check_writable(folder)
    evaluated = evaluate_task(task, images, progress=progress)
    if not writes:
        return evaluated

    write_json(folder / EVALUATION_FILE, evaluated.to_dict())
    if can_plot():
        for item in task.report_items(evaluated, images):
            if item.figure is not None:
                save_figure(item.figure, folder / PLOTS / f"{item.key}.png")
        if isinstance(model_or_run, Run):
            save_figure(model_or_run.curves(), folder / PLOTS / "curves.png")
    return evaluated


def _check_writable(folder: Path) -> None:
    """Make a folder where it is missing. Raises RunError unless a file can be written into it."""
    make_folder(folder)
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(f"{folder}: cannot be written to ({error.strerror})") from error


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
    """Measure what routing does in a trained model, with a verdict in words for each measure.

    Args:
        model_or_run: a model; a run, or its folder; or a file of weights.
        data: a data set, its name or its path; by default the one that the run was trained on.
        count: number of random images, at least 2.
        seed: of the choice of these images, 0 or more.
        root: where a named set is looked for first.
        split: "test" or "train", of a named set.
        baseline: a model or run to compare with on the same images, such as a CNN of equal size.
        device: "auto" leaves a model where it is.

    Returns:
        The measures of `evaluation.diagnose`.

    Raises:
        ArgumentError: for a model without routed layers.
        RunError: for no such run, or data whose classes are not the model's.
        DataError: if the data cannot be read.
    """
    task, images = open_task(model_or_run, data, root=root, split=split, device=device)
    baseline_model = None
    if baseline is not None:
        baseline_model = load_model(baseline, device)
    return evaluation.diagnose(task.model, images, baseline=baseline_model, count=count, seed=seed)


def evaluation_folder(run: str | Path, data: str | None = None, split: str = "test") -> Path:
    """The folder that an evaluation belongs in.

    Args:
        run: a run folder or a file of weights; weights of the package belong in the present folder.
        data: name or path of a data set that is not the run's own.
        split: "test" or "train".

    Returns:
        The run folder for its own test images, else a folder in it named after data and split.
    """
    folder = Path(run)
    if folder.parent == FOLDER:
        folder = Path()
    elif not folder.is_dir():
        folder = folder.parent
    if data is None and split == "test":
        return folder
    source = Path(data or "own").name.split(".")[0]
    return folder / "evaluations" / f"{source}-{split}"


def can_plot() -> bool:
    """Whether matplotlib is installed; without it a run has its figures, but no plots."""
    return find_spec("matplotlib") is not None


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically; missing folders are made.

    Args:
        figure: of matplotlib.
        path: the file; its ending names the format, which is PNG without one.

    Returns:
        Path of the file, with its ending.

    Raises:
        ArgumentError: for an ending that is no picture format.
        RunError: if the folder cannot be made.
        TrainingError: if the file cannot be written.
    """
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
