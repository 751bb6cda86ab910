"""From a command line to the configuration of a training run.

The flags are derived from the settings themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional, get_args, get_origin

import tyro

import torchcaps as tc
from torchcaps.cli.console import UsageError, usage
from torchcaps.cli.flags import format_type
from torchcaps.errors import ArgumentError

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig

# What a value looks like that is one word of the command line, so that the next word is no part of
# it; by type.
METAVARS: dict[Any, str] = {
    tuple[int, ...]: "10,20,...",
    tuple[str, ...]: "NAME,...",
}
SIZE_METAVAR = "32|32x48"  # of a size, which is a number or a pair
WITHOUT_FLAG = ("model", "model_options", "extended_at")
# Settings in the short help, `--help`; `--help-all` has all of them.
COMMON = frozenset(
    {
        "data",
        "img_size",
        "skip_damaged",
        "init",
        "backbone",
        "lr",
        "epochs",
        "batch_size",
        "device",
        "seed",
    }
)
Settings = Mapping[str, Any]  # the settings that a command line names


def settings_class(short_help: bool = False) -> type[Any]:
    """What a command line may change of a recipe: a field for each setting, with its default.

    Args:
        short_help: leave out all settings but the common ones, and all of their descriptions but
            the first clause.
    """
    from torchcaps.data.augment import ordered_augmentations
    from torchcaps.settings import TrainConfig, known_settings

    augmentations = ordered_augmentations()
    switches = {name for augmentation in augmentations for name in augmentation.switches}
    defaults = TrainConfig().flat()
    flags = []
    for name, setting in known_settings().items():
        if name in WITHOUT_FLAG or (short_help and name not in COMMON):
            continue
        about = setting.about
        if short_help:
            about = about.partition(";")[0]
        elif name in switches and setting.type is not bool:
            about += "; 0 is off"
        flags.append(_flag(name, about, setting.type, defaults[name]))
    return make_dataclass("Settings", flags, frozen=True)


def _flag(name: str, about: str, kind: Any, default: Any) -> tuple[str, Any, Any]:
    """Name, annotation and default of a field for tyro."""
    starts_with_value = re.match(r"\w+[:,]", about)
    sentence = about if starts_with_value else about[0].upper() + about[1:]
    hint = (
        ""
        if default is None or default in ("", (), {}) or isinstance(default, bool)
        else f"(default: {default})"
    )
    metavar = _metavar(kind)
    if metavar:
        kind = Optional[str]  # noqa: UP045 (a value)
        default = None
    elif kind is not bool:
        metavar = format_type(kind)
    argument = tyro.conf.arg(
        help=sentence.removesuffix(".") + ".", metavar=metavar, help_behavior_hint=hint
    )
    return name, Annotated[kind, argument], field(default=default)


def _metavar(kind: Any) -> str | None:
    """What a value looks like that `_parse` reads; None where tyro reads it."""
    if tuple[int, int] in get_args(kind):
        return SIZE_METAVAR
    if get_origin(kind) is dict:
        return "NAME=VALUE,..."
    return METAVARS.get(kind)


def _parse(name: str, word: Any, kind: Any) -> Any:
    """The value of a setting that a word of the command line stands for."""
    metavar = _metavar(kind)
    if metavar is None:
        return word
    parts = word.split("x" if metavar == SIZE_METAVAR else ",")
    if get_origin(kind) is dict:
        return parse_options(parts)
    if kind == tuple[str, ...]:
        return tuple(parts)
    if not all(part.isdecimal() for part in parts):
        raise ArgumentError(name, f"expected {metavar}, got {word}")
    numbers = tuple(int(part) for part in parts)
    return numbers[0] if len(numbers) == 1 and metavar == SIZE_METAVAR else numbers


def named_settings(settings: Any, arguments: Sequence[str]) -> Settings:
    """The settings that a command line names.

    Args:
        settings: of `settings_class`, with defaults for the others.
        arguments: the command line.
    """
    flags = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    names = {flag.removeprefix("--").replace("-", "_") for flag in flags}
    return {
        name: word
        for name, word in vars(settings).items()
        if name in names or f"no_{name}" in names
    }


def parse_settings(settings: Settings) -> dict[str, Any]:
    """Values of the settings that a command line names."""
    from torchcaps.settings import known_settings

    known = known_settings()
    with usage():
        return {name: _parse(name, word, known[name].type) for name, word in settings.items()}


def resolve(recipe_or_model: str, settings: Settings, option: tuple[str, ...]) -> TrainConfig:
    """The recipe or model of this name, with the changes of the command line.

    Args:
        recipe_or_model: a name, or the path of a `.toml` file.
        settings: those that the command line names, see `named_settings`.
        option: options of the model, "name=value" each.

    Raises:
        UsageError: for a setting or an option that cannot be used.
        UnknownNameError: for a name that is neither a recipe's nor a model's.
    """
    config = tc.training.resolve_recipe(recipe_or_model)
    changes = parse_settings(settings)
    options = config.model.options | parse_options(option)
    with usage():
        return config.updated(**changes, model_options=options)


def format_recipe(config: TrainConfig, title: str) -> str:
    """A recipe that runs a configuration, the text of a `.toml` file; a comment has each origin.

    Args:
        config: of the run.
        title: of the recipe.
    """
    lines = [f"title = {json.dumps(title)}", 'published = "none"', "", "[run]"]
    options = []
    for name, value in config.flat().items():
        origin = config.origins.get(name, "default")
        if isinstance(value, dict) and value:
            options += ["", f"[run.{name}]  # {origin}"]
            options += [f"{key} = {json.dumps(option)}" for key, option in value.items()]
        elif value is not None and value != {}:
            lines.append(f"{name} = {json.dumps(value)}  # {origin}")
    return "\n".join([*lines, *options])


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """{"iterations": 2} from "iterations=2"; a value that is no JSON is text."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, word = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--option: expected name=value, got {text!r}")
        if word in ("True", "False"):
            word = word.lower()
        try:
            options[name] = json.loads(word)
        except json.JSONDecodeError:
            options[name] = word
    return options
