"""The model to evaluate, as a module or by its run, and the images for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor, nn

from torchcaps.data import Dataset, load_dataset, match_classes
from torchcaps.distributed import main_first
from torchcaps.errors import ArgumentError, RunError
from torchcaps.reporting.prediction import ModelOrRun, load_model, path_of
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task, task_class
from torchcaps.training import Run
from torchcaps.training.files import MODEL_FILE, read_header
from torchcaps.training.inputs import as_set
from torchcaps.training.run import is_run
from torchcaps.training.sampling import cropped, inside_fold, outside_fold
from torchcaps.types import model_metadata

Data = Dataset | tuple[ArrayLike | Tensor, ArrayLike | Tensor] | str | Path
"""Images with labels; or the name or path of a data set."""


def open_task(
    model_or_run: ModelOrRun,
    data: Data | None = None,
    *,
    root: str | None = None,
    split: str = "test",
    device: str = "auto",
    **options: Any,
) -> tuple[Task, Dataset]:
    """The task around a trained model, and images for it.

    Args:
        model_or_run: a model; a run, or its folder; or a file of weights.
        data: by default the data set that the run was trained on; a model has none. Its classes are
            matched with the model's by name; some of them may be absent. Of a path without splits
            that is not the one of the run, all images are taken.
        root: where a named set is looked for first.
        split: "test" or "train".
        device: "auto" leaves a model where it is.
        options: how image files of other data are read, as `load_dataset` takes them.

    Returns:
        The task, which holds the model, and the set of images.

    Raises:
        RunError: for no such run.
        DataError: if the data cannot be read, or has images of a class that the model does not know.
        ArgumentError: for a model without data, or data that its task does not take.
    """
    model = load_model(model_or_run, device)
    metadata = model_metadata(model)
    config = TrainConfig.of(task=metadata.task)
    has_run = False
    if not isinstance(model_or_run, nn.Module):
        path = path_of(model_or_run)
        has_run = is_run(path)
        config = Run.open(path).config if has_run else config

    is_own = data is None or (has_run and _are_same(data, config.data.name))
    has_fold = is_own and config.data.folds is not None
    if data is None:
        data = _default_data(model_or_run, config)
    if is_own:
        root = root or config.data.root
        options = {"max_bytes": config.data.max_bytes, **config.data.options, **options}
    elif has_run:  # of a model alone, nobody knows what it has seen
        options["classes"] = metadata.classes
    # The test images of a fold are training images of the data set.
    images = _load_images(model, data, root, "train" if has_fold else split, options)
    if has_fold:
        select = inside_fold if split == "test" else outside_fold
        images = select(images, config)
    if not isinstance(data, Dataset | str | Path) and len(images.classes) <= len(metadata.classes):
        images = replace(images, classes=metadata.classes)  # arrays do not name their classes

    if task_class(config.task.name, model, images).labeled and metadata.classes:
        images = match_classes(images, metadata.classes)
    # Such as overlapping digits, for a model of single ones.
    if not task_class(config.task.name, model, images).supports(images):
        config = config.updated(task="auto")
    return create_task(model, config, images), images


def _are_same(data: Data, name: str) -> bool:
    """Whether a name or path is that of a run's data set, however it is written."""
    if not isinstance(data, str | Path):
        return False
    path = Path(data)
    return str(data) == name or (path.exists() and path.resolve() == Path(name).resolve())


def _default_data(model_or_run: ModelOrRun, config: TrainConfig) -> str:
    """The data set of a run, or of weights that come with the package."""
    if isinstance(model_or_run, nn.Module):
        raise ArgumentError("data", "expected a data set for a model without a run, got None")
    path = path_of(model_or_run)
    if is_run(path):
        return config.data.name
    file = path / MODEL_FILE if path.is_dir() else path
    name = read_header(file)[1].get("weights", {}).get("shown")
    if name is None:
        raise RunError(
            f"{path}: a model file does not say what data it was trained on; give --data"
        )
    return str(name)


def _load_images(
    model: Any,
    data: Data,
    root: str | None,
    split: str,
    options: dict[str, Any],
) -> Dataset:
    """Images of the model's size and channels, cropped as in its training."""
    if not isinstance(data, str | Path):
        return as_set(data)
    preprocess = model_metadata(model).preprocess
    sizes = model if preprocess is None else preprocess
    with main_first():
        images = load_dataset(
            str(data),
            split,
            root,
            img_size=sizes.img_size,
            in_chans=sizes.in_chans,
            storage="auto",
            **options,
        )
    return images if preprocess is None else cropped(images, preprocess.crop)
