"""The flag `--import` of the commands, and the modules that runs were started with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import tyro

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import UsageError, note
from torchcaps.cli.flags import RARE, find_values
from torchcaps.errors import TorchcapsError, UnknownNameError, one_line

HELP = (
    "Module or .py file to import first, which registers things of your own; "
    "may be given several times."
)
Modules = Annotated[
    tuple[str, ...],
    RARE,
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="import", metavar="MODULE", help=HELP),
]


def import_modules(arguments: Sequence[str]) -> None:
    """Import plug-ins and the modules that a command line names; they may add flags.

    Args:
        arguments: the command line.

    Raises:
        UsageError: for a module that is not found.
    """
    plugins.load_entry_points(tell=lambda sentence: note(f"torchcaps: warning: {sentence}"))
    for name in find_values("--import", arguments):
        try:
            plugins.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"--import {error}") from error


@contextmanager
def hinted(*arguments: Any) -> Iterator[None]:
    """Where a name is unknown, name the modules that a run was started with and this command not.

    They are never imported by themselves: a file from elsewhere must not choose what code runs
    here.

    Args:
        arguments: of a command; paths among them may be those of runs.

    Raises:
        UsageError: in place of an error that comes from an unknown name.
    """
    try:
        yield
    except TorchcapsError as error:
        if isinstance(error, UnknownNameError) or isinstance(error.__cause__, UnknownNameError):
            flat = chain.from_iterable(
                argument if isinstance(argument, tuple) else (argument,) for argument in arguments
            )
            for path in flat:
                if isinstance(path, Path):
                    _check_imports(path if path.is_dir() else path.parent, error)
        raise


def _check_imports(folder: Path, error: TorchcapsError) -> None:
    """Raise UsageError if a run was started with modules that are not imported here."""
    names = tc.training.Run(folder).environment.get("imports")
    if not isinstance(names, list):
        return
    missing = [name for name in names if isinstance(name, str) and name not in plugins.imported()]
    if missing:
        sentence = one_line(
            f"{error}; {folder} was started with{plugins.flags(missing)}: "
            "give that to this command too, if you trust the module"
        )
        raise UsageError(sentence) from error
