"""The ways into training: `fit` for what is in memory, `train` for names and a run folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from torchcaps.data import ImageSet, load_dataset, preprocess_of
from torchcaps.distributed import current, main_first
from torchcaps.errors import ArgumentError
from torchcaps.models import model_info
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, check_task, create_task
from torchcaps.training.checkpoint import build_model, describe_model
from torchcaps.training.loop import Callbacks, Listener, Trainer
from torchcaps.training.optim import resolve_device
from torchcaps.training.run_folder import RunFolder
from torchcaps.training.sampling import cropped, on_device, split
from torchcaps.training.sinks import MemoryLogger, RunLogger
from torchcaps.types import ModelMetadata, set_model_metadata

Images = ImageSet | tuple[ArrayLike | Tensor, ArrayLike | Tensor]


class Fitted(NamedTuple):
    """What `fit` returns."""

    model: (
        nn.Module
    )  # the one that was given, with the weights of its best epoch, in evaluation mode
    history: list[
        dict[str, Any]
    ]  # a row for each epoch: "train_loss", "val_loss", the task's figures, and more


def fit(
    model: nn.Module,
    images: Images,
    *,
    validation: Images | None = None,
    config: TrainConfig | None = None,
    listener: Listener | None = None,
    on_step: Callable[[nn.Module, dict[str, float]], None] | None = None,
    on_epoch: Callable[[nn.Module, dict[str, Any]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> Fitted:
    """Train a model on images in memory, in place; nothing is written.

    Args:
        model: any module that a task takes: of this library, or one that maps images to logits of classes.
        images: an `ImageSet`, or (images, labels): `[n, channels, height, width]`, uint8 or floats in [0, 1], and
            `[n]` integers from 0, as tensors or arrays.
        validation: to choose the epoch by; by default a part of `images` is held out (setting `holdout`).
        config: of the run; its model, its data set's name and its root are not looked at.
        listener, on_step, on_epoch, should_stop: see `Callbacks`.
        settings: of the run, by name, such as `epochs=5, lr=0.01`; they take precedence over `config`. The device is
            that of the model unless one is named.

    Raises:
        ValueError: for a setting, a model or images that cannot be used. DataError: for images that are no set.
        TrainingError: when the loss becomes non-finite. Interrupted: when `should_stop` says so.

    Example:
        >>> model, history = tc.fit(tc.create_model("capsnet"), (images, labels), epochs=3)
    """
    config = (config or TrainConfig()).updated(**settings)
    own = next((p.device for p in model.parameters()), torch.device("cpu"))
    device = own if config.run.device == "auto" else resolve_device(config.run.device)
    model.to(device)
    whole = as_set(images)
    if validation is None:
        kept, held = split(whole, config, device)
    else:
        kept, held = (
            on_device(whole, device),
            on_device(cropped(as_set(validation), config.data.crop), device),
        )
    task = create_task(model, config, kept)
    check_task(task, held)
    start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    sink = MemoryLogger()
    Trainer(
        task, kept, held, sink, Callbacks(listener, on_step, on_epoch, should_stop), lambda: start
    ).run()
    if sink.best is not None:
        model.load_state_dict(sink.best)
    model.eval()
    classes = whole.classes if task.labeled else ()
    preprocess = preprocess_of(whole, config.data.crop)
    set_model_metadata(model, ModelMetadata(classes, preprocess, task.name, task.spec))
    return Fitted(model, [row for row in sink.rows if row["kind"] == "epoch"])


def train(
    config: TrainConfig,
    output: str | Path,
    *,
    resume: bool = False,
    listener: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunFolder:
    """Train a model by name and leave a run folder.

    The model of the epoch with the best score on held-out images becomes `model.safetensors`. Where several processes
    have joined (`torchcaps.distributed`), all of them call this, and the first one writes.

    Args:
        config: what to run; with `resume`, the folder's own configuration, and of this one only a device other than
            "auto", a root and max_bytes.
        output: the run folder; must not hold a run, unless `resume`.
        resume: continue the run in `output`, bit for bit on the same machine with the same number of threads.
        listener, should_stop: see `Callbacks`.

    Raises:
        DataError, RunError, ValueError: for data, folders or settings that cannot be used; no folder is made then.
        TrainingError: when the loss becomes non-finite or a file cannot be written; the last good checkpoint stays, and
            a folder in which there is none yet is removed.
        Interrupted: when `should_stop` says so.
    """
    ranks = current()
    run = RunFolder.open(output) if resume and ranks.is_main else RunFolder(output)
    if resume:
        device = None if config.run.device == "auto" else config.run.device
        moved = {"device": device, "root": config.data.root, "max_bytes": config.data.max_bytes}
        config = ranks.broadcast(run.config() if ranks.is_main else config).updated(**moved)
    elif ranks.is_main:
        RunFolder.fresh(output)
    callbacks = Callbacks(listener, should_stop=should_stop)
    if resume:
        with _held(run.continued()):
            _prepared(config, run, callbacks).run()
        return run
    trainer = _prepared(
        config, run, callbacks
    )  # reads the data and builds the model, before a folder is made
    with _held(run.begun(trainer.config)):
        trainer.run()
    return run


def as_set(images: Images) -> ImageSet:
    """Images and labels as a set; DataError where they make none, ValueError for neither a set nor a pair."""
    if isinstance(images, ImageSet):
        return images
    if not isinstance(images, tuple) or len(images) != 2:
        raise ArgumentError(
            "images", f"expected an ImageSet or (images, labels), got {type(images).__name__}"
        )
    pixels, labels = (
        x if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x)) for x in images
    )
    if pixels.is_floating_point():
        pixels = pixels.float()
    labels = labels.long()
    count = int(labels.max()) + 1 if labels.numel() else 0
    return ImageSet(pixels, labels, tuple(map(str, range(count))), "images in memory")


def _prepared(config: TrainConfig, run: RunFolder, callbacks: Callbacks) -> Trainer:
    """The training of a run: data read, model built."""
    device, data = resolve_device(config.run.device), config.data
    with main_first():
        images = load_dataset(
            data.name, "train", data.root, img_size=data.img_size, max_bytes=data.max_bytes
        )
    kept, held = split(images, config, device)
    preprocess = preprocess_of(images, data.crop)
    about = describe_model(
        config.model.name, config.model.options, images.classes, preprocess, config.task.name
    )

    def built() -> Task:
        model = build_model(about, generator=torch.Generator().manual_seed(config.run.seed)).to(
            device
        )
        return create_task(model, config, kept)

    task = built()
    if (
        not task.labeled and not model_info(config.model.name).num_classes
    ):  # a model without classes
        about["classes"] = []
        task = built()
    about["task"] = task.name
    sink = RunLogger(run, about, kept, held, keep_epochs=config.run.keep_epochs)
    return Trainer(task, kept, held, sink, callbacks, fresh=lambda: built().model.state_dict())  # noqa: PLW0108


@contextmanager
def _held(folder: Any) -> Iterator[None]:
    """Hold a run folder, in the first process; the others wait until it is held."""
    with ExitStack() as held:
        with main_first():
            if current().is_main:
                held.enter_context(folder)
        yield
