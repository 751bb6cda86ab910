"""Training a model in place on what the caller has.

`fit` puts a training together. Who does what, in the order of the calls:

1. `as_set` (inputs.py) makes a `Dataset` of what the caller gives, `split` (sampling.py) holds out
   a part of it.
2. `task_class` (tasks/_base.py) chooses the task, `complete_config` (tasks/_config.py) fills what
   the configuration leaves open.
3. `DatasetBatches` (sampling.py), or `LoaderBatches` (loaders.py), say which images a step has.
4. `Trainer` (loop.py) takes the steps. In each, `Updater` (update.py) computes losses and gradients
   and changes the weights; on a GPU, `StepGraph` (graph.py) replays both.
5. Callbacks (callbacks.py) do what else happens: the second start, the best weights, the early end,
   the bar; in `train` also the run folder (folder.py).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import training
from torchcaps.data import Dataset, match_classes
from torchcaps.data.augment import ordered_augmentations
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, counted
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, check_task, complete_config, task_class
from torchcaps.tasks._base import first_batch
from torchcaps.training.callbacks import (
    CALLBACKS,
    BestWeights,
    Callback,
    EarlyEnd,
    ProgressBar,
    SecondStart,
)
from torchcaps.training.device import memory_errors, resolve_device, training_threads
from torchcaps.training.inputs import Data, as_set, expected_target, is_loader
from torchcaps.training.loop import Row, Trainer
from torchcaps.training.sampling import DatasetBatches, split
from torchcaps.transfer import device_of, evaluating
from torchcaps.types import (
    Names,
    check_module,
    declares,
    find_network,
    model_metadata,
    set_model_metadata,
    unwrap,
)
from torchcaps.words import join_names


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
    callbacks: Sequence[Callback | str] = (),
    verbose: bool = True,
    **settings: Any,
) -> Fitted:
    """Train a model on images of your own, in place; nothing is written.

    One line on stderr says what is done, and each epoch has a line. Images are not changed at
    random unless `transform`, a setting such as `shift=2`, or `config` says so. A training that is
    stopped, by a callback or Ctrl-C, returns what it has: the weights of the best epoch so far.

    Args:
        model: any module that a task takes: of this library, or one that maps images to logits of
            classes. Of a network of this library within `DataParallel`, a compiled module or
            `AveragedModel` the network itself is trained; other modules around it, such as
            `Sequential(Normalize(), network)`, keep their part.
        data: a `Dataset`; the path of a data set; (images, labels); images; a map-style
            `Dataset`; or a `DataLoader`, whose order and workers are kept. Images are an array or a
            tensor `[n, channels, height, width]`, `[n, height, width, channels]` or
            `[n, height, width]` of uint8 or floats; or a list of pictures or of their paths, which
            are brought to the model's size. A model that was trained on floats outside [0, 1] takes
            arrays only.
        labels: where `data` is images alone: `[n]` whole numbers or names; of images of several
            classes 0 and 1 `[n, classes]` or lists of classes; the class of each pixel
            `[n, height, width]`; real numbers `[n]` or `[n, values]`; or a mapping of targets by
            name, such as {"mask": masks}. `torchcaps.data.targets` lists all forms. Where the
            setting `task` is open, the task follows from them.
        transform: changes each batch of training images `[batch, channels, height, width]`, floats
            on the model's device, after the augmentations of the settings; returns as many of the
            same size. What it draws from torch's global generator depends on the step and the seed
            alone. Masks do not move with it.
        validation: to choose the epoch by; by default a part of `data` is held out (setting
            `holdout`).
        config: of the run; its model's name and options, its data set's name and its root are not
            looked at.
        callbacks: objects that are told of steps and epochs, or names of registered ones, which
            take the place of the setting `callbacks`; see `Callback`.
        verbose: show what is done on stderr.
        settings: of the run, by name, such as `epochs=5, lr=0.01`; they take precedence over
            `config`. The device is that of the model unless one is named. `seed` decides which
            images are held out, their order, augmentations and dropout, but not the first weights,
            which `model` has.

    Returns:
        `Fitted(model, history)`: the model, and the rows of the metrics of its epochs.

    Raises:
        ValueError: for a setting, a model or images that cannot be used.
        ArgumentError: `holdout` or folds beside `validation`; a setting that a `DataLoader` or a
            map-style `Dataset` decides by itself.
        DataError: for images that are no set.
        TrainingError: when the loss becomes non-finite, or memory is exhausted. The model then has
            the weights of that step, and is in training mode.

    Example:
        >>> model, history = tc.fit(tc.create_model("capsnet"), images, labels, epochs=3)
    """
    check_module(model)
    network = find_network(model)
    names = [callback for callback in callbacks if isinstance(callback, str)] or None
    config = (config or TrainConfig()).updated(callbacks=names, **settings)
    for name in ("holdout", "folds", "fold"):
        if validation is not None and settings.get(name) is not None:
            raise ArgumentError(name, "expected none beside images to validate with")
    watchers = [callback for callback in callbacks if isinstance(callback, Callback)]
    num_threads = next((callback.threads for callback in watchers if callback.threads), None)
    place = config.training.device
    device = device_of(network) if place == "auto" else resolve_device(place)
    with memory_errors(), training_threads(device, num_threads) as choice, _memory_format(network):
        network.to(device)
        config, images, val_images, notes = _fit_data(network, data, labels, validation, config)
        images, val_images = images.to(device), val_images.to(device)
        kind = task_class(config.task.name, network, images)
        config = complete_config(config, kind, network, images)
        task = kind(network, config, images)
        set_model_metadata(network, targets=dict(task.target_facts))
        if transform is not None:
            _add_transform(task, transform)
        sentences = list(_model_notes(model, task, val_images, verbose))
        if config.model.init is not None:
            weights = training.initial.InitialWeights(network, config.model.init, images.classes)
            sentences.append(weights.sentence)
        batches = DatasetBatches(images, task, config)
        if is_loader(data):
            from torchcaps.training.loaders import LoaderBatches

            batches = LoaderBatches(data, images, task, config)
        if config.training.log:
            from torchcaps.training import logs as logs  # registers them
        watchers = [SecondStart(), *watchers, BestWeights(), EarlyEnd()]
        if verbose:
            watchers.append(ProgressBar())
        watchers += [CALLBACKS[name]() for name in config.training.callbacks + config.training.log]
        trainer = Trainer(task, config, batches, val_images, watchers)
        trainer.messages += filter(
            None, [training_summary(trainer), *notes, choice, task.score_reason]
        )
        for sentence in sentences:
            trainer.note(sentence)
        with suppress(KeyboardInterrupt):  # `BestWeights` has loaded what there is
            trainer.run()
        _remember(model, images, trainer)
    return Fitted(model.eval(), trainer.history)


def _remember(model: nn.Module, images: Dataset, trainer: Trainer) -> None:
    """What a model was trained for, for `predict`, `evaluate` and `save`."""
    task = trainer.task
    calibration = trainer.calibration
    if not trainer.checkpoint:  # a run folder makes that of a finished training alone
        calibration = training.calibration.calibration_of(task, trainer.val_images)
    img_size = task.model.img_size if "size" in images.targets else images.img_size
    preprocess = training.calibration.preprocessing(images, trainer.config.data.crop)
    set_model_metadata(
        model,
        classes=images.classes if task.labeled else (),
        preprocess=replace(preprocess, img_size=img_size),
        task=task.name,
        spec=task.spec,
        calibration=calibration,
    )


def _fit_data(
    model: nn.Module, data: Any, labels: Any, validation: Any, config: TrainConfig
) -> tuple[TrainConfig, Dataset, Dataset, list[str]]:
    """The settings, images to train on and to choose the epoch by, and sentences about them."""

    def read_set(data: Any, labels: Any, target: str | None, classes: Names = ()) -> Dataset:
        """Arrays have the size of the settings, a set has its own."""
        images = as_set(data, labels, model, target=target, classes=classes)
        if "size" in images.targets and current().world_size > 1:
            raise ArgumentError("data", "expected images of one size for several processes")
        return images if isinstance(data, Dataset) else images.resized(config.data.img_size, None)

    def read_validation(target: str | None, classes: Names) -> Dataset | None:
        if validation is None:
            return None
        return match_classes(read_set(validation, None, target, classes), classes)

    if not is_loader(data):
        images = read_set(data, labels, expected_target(model, config.task.name))
        val_images = read_validation(next(iter(images.targets), None), images.classes)
        notes = list(images.notes)
    else:
        if labels is not None:
            raise ArgumentError(
                "labels", f"expected none beside a {type(data).__name__}, which has its own"
            )
        from torchcaps.training.loaders import loader_config, loader_data

        config = loader_config(data, config)
        images, val_images, notes = loader_data(data, read_validation, config, model)
    images, val_images = split(images, config, val_images)
    return config, images, val_images, notes


@contextmanager
def _memory_format(model: nn.Module) -> Iterator[None]:
    """Put the order in which convolutions keep their weights back afterwards."""
    strides = {name: weight.stride() for name, weight in model.named_parameters()}
    try:
        yield
    finally:
        for name, weight in model.named_parameters():
            if weight.stride() != strides.get(name, weight.stride()):
                ordinary = weight.data.new_empty_strided(weight.shape, strides[name])
                weight.data = ordinary.copy_(weight.data)


def _model_notes(model: nn.Module, task: Task, images: Dataset, verbose: bool) -> Iterator[str]:
    """Sentences on the part of the model that is trained, and on what its outputs are taken for.

    The task is checked first, and metrics that it cannot give are named. Outputs for the first
    images that look like lengths of capsules, of a model that declares nothing, are warned of, by
    `warnings` where nothing else is shown.
    """
    outputs_by_name = check_task(task, images)
    if task.config.task.metrics:
        from torchcaps.tasks.metrics import METRICS

        for name in task.config.task.metrics:
            missing = [need for need in METRICS.fact(name, "needs") if need not in outputs_by_name]
            if missing:
                yield (
                    f"the metric {name} is left out: it needs {join_names(missing)}, and there are "
                    f"{join_names(list(outputs_by_name))}"
                )
    if task.model is unwrap(model) is not model:
        yield f"the network within {type(model).__name__} is trained without it"
    if declares(model):
        return
    with evaluating(task):
        outputs = task.model(first_batch(task, images, 8).inputs)
    note = (
        f"{type(task.model).__name__} declares nothing, so its outputs are taken for logits, with "
        f"the loss {task.loss}; choose another with loss=..., or state before the training what "
        'they are, such as model.spec = torchcaps.ModelSpec(activation="length", loss="margin")'
    )
    in_range = outputs.any() and outputs.equal(outputs.clamp(0, 1))  # zeros say nothing
    if in_range and (outputs.sum(1) - 1).abs().max() > 1e-3:
        note += "; warning: they are in [0, 1], as the lengths of capsules, which are no logits"
        if not verbose:
            warnings.warn(note, stacklevel=3)
    yield note


def _add_transform(task: Task, transform: Callable[[Tensor], Tensor]) -> None:
    """Let a task change its training images by a function as well."""
    if not task.augments:
        raise ArgumentError("transform", f"the task {task.name} changes no images")

    def apply(images: Tensor, generator: torch.Generator) -> Tensor:
        devices = [images.device] if images.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            return transform(images)

    task.transforms.append(apply)


def training_summary(trainer: Trainer) -> str:
    """`training capsnet on digits: 5,400 images, 600 held out; task classify by the targets: ...`.

    Args:
        trainer: of the training.
    """
    task = trainer.task
    config = trainer.config
    images = trainer.batches.images
    device = device_of(task.model)
    model = model_metadata(task.model).name or type(task.model).__name__
    optimizer = config.optimizer
    clip = f"clip {optimizer.clip:g}" if optimizer.clip else "no clipping"
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    amounts = []
    for augmentation in ordered_augmentations():
        for name in augmentation.switches:
            if amount := getattr(config.augmentation, name):
                amounts.append(name if amount is True else f"{name} {amount:g}")
    reason = ""
    if config.origins.get("task") == "model" and task.targets:
        reason = f" by the targets: {task.data}"
    return (
        f"training {model} on {images.name}: {len(images):,} images, "
        f"{len(trainer.val_images):,} held out; "
        f"task {task.name}{reason}; "
        f"{counted(config.training.epochs, 'epoch')} of batch {config.training.batch_size}; "
        f"{optimizer.name} at {optimizer.lr:g} ({config.schedule.name}), {clip}; "
        f"{trainer.updater.precision} on {device}{threads}; "
        f"augmentation: {', '.join(amounts) or 'none'}"
    )
