"""The flag `--import` of the commands, and what runs say of the modules that they were started with."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import UsageError, note
from torchcaps.errors import TorchcapsError, UnknownNameError, one_line

HELP = "Module or .py file to import first, which registers things of your own; may be given several times."
Modules = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="import", metavar="MODULE", help=HELP),
]


def importing(command: Callable[..., int]) -> Callable[..., int]:
    """The command with the flag `--import` beside its own; plug-ins are loaded before it begins."""

    @wraps(command)
    def run(*values: Any, modules: tuple[str, ...] = (), **flags: Any) -> int:
        plugins.load_entry_points(tell=lambda sentence: note(f"torchcaps: warning: {sentence}"))
        for name in modules:
            try:
                plugins.import_module(name)
            except ModuleNotFoundError as error:
                raise UsageError(f"--import {error}") from error
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
    del run.__wrapped__  # whose own flags tyro would look at
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
                modules = tc.training.RunFolder(folder).environment().get("imports")
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
