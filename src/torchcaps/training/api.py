"""Training by names, which leaves a run folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.data import DiskDataset
from torchcaps.distributed import current, main_first
from torchcaps.models import model_info
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.training import folder
from torchcaps.training.batches import DatasetBatches
from torchcaps.training.calibration import write_calibration
from torchcaps.training.callbacks import Callback, FunctionCallback
from torchcaps.training.checkpoint import build_model, describe_model, saved_options
from torchcaps.training.defaults import complete_config
from torchcaps.training.device import memory_errors, resolve_device
from torchcaps.training.features import can_store, stored_features, without_augmentation
from torchcaps.training.initial import read_initial
from torchcaps.training.loggers import Row, RunLogger
from torchcaps.training.loop import Trainer
from torchcaps.training.recipes import default_folder, resolve_recipe
from torchcaps.training.run import CALIBRATION_FILE, Run, is_complete, resumed_config
from torchcaps.training.sampling import read_images
from torchcaps.training.summary import training_summary
from torchcaps.training.threads import training_threads


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
        resume: continue the run in `output`, bit for bit on the same machine: with the number of
            threads it was started with. A run whose epochs are all done goes on if `epochs` is larger than before:
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
        device_name = None if config.training.device == "auto" else config.training.device
        config = saved.updated(
            device=device_name,
            root=config.data.root,
            max_bytes=config.data.max_bytes,
            workers=config.data.workers,
        )
    elif ranks.is_main:
        folder.check_new(run)
    device = resolve_device(config.training.device)
    with memory_errors(), training_threads(device, run if resume else None) as choice:
        # Reads the data and builds the model before a folder is made.
        callback = FunctionCallback(should_stop=should_stop)
        trainer = _create_trainer(config, run, device, callback, emit, choice)
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
    ranks.broadcast(None)  # the others wait for what the first process writes
    return run


def _create_trainer(
    config: TrainConfig,
    run: Run,
    device: torch.device,
    callback: Callback,
    emit: Callable[[Row], None] | None,
    message: str,
) -> Trainer:
    """The training of a run, which begins with a message: data read, model built."""
    with main_first():
        config, train_images, val_images = read_images(config, device)
    description = describe_model(
        config.model.name,
        config.model.all_options,
        train_images.classes,
        train_images.preprocess(train_images.img_size, train_images.in_chans, config.data.crop),
        config.task.name,
    )
    initial = read_initial(config, train_images.classes, run.initial_path)

    def build_task() -> Task:
        generator = torch.Generator().manual_seed(config.training.seed)
        model = build_model(description, generator, device=device).to(device)
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
    stores_features = can_store(task, train_images)
    if stores_features:
        without_augmentation(task)
    # A resumed run reads the images as the first start did, also on a machine of other memory.
    storage = "disk" if isinstance(train_images, DiskDataset) else "memory"
    config = complete_config(task, len(train_images)).updated(storage=storage)
    num_images = (len(train_images), len(val_images))
    summary = training_summary(task, config, train_images.name, num_images, device)
    saved = description | {"options": saved_options(task.model)}
    logger = RunLogger(run, config, saved, train_images, val_images, emit, initial)
    if stores_features:
        train_images = stored_features(task, train_images, logger.message)
        val_images = stored_features(task, val_images, logger.message)
    return Trainer(
        task,
        config,
        DatasetBatches(train_images, task, config),
        val_images,
        logger,
        initial_weights=build_weights,
        callbacks=[callback],
        messages=[summary, *train_images.notes, message],
    )
