"""From a command line to the configuration of a training run. The flags are derived from the settings themselves."""

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

# Settings whose value is one word of the command line, so that the next word is no part of it.
WORDS: dict[Any, str] = {
    bool: "true|false",
    tuple[int, ...]: "10,20,...",
    tuple[str, ...]: "NAME,...",
    dict[str, Any]: "NAME=VALUE,...",
}
POSITIONAL = ("model", "model_options")  # given by other means than a flag of this name


Settings = Any  # what `settings_class` makes


def settings_class() -> type[Any]:
    """What a command line may change of a recipe: a field for each setting, None where no flag is given."""
    from torchcaps.settings import known_settings

    flags = []
    for name, known in known_settings().items():
        has_off = known.group == "augmentation" and known.type is not bool
        if name not in POSITIONAL:
            flags.append(_flag(name, known.about + "; 0 is off" * has_off, known.type))
    return make_dataclass("Settings", flags, frozen=True)


def _flag(name: str, about: str, kind: Any) -> tuple[str, Any, Any]:
    sentence = about[0].upper() + about[1:] + "." * (not about.endswith("."))
    metavar = _metavar(kind)
    flag_help = tyro.conf.arg(help=sentence, metavar=metavar)
    if metavar:
        kind = str
    elif get_origin(kind) is Literal:
        kind = Literal[tuple(str(word) for word in get_args(kind))]
    return name, Annotated[Optional[kind], flag_help], field(default=None)  # noqa: UP045 (the type is a value here)


def _metavar(kind: Any) -> str | None:
    """What a value looks like that is one word for `_read`; None where tyro reads it."""
    return "32|32x48" if tuple[int, int] in get_args(kind) else WORDS.get(kind)


def _read(name: str, word: Any, kind: Any) -> Any:
    """The value of a setting that a word of the command line stands for."""
    metavar = _metavar(kind)
    if metavar is None or word is None:
        return word
    parts = word.split("x" if metavar.startswith("32") else ",")
    if kind == dict[str, Any]:
        return _options(parts)
    if kind == tuple[str, ...]:
        return tuple(parts)
    if kind is bool and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if kind is bool or not all(part.isdecimal() for part in parts):
        raise ArgumentError(name, f"expected {metavar}, got {word}")
    numbers = tuple(int(part) for part in parts)
    return numbers[0] if len(numbers) == 1 and kind not in WORDS else numbers


def fill_bare_flags(arguments: Sequence[str]) -> list[str]:
    """The command line with "true" after every bare flag of a setting that is true or false."""
    from torchcaps.settings import known_settings

    flags = {f"--{name}" for name, known in known_settings().items() if known.type is bool}
    filled = []
    for word, following in pairwise([*arguments, ""]):
        filled.append(word)
        is_bare = following.lower() not in ("true", "false")
        if word[:2] + word[2:].replace("-", "_") in flags and is_bare:
            filled.append("true")
    return filled


def resolve(recipe_or_model: str, settings: Settings, option: tuple[str, ...]) -> TrainConfig:
    """The recipe or model of this name, with the changes of the command line."""
    from torchcaps.settings import known_settings

    config = tc.training.resolve_recipe(recipe_or_model)
    with usage():
        known = known_settings()
        changes = {
            name: _read(name, word, known[name].type) for name, word in vars(settings).items()
        }
        return config.updated(**changes, model_options=config.model.options | _options(option))


def check_unchanged(
    run: tc.training.Run, config: TrainConfig, settings: Settings, option: tuple[str, ...]
) -> None:
    """A resumed run keeps its configuration: UsageError for the first flag, option or model that says otherwise."""
    movable = tc.training.run.RESUME_OVERRIDES
    kept, now = run.config.flat(), config.flat()
    flags = [
        name for name, value in vars(settings).items() if value is not None and name not in movable
    ]
    said = {f"--{name.replace('_', '-')}": (kept[name], now[name]) for name in flags}
    for name, value in _options(option).items():
        said[f"--option {name}"] = kept["model_options"].get(name, "none"), value
    said["recipe or model"] = kept["model"], now["model"]
    for what, (before, given) in said.items():
        if before != given:
            raise UsageError(
                f"{what}: expected {before}, as the run in {run.path} was started, got {given}"
            )


def _options(texts: Sequence[str]) -> dict[str, Any]:
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
