"""Flags that several commands have, and their checks."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

import torchcaps as tc
from torchcaps.cli.console import usage
from torchcaps.errors import check_range

RARE = "rare"  # mark of a flag that is in the whole help alone
Run = Annotated[
    Path, tyro.conf.Positional, tyro.conf.arg(help="A run folder, or a model.safetensors file.")
]
_RUN_OR_OURS_HELP = (
    "A run folder, or a model.safetensors file; by default a network that comes with the package."
)
RunOrOurs = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(help=_RUN_OR_OURS_HELP)]
Data = Annotated[
    str | None, tyro.conf.arg(help="Data set, by name or path; by default the run's own.")
]
Root = Annotated[
    str | None, tyro.conf.arg(help="Folder that is searched first for a named data set.")
]
Device = Annotated[str, tyro.conf.arg(help="auto, cpu, cuda, ...")]
Json = Annotated[bool, tyro.conf.arg(help="Print JSON instead of text.")]
Threads = Annotated[
    int | None,
    tyro.conf.arg(
        help="Processor threads; by default torch's choice.", metavar="INT", help_behavior_hint=""
    ),
]


def format_type(hint: Any) -> str:
    """What a value of a type looks like in the help: `INT`, `auto|fp32` for words."""
    if hint is NoneType:
        return ""
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return "|".join(filter(None, map(format_type, get_args(hint))))
    return "PATH" if hint is Path else str(hint.__name__).upper()


def find_values(flag: str, arguments: Sequence[str]) -> list[str]:
    """The values of a flag in a command line that is not parsed yet.

    Args:
        flag: with its two hyphens.
        arguments: the command line.
    """
    values = []
    for word, next_word in pairwise([*arguments, ""]):
        if word.startswith(f"{flag}="):
            values.append(word.removeprefix(f"{flag}="))
        elif word == flag and next_word:
            values.append(next_word)
    return values


def check_flag(flag: str, number: float, low: float, high: float | None = None) -> None:
    """Raise UsageError unless low <= number <= high."""
    with usage():
        check_range(flag, number, low, high)


def use_threads(count: int | None) -> None:
    """Let torch take so many processor threads; None leaves its choice."""
    if count is not None:
        with usage():
            tc.training.threads.set_threads("--threads", count)
