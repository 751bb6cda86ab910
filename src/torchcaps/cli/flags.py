"""Flags that several commands have, what a value of a flag looks like, and checks."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import torchcaps as tc
from torchcaps.cli.console import UsageError, usage
from torchcaps.errors import check_range


class Flag(NamedTuple):
    """An argument of a command line; a command annotates what its signature does not say.

    Attributes:
        help: what it is; by default what the docstring of the command says.
        metavar: its value in the help.
        name: of the flag.
        is_rare: it is in the whole help alone.
        is_list: it takes one value or more at once, where otherwise it is given several times.
        has_negation: of a switch, whether `--no-NAME` is a flag too, although it is off by default.
        kind: type of the value; of a `Sequence`, each value is a word.
        default: where the command line does not name it; `Parameter.empty` for none.
        is_positional: it is no flag.
    """

    help: str = ""
    metavar: str = ""
    name: str = ""
    is_rare: bool = False
    is_list: bool = False
    has_negation: bool = False
    kind: Any = str
    default: Any = None
    is_positional: bool = False


RARE = Flag(is_rare=True)
Run = Annotated[Path, Flag("A run folder, or a model.safetensors file.")]
RunOrOurs = Annotated[
    Path | None,
    Flag(
        "A run folder, or a model.safetensors file; by default a network that comes with the "
        "package."
    ),
]
Data = Annotated[str | None, Flag("Data set, by name or path; by default the run's own.")]
Root = Annotated[str | None, Flag("Folder that is searched first for a named data set.")]
Device = Annotated[str, Flag("auto, cpu, cuda, ...")]
Json = Annotated[bool, Flag("Print JSON instead of text.")]
Settings = Mapping[str, Any]  # the settings that a command line names
# Arguments of all commands, where they have none of this name.
SHARED = {
    "threads": Flag("Processor threads; by default torch's choice.", kind=int),
    "modules": Flag(
        "Module or .py file to import first, which registers things of your own; may be given "
        "several times.",
        "MODULE",
        "import",
        is_rare=True,
        kind=Sequence[str],
        default=(),
    ),
}
WITHOUT_FLAG = ("model", "model_options", "extended_at")  # settings
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


def list_settings(is_short: bool) -> dict[str, Flag]:
    """The settings that a command line may change, by name.

    Args:
        is_short: describe each by its first clause.
    """
    from torchcaps.data.augment import ordered_augmentations
    from torchcaps.settings import known_settings

    augmentations = ordered_augmentations()
    switches = {name for augmentation in augmentations for name in augmentation.switches}
    flags = {}
    for name, setting in known_settings().items():
        if name in WITHOUT_FLAG:
            continue
        about = setting.about
        if is_short:
            about = about.partition(";")[0]
        elif name in switches and setting.type is not bool:
            about += "; 0 is off"
        if not re.match(r"\w+[:,]", about):  # a value comes first
            about = about[0].upper() + about[1:]
        flags[name] = Flag(
            about.removesuffix(".") + ".",
            is_rare=name not in COMMON,
            has_negation=True,
            kind=setting.type,
            default=setting.default,
        )
    return flags


def kinds_of(hint: Any) -> list[Any]:
    """The types that a value may have, but None."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [kind for kind in kinds if kind is not NoneType]


def _form_of(kind: Any) -> tuple[str, Callable[[str], Any]]:
    """What a word of a type looks like, and the function that reads it; ValueError for another."""
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return "|".join(parts), lambda word: parts[parts.index(word)]
    if get_origin(kind) is dict:
        return "NAME=VALUE,...", lambda word: parse_options(word.split(","))
    if Ellipsis in parts:
        return f"{format_type(parts[0])},...", lambda word: tuple(map(parts[0], word.split(",")))
    if not parts:
        return kind.__name__.upper(), kind

    def read_sides(word: str) -> tuple[Any, ...]:
        return tuple(part(side) for part, side in zip(parts, word.split("x"), strict=True))

    return "x".join(map(format_type, parts)), read_sides


def format_type(hint: Any) -> str:
    """What a value of a type looks like in the help: `INT`, `INTxINT`, `auto|fp32` for words."""
    return "|".join(_form_of(kind)[0] for kind in kinds_of(hint))


def parse_value(hint: Any, word: str) -> Any:
    """The value of a type that a word of the command line stands for.

    Raises:
        argparse.ArgumentTypeError: it stands for none. So does an empty word, which comes from a
            variable that is not set; as a path it would be the current folder.
    """
    if not word:
        raise argparse.ArgumentTypeError("expected a value, got an empty word")
    for kind in kinds_of(hint):
        with suppress(ValueError):  # the next one
            return _form_of(kind)[1](word)
    raise argparse.ArgumentTypeError(f"expected {format_type(hint)}, got {word!r}")


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """{"iterations": 2} from "iterations=2"; a value that is no JSON is text.

    Raises:
        UsageError: a text has no name or no value.
    """
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


def check_flag(flag: str, number: float, low: float, high: float | None = None) -> None:
    """Raise UsageError unless low <= number <= high."""
    with usage():
        check_range(flag, number, low, high)


def use_threads(count: int) -> None:
    """Let torch take so many processor threads."""
    with usage():
        tc.training.threads.set_threads("--threads", count)
