"""The flag `--import` of the commands, and what runs say of the modules that they were started with."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import UsageError, note
from torchcaps.cli.settings import settings_class
from torchcaps.errors import TorchcapsError, UnknownNameError, one_line

HELP = "Module or .py file to import first, which registers things of your own; may be given several times."
Modules = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="import", metavar="MODULE", help=HELP),
]


def importing(command: Callable[..., int], arguments: Sequence[str]) -> Callable[..., int]:
    """The command with the flag `--import` beside its own.

    Plug-ins and the modules that `arguments` name are imported first, for they may add flags. Raises UsageError for a
    module that is not found.
    """
    plugins.load_entry_points(tell=lambda sentence: note(f"torchcaps: warning: {sentence}"))
    for name in _imports(arguments):
        try:
            plugins.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"--import {error}") from error

    @wraps(command)
    def run(*values: Any, modules: tuple[str, ...] = (), **flags: Any) -> int:
        del modules  # which are imported already
        with hinted(*values, *flags.values()):
            return command(*values, **flags)

    signature = inspect.signature(command)
    flag = inspect.Parameter(
        "modules", inspect.Parameter.KEYWORD_ONLY, default=(), annotation=Modules
    )
    vars(run)["__signature__"] = signature.replace(
        parameters=[*signature.parameters.values(), flag]
    )
    run.__annotations__ = get_type_hints(command, include_extras=True) | {"modules": Modules}
    if run.__annotations__.get("settings") is Any:
        run.__annotations__["settings"] = settings_class()
    del run.__wrapped__  # whose own flags tyro would look at
    return run


def _imports(arguments: Sequence[str]) -> list[str]:
    """The values of `--import` in a command line."""
    return [
        word.removeprefix("--import=") if word.startswith("--import=") else following
        for word, following in pairwise([*arguments, ""])
        if word.startswith("--import=") or (word == "--import" and following)
    ]


def described(command: Callable[..., int]) -> Callable[[], int]:
    """A command that is not called: its help's first line, without the flags, which would have to import torch."""

    def run() -> int:
        raise AssertionError("the command that is called has flags")

    run.__doc__ = command.__doc__
    return run


@contextmanager
def hinted(*arguments: Any) -> Iterator[None]:
    """Where a name is unknown, say which modules the runs among the arguments were started with and this command not.

    They are never imported by themselves: a file from elsewhere must not choose what code runs here. UsageError takes
    the place of an error that comes from an unknown name.
    """
    try:
        yield
    except TorchcapsError as error:
        if isinstance(error, UnknownNameError) or isinstance(error.__cause__, UnknownNameError):
            values = chain.from_iterable(
                value if isinstance(value, tuple) else (value,) for value in arguments
            )
            for path in (value for value in values if isinstance(value, Path)):
                folder = path if path.is_dir() else path.parent
                modules = tc.training.Run(folder).environment.get("imports")
                names = modules if isinstance(modules, list) else []
                if missing := [
                    name
                    for name in names
                    if isinstance(name, str) and name not in plugins.imported()
                ]:
                    start = f"{error}; {folder} was started with{plugins.flags(missing)}"
                    sentence = one_line(
                        f"{start}: give that to this command too, if you trust the module"
                    )
                    raise UsageError(sentence) from error
        raise
