"""Measure a run and leave its figures and plots in its folder."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

from torchcaps import viz
from torchcaps.data import ImageSet, load_dataset
from torchcaps.errors import RunError
from torchcaps.evaluation import Evaluation, evaluate, example_indices
from torchcaps.training import RunFolder, load
from torchcaps.training.checkpoint import atomic, write_json
from torchcaps.training.optim import resolve_device

PLOTS, EVALUATION = "plots", "evaluation.json"
EXAMPLES = 12


def open_run(
    run: str | Path, *, data: str | None = None, root: str | None = None, split: str = "test", device: str = "auto"
) -> tuple[nn.Module, ImageSet]:
    """The model of a run and images for it.

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
    model = load(run, device=resolve_device(device))
    path = Path(run)
    if data is None:
        if not path.is_dir():
            raise RunError(f"{path}: a model file does not say what data it was trained on; give --data")
        config = RunFolder.open(path).config()
        data, root = config.data, root or config.root
    preprocess = model.preprocess
    images = load_dataset(data, split, root, img_size=preprocess.img_size, in_chans=preprocess.in_chans)  # type: ignore[union-attr, arg-type]
    if images.classes != model.classes:
        raise RunError(
            f"{data}: its {len(images.classes)} classes ({_few(images.classes)}) are not the model's "
            f"{len(model.classes)} ({_few(model.classes)})"  # type: ignore[arg-type]
        )
    return model, images


def evaluation_folder(run: str | Path, data: str | None = None, split: str = "test") -> Path:
    """Where an evaluation belongs: the run folder itself for its own test images, else a folder named after the data in it."""
    folder = Path(run) if Path(run).is_dir() else Path(run).parent
    if data is None and split == "test":
        return folder
    return folder / "evaluations" / f"{Path(data).name.split('.')[0] if data else 'own'}-{split}"


def finish_run(run: RunFolder) -> Evaluation:
    """Evaluate a finished run on its test images and write figures and plots; all of it again if called again.

    Raises:
        TrainingError: if the folder cannot be written.
    """
    model, images = open_run(run.path, device=run.config().device)
    found = evaluate(model, images)
    # The curves compare like with like: the margin loss of both, without the reconstruction's share in training.
    epochs = [row | {"train_loss": row["train_margin"]} for row in run.rows() if row["kind"] == "epoch"]
    save_figure(viz.curves(epochs), run.path / PLOTS / "curves.png")
    write_evaluation(run.path, found, model, images)
    return found


def write_evaluation(folder: str | Path, found: Evaluation, model: nn.Module, images: ImageSet) -> None:
    """Write evaluation.json and plots: confusion matrix, per-class bars, calibration, example lengths, reconstructions.

    Raises:
        TrainingError: if the folder cannot be written.
    """
    from torchcaps.report.pictures import reconstruction_figure

    folder = Path(folder)
    _make(folder / PLOTS)
    write_json(folder / EVALUATION, found.to_dict())
    figures = found.to_dict()
    accuracies = [row["accuracy"] for row in found.per_class]
    counts = [row["count"] for row in found.per_class]
    save_figure(viz.confusion_matrix(found.confusion, found.classes), folder / PLOTS / "confusion_matrix.png")
    save_figure(viz.per_class_bars(accuracies, found.classes, counts), folder / PLOTS / "per_class.png")
    save_figure(viz.calibration(figures["calibration"]), folder / PLOTS / "calibration.png")
    shown = example_indices(found.labels, per_class=2, seed=0)
    some = shown[torch.linspace(0, len(shown) - 1, min(EXAMPLES, len(shown))).long()]
    bars = viz.activation_bars(images.float_images(some), found.activations[some], found.labels[some], classes=found.classes)
    save_figure(bars, folder / PLOTS / "activations.png")
    if getattr(model, "decoder", None) is not None:
        figure = reconstruction_figure(model, images.float_images(shown[:40]), found.labels[shown[:40]])
        save_figure(figure, folder / PLOTS / "reconstructions.png")


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically, by the ending of `path`; folders are made.

    Raises:
        TrainingError: if it cannot be written.
    """
    path = Path(path)
    _make(path.parent)
    with atomic(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix(".") or "png", dpi=120)
    return path


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
