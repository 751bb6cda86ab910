"""Measure a run and leave its figures and plots in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchcaps.data import ImageSet, load_dataset
from torchcaps.errors import DataError, RunError
from torchcaps.ranks import first_alone, joined
from torchcaps.report.plots import PLOTS, can_plot, plot_training, save_figure
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Found, Task, create_task
from torchcaps.training import RunFolder, load
from torchcaps.training.checkpoint import write_json
from torchcaps.training.lock import make_folder
from torchcaps.training.optim import resolve_device
from torchcaps.training.sampling import cropped

EVALUATION = "evaluation.json"


def open_run(
    run: str | Path, *, data: str | None = None, root: str | None = None, split: str = "test", device: str = "auto"
) -> tuple[Task, ImageSet]:
    """The trained model of a run within its task, and images for it.

    Args:
        run: a run folder, or a model file (then `data` is needed).
        data: name or path of a data set; by default the one that the run was trained on.
        root: where a named set is looked for first.
        split: "test" or "train".
        device: see `TrainConfig`.

    Raises:
        RunError: if there is no such run, or the data set's classes are not the model's.
        DataError: if the data cannot be had.
    """
    model: Any = load(run, device=resolve_device(device))
    path, config = Path(run), TrainConfig()
    if path.is_dir():
        config = RunFolder.open(path).config()
    elif data is None:
        raise RunError(f"{path}: a model file does not say what data it was trained on; give --data")
    max_bytes = config.data.max_bytes if data is None else None
    if data is None:
        data, root = config.data.name, root or config.data.root
    size, channels = model.preprocess.img_size, model.preprocess.in_chans
    with first_alone():
        images = load_dataset(data, split, root, img_size=size, in_chans=channels, max_bytes=max_bytes)
    images = cropped(images, model.preprocess.crop)
    task = create_task(model, config, images)
    if task.labelled and images.classes != model.classes:
        raise RunError(
            f"{data}: its {len(images.classes)} classes ({_few(images.classes)}) are not the model's "
            f"{len(model.classes)} ({_few(model.classes)})"
        )
    return task, images


def evaluation_folder(run: str | Path, data: str | None = None, split: str = "test") -> Path:
    """Where an evaluation belongs: the run folder for its own test images, else a folder in it named after the data."""
    folder = Path(run) if Path(run).is_dir() else Path(run).parent
    if data is None and split == "test":
        return folder
    return folder / "evaluations" / f"{Path(data).name.split('.')[0] if data else 'own'}-{split}"


def finish_run(run: RunFolder, *, device: str | None = None, root: str | None = None) -> Found:
    """Evaluate a finished run on its test images and write figures and plots; all of it again if called again.

    Args:
        run: a run with a model.
        device: where to compute; by default as the run was.
        root: where a named data set is looked for first; by default as for the run.

    Raises:
        RunError, TrainingError: if the folder cannot be read or written to.
        DataError: if the test images cannot be had; the trained model stays.
    """
    try:
        task, images = open_run(run.path, root=root, device=device or run.config().run.device)
    except DataError as error:
        raise DataError(f"{error}; the model is trained and kept in {run.model}, but not evaluated") from error
    found = task.evaluate(images)
    if joined().main:
        write_evaluation(run.path, found, task, images)
        if can_plot():
            plot_training(run, task.loss)
    return found


def write_evaluation(folder: str | Path, found: Found, task: Task, images: ImageSet) -> None:
    """Write evaluation.json and, where matplotlib is installed, plots/.

    Raises:
        RunError, TrainingError: if the folder cannot be written to.
    """
    make_folder(Path(folder))
    write_json(Path(folder) / EVALUATION, found.to_dict())
    if can_plot():
        for shown in task.exhibits(found, images):
            if shown.figure is not None:
                save_figure(shown.figure, Path(folder) / PLOTS / f"{shown.key}.png")


def training_seconds(epochs: Sequence[Mapping[str, Any]], batch_size: int | None) -> float | None:
    """Time in training steps, from the images per second of each epoch; None where that was not recorded.

    Args:
        epochs: the metrics of the epochs of a run, in their order.
        batch_size: images per step; only runs of early versions, which do not count their images, need it.
    """
    total, before = 0.0, 0
    for row in epochs:
        count, speed = row.get("images", (row["step"] - before) * (batch_size or 0)), row.get("images_per_second")
        if not (count and speed):
            return None
        total, before = total + count / speed, row["step"]
    return total if epochs else None


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
