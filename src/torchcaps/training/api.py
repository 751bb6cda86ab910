"""Training by names, which leaves a run folder."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchcaps.data import Dataset
from torchcaps.distributed import current, main_first
from torchcaps.models import model_info
from torchcaps.settings import TrainConfig, known_settings
from torchcaps.tasks import complete_config, create_task, task_class, without_default_changes
from torchcaps.training.calibration import preprocessing
from torchcaps.training.callbacks import Callback, ProgressBar
from torchcaps.training.checkpoint import build_model, describe_model
from torchcaps.training.device import memory_errors, resolve_device
from torchcaps.training.features import can_store, stored_features, without_augmentation
from torchcaps.training.fitting import fit
from torchcaps.training.folder import Interrupted as Interrupted, RunFolder, check_new
from torchcaps.training.initial import InitialWeights
from torchcaps.training.recipes import default_folder, resolve_recipe
from torchcaps.training.run import RESUME_OVERRIDES, Run, is_complete, resumed_config
from torchcaps.training.sampling import read_images
from torchcaps.types import StrPath, set_model_metadata


def train(
    recipe_or_config: StrPath | TrainConfig,
    output: StrPath | None = None,
    resume: bool = False,
    *,
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> Run:
    """Train a model by name and leave a run folder.

    The model of the epoch with the best score on held-out images becomes `model.safetensors`. Where
    this process is one of several (`torchcaps.distributed`), all of them call this, and the first
    one writes. It is `fit` with the callback `RunFolder`.

    Args:
        recipe_or_config: what to run: name of a recipe or of a model, path of a `.toml` file, or a
            configuration. A model by its name alone shifts images by up to 2 pixels (`shift=2`).
            With `resume`, the folder's own configuration is used, and of this one only device,
            graph, root, max_bytes, workers and log, where they are not the defaults.
        output: the run folder; must not hold a run, unless `resume`. By default the next free name
            below `runs`; with `resume` the newest that is taken.
        resume: continue the run in `output`, bit for bit on the same machine: with the number of
            threads it was started with. A run whose epochs are all done goes on if `epochs` is
            larger than before: the added ones have a learning rate of their own, which falls from
            a tenth of the first one to zero along a cosine.
        callbacks: objects that are told of steps and epochs, or names of registered ones; see
            `Callback`. `ProgressBar()` shows what is done.
        settings: of the run, by name, such as `epochs=5`; they take precedence.

    Returns:
        The run, with its folder, metrics and model; see `Run`.

    Raises:
        DataError, RunError, ValueError: for data, folders or settings that cannot be used; no
            folder is made then.
        TrainingError: when the loss becomes non-finite, memory is exhausted or a file cannot be
            written; the last good checkpoint stays, and a folder in which there is none yet is
            removed.
        Interrupted: when a callback stops the training; its state is saved.

    Example:
        >>> run = tc.train("capsnet-digits", epochs=2)
        >>> model = tc.load(run.path)
    """
    ranks = current()
    config = resolve_recipe(recipe_or_config).updated(**settings)
    if output is None:
        output = ranks.broadcast(default_folder(config, recipe_or_config, resume))
    run = Run(output)
    resumed = None
    if resume:
        saved, can_extend = config, False
        if ranks.is_main:
            saved = Run.open(output).config
            can_extend = is_complete(run)
        resumed = resumed_config(ranks.broadcast(saved), settings, ranks.broadcast(can_extend))
        values = config.flat()
        names = [
            name for name in RESUME_OVERRIDES if values[name] != known_settings()[name].default
        ]
        config = resumed.updated(**{name: values[name] for name in names})
    elif ranks.is_main:
        check_new(run)
    device = resolve_device(config.training.device)
    with memory_errors():
        # Reads the data and builds the model before a folder is made.
        with main_first():
            config, train_images, val_images = read_images(config)
        model = _build_model(config, train_images, device)
        initial = None
        if config.model.init is not None:
            classes = train_images.classes
            initial = InitialWeights(model, config.model.init, classes, run.initial_path)
            # The folder has these weights, and its configuration their name.
            config = replace(config, model=replace(config.model, init=None))
        folder = RunFolder(run, train_images, val_images, initial, resumed)
        if can_store(model, train_images):
            task = create_task(model, without_default_changes(config), train_images)
            config = without_augmentation(task.config)
            verbose = any(isinstance(callback, ProgressBar) for callback in callbacks)
            train_images = stored_features(model, train_images, verbose)
            val_images = stored_features(model, val_images, verbose)
        fit(
            model,
            train_images,
            validation=val_images,
            config=config,
            callbacks=[folder, *callbacks],
            verbose=False,
        )
    if folder.end:
        raise folder.end
    ranks.broadcast(None)  # the others wait for what the first process writes
    return run


def resolve_config(recipe_or_config: StrPath | TrainConfig, **settings: Any) -> TrainConfig:
    """The complete configuration of a run, whose `origins` say where values come from.

    The data is read and the model built; nothing is trained.

    Args:
        recipe_or_config: what to run; see `train`.
        settings: of the run, by name; they take precedence.

    Returns:
        The configuration.

    Raises:
        DataError, RunError, ValueError: see `train`.
    """
    config = resolve_recipe(recipe_or_config).updated(**settings)
    config, images, _ = read_images(config)
    model = _build_model(config, images, torch.device("cpu"))
    return complete_config(config, task_class(config.task.name, model, images), model, images)


def _build_model(config: TrainConfig, images: Dataset, device: torch.device) -> nn.Module:
    """The model of a run for its images, with its first weights."""
    description = describe_model(
        config.model.name,
        config.model.all_options,
        images.classes,
        preprocessing(images, config.data.crop),
        config.task.name,
    )
    generator = torch.Generator().manual_seed(config.training.seed)
    model = build_model(description, generator, device=device).to(device)
    task = task_class(config.task.name, model, images)
    if not task.labeled and not model_info(config.model.name).num_classes:
        set_model_metadata(model, classes=())
    return model
