"""Measure a run and leave its figures and plots in its folder."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.data import ImageSet, load_dataset
from torchcaps.distributed import current, main_first
from torchcaps.errors import ArgumentError, DataError, RunError, read_text
from torchcaps.models._pretrained import FOLDER
from torchcaps.reporting.epochs import Rows, epochs_of, score_of
from torchcaps.settings import TrainConfig
from torchcaps.tasks import EvaluationResult, Task, create_task, task_class
from torchcaps.training import Run, load
from torchcaps.training.checkpoint import read_header
from torchcaps.training.device import resolve_device
from torchcaps.training.files import atomic, make_folder, write_json
from torchcaps.training.sampling import cropped
from torchcaps.types import model_metadata

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVALUATION, PLOTS = "evaluation.json", "plots"


def open_run(
    run: str | Path,
    *,
    data: str | None = None,
    root: str | None = None,
    split: str = "test",
    device: str = "auto",
) -> tuple[Task, ImageSet]:
    """The trained model of a run within its task, and images for it. Raises RunError if there is no such run, or the
    data set's classes are not the model's; DataError if the data cannot be had.

    Args:
        run: a run folder, or a model file; then `data` is needed, but for those that come with the package.
        data: name or path of a data set; by default the one that the run was trained on.
        root: where a named set is looked for first.
        split: "test" or "train".
    """
    model: Any = load(run, device=resolve_device(device))
    path, config = Path(run), TrainConfig()
    if path.is_dir():
        config = Run.open(path).config
    elif data is None:
        data = read_header(path)[1].get("weights", {}).get("shown")
        if data is None:
            raise RunError(
                f"{path}: a model file does not say what data it was trained on; give --data"
            )
    max_bytes = config.data.max_bytes if data is None else None
    name, root = (config.data.name, root or config.data.root) if data is None else (data, root)
    preprocess = model_metadata(model).preprocess
    size, channels = preprocess.img_size, preprocess.in_chans
    with main_first():
        images = load_dataset(
            name, split, root, img_size=size, in_chans=channels, max_bytes=max_bytes
        )
    images = cropped(images, preprocess.crop)
    if data is not None and not task_class(config.task.name, model, images).supports(images):
        config = config.updated(
            task="auto"
        )  # such as overlapping digits, for a model of single ones
    task = create_task(model, config, images)
    classes = model_metadata(model).classes
    if task.labeled and images.classes != classes:
        raise RunError(
            f"{name}: its {len(images.classes)} classes ({_few(images.classes)}) are not the model's "
            f"{len(classes)} ({_few(classes)})"
        )
    return task, images


def evaluation_folder(run: str | Path, data: str | None = None, split: str = "test") -> Path:
    """Where an evaluation belongs: the run folder for its own test images, else a folder in it named after the data.
    For weights of the package that is the present folder."""
    folder = (
        Path(run)
        if Path(run).is_dir()
        else Path()
        if Path(run).parent == FOLDER
        else Path(run).parent
    )
    if data is None and split == "test":
        return folder
    return folder / "evaluations" / f"{Path(data).name.split('.')[0] if data else 'own'}-{split}"


def finish_run(run: Run, *, device: str | None = None, root: str | None = None) -> EvaluationResult:
    """Evaluate a finished run on its test images and write figures and plots; all of it again if called again.

    Device and root of the data are by default as for the run. Raises RunError or TrainingError if the folder cannot be
    read or written to; DataError if the test images cannot be had; the trained model stays."""
    try:
        task, images = open_run(run.path, root=root, device=device or run.config.training.device)
    except DataError as error:
        raise DataError(
            f"{error}; the model is trained and kept in {run.model_path}, but not evaluated"
        ) from error
    found = task.evaluate(images)
    if current().is_main:
        write_evaluation(run.path, found, task, images)
        if can_plot():
            save_figure(training_figure(epochs_of(run), task.loss), run.path / PLOTS / "curves.png")
    return found


def write_evaluation(
    folder: str | Path, found: EvaluationResult, task: Task, images: ImageSet
) -> None:
    """Write evaluation.json and, where matplotlib is installed, plots/. Raises RunError or TrainingError if the folder
    cannot be written to."""
    make_folder(Path(folder))
    write_json(Path(folder) / EVALUATION, found.to_dict())
    if can_plot():
        for shown in task.report_items(found, images):
            if shown.figure is not None:
                save_figure(shown.figure, Path(folder) / PLOTS / f"{shown.key}.png")


def can_plot() -> bool:
    """Whether matplotlib is installed; without it a run has its figures, but no plots."""
    return find_spec("matplotlib") is not None


def training_figure(epochs: Rows, loss: str) -> Figure:
    """Curves of a loss and of the score; parts of the loss that are measured in training alone are left out."""
    from torchcaps import viz

    # The part of the training loss that "val_loss" is of.
    rows = [{**row, "train_loss": row.get(f"train_{loss}", row["train_loss"])} for row in epochs]
    return viz.curves(rows, loss=loss, score=score_of(epochs))


def read_figures(folder: str | Path) -> dict[str, Any] | None:
    """What a folder's evaluation.json says of the test images; None before they were looked at, RunError if it is
    damaged."""
    file = Path(folder) / EVALUATION
    if not file.exists():
        return None
    try:
        found = json.loads(read_text(file))
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        return found
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(
            f"{file}: is no readable evaluation ({error}); write it anew with: torchcaps evaluate {folder}"
        ) from error


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically, in the format that the ending of `path` names (PNG without one); folders are made.
    Raises ValueError for an ending that is no picture format; RunError or TrainingError if it cannot be written."""
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise ArgumentError(
            "output",
            f"expected a file ending in one of {', '.join(sorted(known))}, got {path.name}",
        )
    make_folder(path.parent)
    with atomic(path) as partial:
        figure.savefig(partial, format=kind, dpi=120)
    return path


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
