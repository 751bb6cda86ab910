"""The ways into training: `fit` for what is in memory, `train` for names and a run folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from torchcaps.data import ImageFiles, ImageSet
from torchcaps.distributed import current, main_first
from torchcaps.errors import ArgumentError, TrainingError
from torchcaps.models import model_info
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, check_task, create_task
from torchcaps.training import folder
from torchcaps.training.batches import SetBatches
from torchcaps.training.calibration import write_calibration
from torchcaps.training.callbacks import Callback, FunctionCallback
from torchcaps.training.checkpoint import build_model, describe_model
from torchcaps.training.defaults import complete_config
from torchcaps.training.device import resolve_device
from torchcaps.training.initial import InitialWeights
from torchcaps.training.loggers import MemoryLogger, Row, RunLogger
from torchcaps.training.loop import Trainer
from torchcaps.training.recipes import default_folder, resolve_recipe
from torchcaps.training.run import CALIBRATION_FILE, Run, is_complete, resumed_config
from torchcaps.training.sampling import cropped, read_images, split
from torchcaps.types import model_metadata, set_model_metadata

Array = ArrayLike | Tensor


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
    data: ImageSet | tuple[Array, Array] | Array,
    labels: Array | None = None,
    *,
    transform: Callable[[Tensor], Tensor] | None = None,
    validation: ImageSet | tuple[Array, Array] | None = None,
    config: TrainConfig | None = None,
    emit: Callable[[Row], None] | None = None,
    on_step: Callable[[nn.Module, dict[str, float]], None] | None = None,
    on_epoch: Callable[[nn.Module, Row], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> Fitted:
    """Train a model on images in memory, in place; nothing is written.

    Training images are shifted by up to 2 pixels unless the setting `shift` says otherwise, and
    weights of convolutions are kept in channels-last order.

    Args:
        model: any module that a task takes: of this library, or one that maps images to logits of
            classes.
        data: an `ImageSet`, (images, labels), or images. Images are `[n, channels, height, width]`,
            uint8 or floats in [0, 1], as a tensor or an array.
        labels: `[n]` integers from 0, where `data` is images alone.
        transform: changes each batch of training images `[batch, channels, height, width]`, floats
            in [0, 1] on the model's device, after the augmentations of the settings; returns as
            many of the same size. What it draws from torch's global generator depends on the step
            and the seed alone. Masks do not move with it.
        validation: to choose the epoch by; by default a part of `data` is held out (setting
            `holdout`).
        config: of the run; its model, its data set's name and its root are not looked at.
        emit: is given each row of the metrics, see `loggers.MemoryLogger`.
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
    config = (config or TrainConfig()).updated(**settings)
    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    if config.training.device != "auto":
        device = resolve_device(config.training.device)
    images = as_set(data, labels)
    with memory_errors():
        model.to(device)
        if validation is None:
            train_images, val_images = split(images, config, device)
        else:
            train_images = images.to(device)
            val_images = cropped(as_set(validation), config.data.crop).to(device)
        task = create_task(model, config, train_images)
        if transform is not None:
            _add_transform(task, transform)
        check_task(task, val_images)
        initial = _read_initial(config, images.classes)
        if initial is not None:
            initial.load_into(model)
        initial_weights = {
            name: tensor.detach().clone() for name, tensor in model.state_dict().items()
        }
        logger = MemoryLogger(emit, initial)
        for note in images.notes:
            logger.message(note)
        config = complete_config(task, len(train_images))
        Trainer(
            task,
            config,
            SetBatches(train_images, config, task.spec.smallest_batch),
            val_images,
            logger,
            initial_weights=lambda: initial_weights,
            callbacks=[FunctionCallback(on_step, on_epoch, should_stop)],
        ).run()
    if logger.best_weights is not None:
        model.load_state_dict(logger.best_weights)
    model.eval()
    metadata = replace(
        model_metadata(model),
        classes=images.classes if task.labeled else (),
        preprocess=images.preprocess(images.img_size, images.in_chans, config.data.crop),
        task=task.name,
        spec=task.spec,
    )
    set_model_metadata(model, metadata)
    return Fitted(model, [row for row in logger.rows if row["kind"] == "epoch"])


def train(
    recipe_or_config: str | Path | TrainConfig,
    output: str | Path | None = None,
    resume: bool = False,
    *,
    emit: Callable[[Row], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> Run:
    """Train a model by name and leave a run folder.

    The model of the epoch with the best score on held-out images becomes `model.safetensors`. Where
    this process is one of several (`torchcaps.distributed`), all of them call this, and the first
    one writes.

    Args:
        recipe_or_config: what to run: name of a recipe or of a model, path of a `.toml` file, or a
            configuration. With `resume`, the folder's own configuration is used, and of this one
            only a device other than "auto", a root, max_bytes and workers.
        output: the run folder; must not hold a run, unless `resume`. By default the next free name
            below `runs`; with `resume` the newest that is taken.
        resume: continue the run in `output`, bit for bit on the same machine with the same number
            of threads. A run whose epochs are all done goes on if `epochs` is larger than before:
            the added ones have a learning rate of their own, which falls from a tenth of the first
            one to zero along a cosine.
        emit: is given each row of the metrics, see `loggers.MemoryLogger`.
        should_stop: see `Callback`.
        settings: of the run, by name, such as `epochs=5`; they take precedence.

    Returns:
        The run, with its folder, metrics and model; see `Run`.

    Raises:
        DataError, RunError, ValueError: for data, folders or settings that cannot be used; no
            folder is made then.
        TrainingError: when the loss becomes non-finite, memory is exhausted or a file cannot be
            written; the last good checkpoint stays, and a folder in which there is none yet is
            removed.
        Interrupted: when `should_stop` says so.

    Example:
        >>> run = tc.train("capsnet-digits", epochs=2)
        >>> model = tc.load(run.path)
    """
    ranks = current()
    config = resolve_recipe(recipe_or_config).updated(**settings)
    if output is None:
        output = ranks.broadcast(default_folder(config, recipe_or_config, resume))
    run = Run(output)
    if resume:
        opened = Run.open(output) if ranks.is_main else run
        saved = ranks.broadcast(opened.config if ranks.is_main else config)
        can_extend = ranks.broadcast(ranks.is_main and is_complete(opened))
        saved = resumed_config(saved, settings, can_extend)
        device = None if config.training.device == "auto" else config.training.device
        config = saved.updated(
            device=device,
            root=config.data.root,
            max_bytes=config.data.max_bytes,
            workers=config.data.workers,
        )
    elif ranks.is_main:
        folder.check_new(run)
    with memory_errors():
        # Reads the data and builds the model before a folder is made.
        trainer = _create_trainer(config, run, FunctionCallback(should_stop=should_stop), emit)
        config = trainer.config
        with ExitStack() as stack:
            with main_first():  # the others wait until the folder is held
                if ranks.is_main:
                    hold = folder.resume(run, saved) if resume else folder.create(run, config)
                    stack.enter_context(hold)
            if ranks.is_main:  # that of an older model, where a finished run goes on
                (run.path / CALIBRATION_FILE).unlink(missing_ok=True)
            trainer.run()
            if ranks.is_main:
                write_calibration(run, trainer.task, trainer.val_images)
    return run


def as_set(data: ImageSet | tuple[Array, Array] | Array, labels: Array | None = None) -> ImageSet:
    """Images and labels as a set; DataError where they make none, ArgumentError for neither."""
    if isinstance(data, ImageSet) and labels is None:
        return data
    pair = (data, labels)
    if labels is None and isinstance(data, tuple) and len(data) == 2:
        pair = data
    try:
        pixels, classes = map(torch.as_tensor, pair)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            "data",
            "expected an ImageSet, (images, labels), or images with labels, "
            f"as tensors or arrays, got {type(data).__name__}",
        ) from None
    if pixels.is_floating_point():
        pixels = pixels.float()
    classes = classes.long()
    num_classes = int(classes.max()) + 1 if classes.numel() else 0
    return ImageSet(pixels, classes, tuple(map(str, range(num_classes))), "images in memory")


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


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise TrainingError, one sentence, where the memory of any device is exhausted."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # Most devices raise no class of their own.
        if isinstance(error, MemoryError) or re.search(
            "out of memory|can't allocate memory|not enough memory", str(error)
        ):
            raise TrainingError(
                "the memory is exhausted; use a smaller batch_size, img_size or model"
            ) from error
        raise


def _read_initial(
    config: TrainConfig, classes: tuple[str, ...], copy: Path | None = None
) -> InitialWeights | None:
    """The weights that the setting `init` names; None without it."""
    if config.model.init is None:
        return None
    return InitialWeights(config.model.init, classes, copy)


def _create_trainer(
    config: TrainConfig,
    run: Run,
    callback: Callback,
    emit: Callable[[Row], None] | None,
) -> Trainer:
    """The training of a run: data read, model built."""
    device = resolve_device(config.training.device)
    with main_first():
        config, train_images, val_images = read_images(config, device)
    description = describe_model(
        config.model.name,
        config.model.options,
        train_images.classes,
        train_images.preprocess(train_images.img_size, train_images.in_chans, config.data.crop),
        config.task.name,
    )
    initial = _read_initial(config, train_images.classes, run.initial_path)

    def build_task() -> Task:
        generator = torch.Generator().manual_seed(config.training.seed)
        model = build_model(description, generator=generator).to(device)
        if initial is not None:
            initial.load_into(model)
        return create_task(model, config, train_images)

    def build_weights() -> dict[str, Tensor]:
        return build_task().model.state_dict()

    task = build_task()
    if not task.labeled and not model_info(config.model.name).num_classes:
        description["classes"] = []  # a model without classes
        task = build_task()
    description["task"] = task.name
    # A resumed run reads the images as the first start did, also on a machine of other memory.
    storage = "disk" if isinstance(train_images, ImageFiles) else "memory"
    config = complete_config(task, len(train_images)).updated(storage=storage)
    logger = RunLogger(run, config, description, train_images, val_images, emit, initial)
    for note in train_images.notes:
        logger.message(note)
    return Trainer(
        task,
        config,
        SetBatches(train_images, config, task.spec.smallest_batch),
        val_images,
        logger,
        initial_weights=build_weights,
        callbacks=[callback],
    )
