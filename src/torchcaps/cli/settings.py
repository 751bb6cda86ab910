"""From a command line to the configuration of a training run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchcaps.cli.console import UsageError, usage

if TYPE_CHECKING:
    from torchcaps.training import RunFolder, TrainConfig


@dataclass(frozen=True)
class Settings:
    """What a command line may change of a recipe; what is not given stays as the recipe has it."""

    data: str | None = None
    """Name of a data set (`torchcaps data list`), or a path: class folders, .npz, .csv, IDX files, ..."""
    root: str | None = None
    """Folder in which a named data set is looked for first."""
    max_bytes: int | None = None
    """Memory that the files of the data set may expand to; by default 256 MiB, or 32 times their size on disk."""
    img_size: tuple[int, int] | None = None
    """Resize images to this height and width."""
    crop: int | None = None
    """Cut windows of this side out of them: anywhere in training, in the middle otherwise."""
    epochs: int | None = None
    """Passes over the training images."""
    epoch_size: int | None = None
    """Images of an epoch; by default all, once."""
    per_class: int | None = None
    """Labelled images of each class to train with; by default all."""
    batch_size: int | None = None
    """Images per step; by default 8 to 128, as suits the number of images."""
    lr: float | None = None
    """Peak learning rate of Adam."""
    schedule: Literal["short", "paper", "constant"] | None = None
    """Learning rate over time."""
    holdout: float | None = None
    """Training images kept for validation: a fraction below 1, or a count."""
    stop_at: float | None = None
    """End the training at this validation accuracy."""
    loss: Literal["auto", "margin", "spread", "cross_entropy"] | None = None
    """auto is what the model's paper has."""
    reconstruction: float | None = None
    """Weight of the reconstruction loss; 0 leaves it out."""
    shift: int | None = None
    """Largest random shift in pixels."""
    flip: bool | None = None
    """Mirror half of the training images."""
    degrees: float | None = None
    """Largest random rotation."""
    zoom: float | None = None
    """Largest random change of size, as a fraction."""
    relight: bool | None = None
    """Vary brightness and contrast."""
    clip: float | Literal["auto"] | None = None
    """Largest norm of the gradient; 0 is none, auto is 1 for the margin loss."""
    precision: Literal["auto", "fp32", "bf16"] | None = None
    """auto is bf16 where the hardware multiplies it."""
    device: str | None = None
    """auto, cpu, cuda, cuda:1, ..."""
    seed: int | None = None
    """Of weights, order, augmentation and split."""
    checkpoint_every: int | None = None
    """Steps between checkpoints."""


def resolve(recipe_or_model: str, settings: Settings, option: tuple[str, ...]) -> TrainConfig:
    """The recipe or model of this name, with the changes of the command line.

    Raises:
        UsageError: for a value out of range or an option that is not name=value.
        UnknownNameError: for a name that is neither.
        RunError: for a recipe file that cannot be read as one.
    """
    from torchcaps import models, plugins, training

    if recipe_or_model in models.list_models():
        config: training.Config = training.TrainConfig(model=recipe_or_model)
    elif recipe_or_model in training.list_recipes() or recipe_or_model.endswith(".toml"):
        config = training.load_recipe(recipe_or_model).config
    else:
        known = [*models.list_models(), *training.list_recipes()]
        raise plugins.unknown("recipe or model", recipe_or_model, known)
    if not isinstance(config, training.TrainConfig):
        raise UsageError(f"{recipe_or_model}: trains no classifier; run it with torchcaps reproduce {recipe_or_model}")
    with usage():
        return config.updated(**vars(settings), model_options=config.model_options | _options(option))


def default_folder(config: TrainConfig, recipe_or_model: str, resume: bool) -> Path:
    """runs/NAME, or runs/NAME-2, ...: the newest that exists when resuming, else the first free one."""
    stem = Path(recipe_or_model).stem
    data = Path(config.data).name.split(".")[0]
    name = stem if data in stem or stem.endswith(data.split("-")[0]) else f"{stem}-{data}"
    taken, number = Path("runs") / name, 2
    folder = taken
    while folder.exists():
        taken, folder, number = folder, Path("runs") / f"{name}-{number}", number + 1
    return taken if resume else folder


def check_unchanged(run: RunFolder, config: TrainConfig, settings: Settings, option: tuple[str, ...]) -> None:
    """A resumed run keeps its configuration: refuse flags, options or a model that say otherwise.

    Raises:
        UsageError: for the first that does.
        RunError: if the run's configuration cannot be read.
    """
    from torchcaps.training.run_folder import MOVABLE

    kept = run.config()
    given = {name: value for name, value in vars(settings).items() if value is not None and name not in MOVABLE}
    for name, value in given.items():
        _refuse_change(run, f"--{name.replace('_', '-')}", getattr(kept, name), value)
    for name, value in _options(option).items():
        _refuse_change(run, f"--option {name}", kept.model_options.get(name, "none"), value)
    _refuse_change(run, "recipe or model", kept.model, config.model)


def _refuse_change(run: RunFolder, what: str, kept: object, given: object) -> None:
    if kept != given:
        raise UsageError(f"{what}: expected {kept}, as the run in {run.path} was started, got {given}")


def _options(texts: tuple[str, ...]) -> dict[str, Any]:
    """{"iterations": 2} from "iterations=2"; a value that is no JSON is text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--option: expected name=value, got {text!r}")
        try:
            found[name] = json.loads(value.lower() if value in ("True", "False") else value)
        except json.JSONDecodeError:
            found[name] = value
    return found
