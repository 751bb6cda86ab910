"""Flags that several commands have, what a value of a flag looks like, and checks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import torchcaps as tc
from torchcaps.cli.console import UsageError, usage
from torchcaps.errors import check_range


class Flag(NamedTuple):
    """How an argument of a command is written, where its name and type do not say it.

    Attributes:
        help: what it is; by default what the docstring of the command says.
        metavar: its value in the help.
        name: of the flag.
        is_rare: it is in the whole help alone.
        is_list: it takes one value or more at once, where otherwise it is given several times.
        is_word: several values are one word, with commas between them.
    """

    help: str = ""
    metavar: str = ""
    name: str = ""
    is_rare: bool = False
    is_list: bool = False
    is_word: bool = False


class Argument(NamedTuple):
    """An argument of a command line.

    Attributes:
        kind: type of the value.
        default: where the command line does not name it; `Parameter.empty` for none.
        flag: how it is written.
        is_positional: it is no flag.
    """

    kind: Any
    default: Any
    flag: Flag
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
# Arguments of all commands, where they have none of this name.
SHARED = {
    "threads": Argument(int, None, Flag("Processor threads; by default torch's choice.")),
    "modules": Argument(
        tuple[str, ...],
        (),
        Flag(
            "Module or .py file to import first, which registers things of your own; may be given "
            "several times.",
            "MODULE",
            "import",
            is_rare=True,
        ),
    ),
}


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that a value may have, None among them."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def format_type(hint: Any) -> str:
    """What a value of a type looks like in the help: `INT`, `INTxINT`, `auto|fp32` for words."""
    texts: list[str] = []
    for kind in kinds_of(hint):
        parts = get_args(kind)
        if get_origin(kind) is Literal:
            texts += parts
        elif get_origin(kind) is dict:
            texts.append("NAME=VALUE,...")
        elif Ellipsis in parts:
            texts.append(f"{format_type(parts[0])},...")
        elif parts:
            texts.append("x".join(map(format_type, parts)))
        elif kind is not NoneType:
            texts.append(kind.__name__.upper())
    return "|".join(texts)


def parse_value(hint: Any, word: str) -> Any:
    """The value of a type that a word of the command line stands for.

    Raises:
        argparse.ArgumentTypeError: it stands for none. So does an empty word, which comes from a
            variable that is not set; as a path it would be the current folder.
    """
    if not word:
        raise argparse.ArgumentTypeError("expected a value, got an empty word")
    for kind in kinds_of(hint):
        parts = get_args(kind)
        try:
            if get_origin(kind) is Literal:
                if word in parts:
                    return word
            elif get_origin(kind) is dict:
                return parse_options(word.split(","))
            elif Ellipsis in parts:
                return tuple(map(parts[0], word.split(",")))
            elif parts:
                sides = zip(parts, word.split("x"), strict=True)
                return tuple(part(side) for part, side in sides)
            elif kind is not NoneType:
                return kind(word)
        except ValueError:
            pass  # the next one
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


def use_threads(count: int | None) -> None:
    """Let torch take so many processor threads; None leaves its choice."""
    if count is not None:
        with usage():
            tc.training.device.set_threads("--threads", count)
