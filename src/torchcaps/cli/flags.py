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

WORDS = {int: "a whole number", float: "a number"}
SIZE = "32|32x48"  # of a size, which is a number or a pair


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
        name: of the value.
        kind: type of the value.
        default: where the command line does not name it; `Parameter.empty` for none.
        flag: how it is written.
        parameter: of the command, which may hold several arguments.
        is_positional: it is no flag.
    """

    name: str
    kind: Any
    default: Any
    flag: Flag
    parameter: str
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
Threads = Annotated[int | None, Flag("Processor threads; by default torch's choice.")]
Modules = Annotated[
    tuple[str, ...],
    Flag(
        "Module or .py file to import first, which registers things of your own; may be given "
        "several times.",
        "MODULE",
        "import",
        is_rare=True,
    ),
]


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that a value may have, None among them."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def format_type(hint: Any) -> str:
    """What a value of a type looks like in the help: `INT`, `auto|fp32` for words."""
    texts: list[str] = []
    for kind in kinds_of(hint):
        match get_origin(kind) or kind:
            case origin if origin is NoneType:
                pass
            case origin if origin is Literal:
                texts += map(str, get_args(kind))
            case origin if origin is dict:
                texts.append("NAME=VALUE,...")
            case origin if origin is tuple and Ellipsis not in get_args(kind):
                return SIZE
            case origin if origin is tuple:
                texts.append("NAME,..." if str in get_args(kind) else "10,20,...")
            case origin:
                texts.append("PATH" if origin is Path else origin.__name__.upper())
    return "|".join(texts)


def parse_value(hint: Any, word: str) -> Any:
    """The value of a type that a word of the command line stands for.

    Raises:
        argparse.ArgumentTypeError: it stands for none.
    """
    metavar = format_type(hint)
    if metavar == SIZE:
        sides = _parse_numbers(word.split("x"), metavar)
        return sides[0] if len(sides) == 1 else sides
    expected: list[str] = []
    for kind in kinds_of(hint):
        if kind is NoneType:
            continue
        if get_origin(kind) is Literal:
            if word in get_args(kind):
                return word
            expected += get_args(kind)
        elif get_origin(kind) is dict:
            return parse_options(word.split(","))
        elif get_origin(kind) is tuple:
            parts = tuple(word.split(","))
            return parts if str in get_args(kind) else _parse_numbers(parts, metavar)
        elif kind not in WORDS:
            return kind(word)
        else:
            try:
                return kind(word)
            except ValueError:
                expected.append(WORDS[kind])
    *others, last = expected
    choices = f"{', '.join(others)} or {last}" if others else last
    raise argparse.ArgumentTypeError(f"expected {choices}, got {word!r}")


def _parse_numbers(parts: Sequence[str], metavar: str) -> tuple[int, ...]:
    """Whole numbers from words."""
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected {metavar}, got {','.join(parts)!r}")
    return tuple(map(int, parts))


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
            tc.training.threads.set_threads("--threads", count)
