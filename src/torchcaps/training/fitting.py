"""Training a model in place on what the caller has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.data import Dataset, match_classes
from torchcaps.data.preprocess import ArrayPreprocess
from torchcaps.errors import ArgumentError
from torchcaps.evaluation.forward import device_of
from torchcaps.progress import progress_bar, report_rows
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, check_task, create_task, task_class
from torchcaps.training.batches import BatchSource, DatasetBatches
from torchcaps.training.callbacks import FunctionCallback
from torchcaps.training.defaults import complete_config
from torchcaps.training.device import memory_errors, resolve_device
from torchcaps.training.initial import read_initial
from torchcaps.training.inputs import Data, as_set, is_loader, model_sizes
from torchcaps.training.loaders import LoaderBatches, LoaderData, loader_config, loader_data
from torchcaps.training.loggers import MemoryLogger, Row
from torchcaps.training.loop import Trainer
from torchcaps.training.sampling import cropped, split
from torchcaps.training.summary import training_summary
from torchcaps.training.threads import training_threads
from torchcaps.types import model_metadata, set_model_metadata


class Fitted(NamedTuple):
    """What `fit` returns.

    Attributes:
        model: the one that was passed, with the weights of its best epoch, in evaluation mode.
        history: a row for each epoch: "train_loss", "val_loss", the metrics of the task, and more;
            "restart" says why the training started again by itself, where it did.
    """

    model: nn.Module
    history: list[Row]


def fit(
    model: nn.Module,
    data: Data,
    labels: Any = None,
    *,
    transform: Callable[[Tensor], Tensor] | None = None,
    validation: Data | None = None,
    config: TrainConfig | None = None,
    emit: Callable[[Row], None] | None = None,
    on_step: Callable[[nn.Module, dict[str, float]], None] | None = None,
    on_epoch: Callable[[nn.Module, Row], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> Fitted:
    """Train a model on images of your own, in place; nothing is written.

    One line on stderr says what is done, and each epoch has a line. Images are not changed at
    random unless `transform`, a setting such as `shift=2`, or `config` says so.

    Args:
        model: any module that a task takes: of this library, or one that maps images to logits of
            classes.
        data: a `Dataset`; the path of a data set; (images, labels); images; a map-style
            `Dataset`; or a `DataLoader`, whose order and workers are kept. Images are an array or a
            tensor `[n, channels, height, width]`, `[n, height, width, channels]` or
            `[n, height, width]` of uint8 or floats; or a list of pictures or of their paths, which
            are brought to the model's size. A model that was trained on floats outside [0, 1] takes
            arrays only.
        labels: where `data` is images alone: `[n]` whole numbers or names; 0 and 1 `[n, classes]`
            of images of several classes; the class of each pixel `[n, height, width]`; or a
            mapping of targets by name, such as {"mask": masks}.
        transform: changes each batch of training images `[batch, channels, height, width]`, floats
            on the model's device, after the augmentations of the settings; returns as many of the
            same size. What it draws from torch's global generator depends on the step and the seed
            alone. Masks do not move with it.
        validation: to choose the epoch by; by default a part of `data` is held out (setting
            `holdout`).
        config: of the run; its model, its data set's name and its root are not looked at.
        emit: is given each row of the metrics in place of the lines on stderr, see
            `loggers.MemoryLogger`.
        on_step: called after each step with the model and the figures of the step; see `Callback`.
        on_epoch: called after each epoch with the model and its row of the metrics; see `Callback`.
        should_stop: called after each step; True ends the training. See `Callback`.
        settings: of the run, by name, such as `epochs=5, lr=0.01`; they take precedence over
            `config`. The device is that of the model unless one is named.

    Returns:
        `Fitted(model, history)`: the model, and the rows of the metrics of its epochs.

    Raises:
        ValueError: for a setting, a model or images that cannot be used.
        DataError: for images that are no set.
        TrainingError: when the loss becomes non-finite, or memory is exhausted.
        Interrupted: when `should_stop` says so.

    Example:
        >>> model, history = tc.fit(tc.create_model("capsnet"), images, labels, epochs=3)
    """
    is_plain = config is None and "shift" not in settings
    config = (config or TrainConfig()).updated(**settings)
    device = device_of(model)
    if config.training.device != "auto":
        device = resolve_device(config.training.device)
    with memory_errors(), training_threads(device) as choice, _shown(emit) as emit:
        model.to(device)
        config = loader_config(data, config)
        images, val_images, loader, notes = _fit_data(model, data, labels, validation, config)
        if is_plain and task_class(config.task.name, model, images).labeled:
            config = config.updated(shift=0)  # which recipes have by default
        if images.preprocess is ArrayPreprocess and config.task.reconstruction is None:
            config = config.updated(reconstruction=0.0)  # decoders draw values in [0, 1]
        images, val_images = images.to(device), val_images.to(device)
        task = create_task(model, config, images)
        if transform is not None:
            _add_transform(task, transform)
        check_task(task, val_images)
        initial = read_initial(config, images.classes)
        if initial is not None:
            initial.load_into(model)
        config = complete_config(task, len(images))
        batches: BatchSource = DatasetBatches(images, task, config)
        if loader is not None:
            batches = LoaderBatches(loader, task, config)
        num_images = (len(images), len(val_images))
        summary = training_summary(task, config, images.name, num_images, device)
        logger = MemoryLogger(emit, initial)
        with _memory_format(model):
            initial_weights = {
                name: tensor.detach().clone() for name, tensor in model.state_dict().items()
            }
            Trainer(
                task,
                config,
                batches,
                val_images,
                logger,
                initial_weights=lambda: initial_weights,
                callbacks=[FunctionCallback(on_step, on_epoch, should_stop)],
                messages=[summary, *notes, choice],
            ).run()
            if logger.best_weights is not None:
                model.load_state_dict(logger.best_weights)
    model.eval()
    _keep_metadata(model, task, images, config.data.crop)
    return Fitted(model, [row for row in logger.rows if row["kind"] == "epoch"])


def _keep_metadata(model: nn.Module, task: Task, images: Dataset, crop: int | None) -> None:
    """Keep what the model was trained for with it, for `predict`, `evaluate` and `save`."""
    metadata = replace(
        model_metadata(model),
        classes=images.classes if task.labeled else (),
        preprocess=images.preprocess(images.img_size, images.in_chans, crop),
        task=task.name,
        spec=task.spec,
    )
    set_model_metadata(model, metadata)


def _fit_data(
    model: nn.Module,
    data: Any,
    labels: Any,
    validation: Any,
    config: TrainConfig,
) -> tuple[Dataset, Dataset, LoaderData | None, list[str]]:
    """Images to train on, images to choose the epoch by, and sentences about them.

    Of a caller's `Dataset` or `DataLoader` also what the batches are made of.
    """
    sizes = model_sizes(model)
    val_images = None
    if validation is not None:
        val_images = cropped(as_set(validation, None, sizes), config.data.crop)
    if is_loader(data):
        if labels is not None:
            kind = type(data).__name__
            raise ArgumentError("labels", f"expected none beside a {kind}, which has its own")
        prepared = loader_data(data, val_images, config, sizes)
        notes = [prepared.note] if prepared.note else []
        return prepared.images, prepared.val_images, prepared, notes
    images = as_set(data, labels, sizes)
    if val_images is None:
        train_images, val_images = split(images, config, torch.device("cpu"))
        return train_images, val_images, None, [*images.notes]
    return images, match_classes(val_images, images.classes), None, [*images.notes]


@contextmanager
def _shown(emit: Callable[[Row], None] | None) -> Iterator[Callable[[Row], None]]:
    """The caller's function of the rows; by default they are shown on stderr."""
    if emit is not None:
        yield emit
        return
    with progress_bar("training") as bar:
        yield report_rows(bar)


@contextmanager
def _memory_format(model: nn.Module) -> Iterator[None]:
    """Put the order in which convolutions keep their weights back afterwards."""
    was_contiguous = {name for name, weight in model.named_parameters() if weight.is_contiguous()}
    try:
        yield
    finally:
        for name, weight in model.named_parameters():
            if name in was_contiguous:
                weight.data = weight.data.contiguous()


def _add_transform(task: Task, transform: Callable[[Tensor], Tensor]) -> None:
    """Let a task change its training images by a function as well."""
    if not task.augments:
        raise ArgumentError("transform", f"the task {task.name} changes no images")

    def apply(images: Tensor, generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**31, (), generator=generator))
        devices = [images.device] if images.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            return transform(images)

    task.transforms.append(apply)
