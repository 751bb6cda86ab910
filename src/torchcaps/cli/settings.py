"""From a command line to the configuration of a training run.

The flags are derived from the settings themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field, make_dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, get_args, get_origin

import tyro

import torchcaps as tc
from torchcaps.cli.console import UsageError, usage
from torchcaps.errors import ArgumentError

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig

# What a value looks like that is one word of the command line, so that the next word is no part of
# it; by type.
METAVARS: dict[Any, str] = {
    bool: "true|false",
    tuple[int, ...]: "10,20,...",
    tuple[str, ...]: "NAME,...",
    dict[str, Any]: "NAME=VALUE,...",
}
SIZE_METAVAR = "32|32x48"  # of a size, which is a number or a pair
WITHOUT_FLAG = ("model", "model_options")
Settings = Any  # what `settings_class` makes


def settings_class() -> type[Any]:
    """What a command line may change of a recipe: a field for each setting, None without a flag."""
    from torchcaps.data.augment import ordered_augmentations
    from torchcaps.settings import known_settings

    augmentations = ordered_augmentations()
    switches = {name for augmentation in augmentations for name in augmentation.switches}
    flags = []
    for name, setting in known_settings().items():
        has_off = name in switches and setting.type is not bool
        if name not in WITHOUT_FLAG:
            flags.append(_flag(name, setting.about + "; 0 is off" * has_off, setting.type))
    return make_dataclass("Settings", flags, frozen=True)


def _flag(name: str, description: str, kind: Any) -> tuple[str, Any, Any]:
    """Name, annotation and default of a field for tyro."""
    sentence = description[0].upper() + description[1:].removesuffix(".") + "."
    metavar = _metavar(kind)
    if metavar:
        kind = str
    elif get_origin(kind) is Literal:
        kind = Literal[tuple(str(choice) for choice in get_args(kind))]
    flag_help = tyro.conf.arg(help=sentence, metavar=metavar)
    return name, Annotated[Optional[kind], flag_help], field(default=None)  # noqa: UP045 (a value)


def _metavar(kind: Any) -> str | None:
    """What a value looks like that `_parse` reads; None where tyro reads it."""
    if tuple[int, int] in get_args(kind):
        return SIZE_METAVAR
    return METAVARS.get(kind)


def _parse(name: str, word: Any, kind: Any) -> Any:
    """The value of a setting that a word of the command line stands for."""
    metavar = _metavar(kind)
    if metavar is None or word is None:
        return word
    parts = word.split("x" if metavar == SIZE_METAVAR else ",")
    if kind == dict[str, Any]:
        return parse_options(parts)
    if kind == tuple[str, ...]:
        return tuple(parts)
    if kind is bool and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if kind is bool or not all(part.isdecimal() for part in parts):
        raise ArgumentError(name, f"expected {metavar}, got {word}")
    numbers = tuple(int(part) for part in parts)
    return numbers[0] if len(numbers) == 1 and metavar == SIZE_METAVAR else numbers


def fill_bare_flags(arguments: Sequence[str]) -> list[str]:
    """The command line with "true" after every bare flag of a setting that is true or false."""
    from torchcaps.settings import known_settings

    flags = {f"--{name}" for name, setting in known_settings().items() if setting.type is bool}
    filled = []
    for word, next_word in pairwise([*arguments, ""]):
        filled.append(word)
        is_bare = next_word.lower() not in ("true", "false")
        if word[:2] + word[2:].replace("-", "_") in flags and is_bare:
            filled.append("true")
    return filled


def parse_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a command line names; None for the others."""
    from torchcaps.settings import known_settings

    kinds = {name: setting.type for name, setting in known_settings().items()}
    with usage():
        return {name: _parse(name, word, kinds[name]) for name, word in vars(settings).items()}


def resolve(recipe_or_model: str, settings: Settings, option: tuple[str, ...]) -> TrainConfig:
    """The recipe or model of this name, with the changes of the command line.

    Args:
        recipe_or_model: a name, or the path of a `.toml` file.
        settings: of `settings_class`; None for settings that are not named.
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
