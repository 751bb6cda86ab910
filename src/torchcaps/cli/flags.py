"""Flags that several commands have, and their checks."""

from pathlib import Path
from typing import Annotated

import tyro

import torchcaps as tc
from torchcaps.cli.console import usage
from torchcaps.errors import check_range

Run = Annotated[
    Path, tyro.conf.Positional, tyro.conf.arg(help="A run folder, or a model.safetensors file.")
]
_HELP = (
    "A run folder, or a model.safetensors file; without one, a network that comes with the package."
)
RunOrOurs = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(help=_HELP)]
Data = Annotated[
    str | None, tyro.conf.arg(help="Another data set than the run's own, by name or path.")
]
Root = Annotated[
    str | None, tyro.conf.arg(help="Folder in which a named data set is looked for first.")
]
Device = Annotated[str, tyro.conf.arg(help="auto, cpu, cuda, ...")]
Json = Annotated[bool, tyro.conf.arg(help="Print JSON instead of text.")]

Threads = Annotated[int | None, tyro.conf.arg(help="Processor threads; by default torch's choice.")]


def in_range(flag: str, value: float, low: float, high: float | None = None) -> None:
    """Raise UsageError unless low <= value <= high."""
    with usage():
        check_range(flag, value, low, high)


def use_threads(count: int | None) -> None:
    """Let torch take so many processor threads; None leaves its choice."""
    if count is not None:
        import torch

        with usage():
            torch.set_num_threads(tc.training.environment.check_threads("--threads", count))
