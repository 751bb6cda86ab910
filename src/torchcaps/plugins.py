"""Plug-ins: modules that add to a registry when they are imported.

An installed package names its module as an entry point of the group `torchcaps.plugins`. Entry
points are loaded when a registry is first asked for its list, or for a name that it does not have.
A plug-in that fails adds nothing. No file that is read, such as a run folder, can cause an import.
"""

import importlib
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from torchcaps.errors import TorchcapsError, one_line

GROUP = "torchcaps.plugins"
SLIP = 0.75  # similarity of a name and a slip of it
# Each saves the state of one registry, and gives the function that restores it.
SAVES: list[Callable[[], Callable[[], None]]] = []
_lock = RLock()
_failures: list[str] = []  # of entry points, one sentence each
_loaded: set[str] = set()  # the group, once its entry points are
_imported: list[str] = []


class PluginError(TorchcapsError, ImportError):
    """A module exists, and its import fails."""


def unknown_note(name: str, names: Iterable[str]) -> str:
    """Why a name may be unknown: a plug-in that is not imported, or could not be loaded.

    Args:
        name: that is unknown.
        names: that are known; one of nearly the same spelling says that this one is a slip.
    """
    if _failures or get_close_matches(name, names, cutoff=SLIP):
        return "; ".join(_failures)
    return "what a plug-in adds needs --import MODULE"


def load_entry_points(tell: Callable[[str], None] | None = None) -> None:
    """Load the installed plug-ins, once.

    Args:
        tell: called with a sentence about each plug-in that fails; by default it warns.
    """
    with _lock:
        if GROUP in _loaded:  # also by a plug-in that asks a registry while it is imported
            return
        _loaded.add(GROUP)
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
            try:
                with _all_or_nothing():
                    plugin = point.load()
                    if callable(plugin):
                        plugin()
            except (Exception, SystemExit) as error:
                owner = f"the package {point.dist.name}" if point.dist else "an unknown package"
                _failures.append(
                    one_line(
                        f"the plug-in {point.name!r} of {owner} cannot be loaded ({_describe(error)})"
                    )
                )
    say = tell or partial(warnings.warn, stacklevel=3)
    for sentence in _failures:
        say(sentence)


def import_module(name: str) -> ModuleType:
    """Import a module, and remember its name for the runs of this process.

    Args:
        name: a dotted name, also of a module in the current folder; or the path of a `.py` file.

    Returns:
        The module.

    Raises:
        ModuleNotFoundError: there is no such module.
        PluginError: its import fails, or another module has the file's name.
    """
    file = Path(name) if name.endswith(".py") else None
    if file and not file.is_file():
        raise ModuleNotFoundError(f"{name}: no such file")
    folder = str(file.resolve().parent if file else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last: what is installed is not hidden by a file of the same name
    importlib.invalidate_caches()
    module = _module_of(file) if file else name
    try:
        with _all_or_nothing():
            loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        # The module itself, or a package that it is in, and not what it imports.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ModuleNotFoundError(
                f"{name}: there is no such module, installed or in {folder}"
            ) from error
        raise PluginError(f"{name}: cannot be imported ({_describe(error)})") from error
    if name not in _imported:
        _imported.append(name)
    return loaded


def load_object(module: str, name: str) -> Any:
    """What a module calls by a name; the module is imported.

    Args:
        module: as `import_module` takes it.
        name: of a class, function or object in it.

    Raises:
        ValueError: there is nothing of this name.
        ModuleNotFoundError: there is no such module.
        PluginError: its import fails.
    """
    loaded = import_module(module)
    if not hasattr(loaded, name):
        raise ValueError(f"{name}: expected a name in {module}, got none of it")
    return getattr(loaded, name)


def imported() -> list[str]:
    """The names that `import_module` has imported."""
    return list(_imported)


def flags(modules: Iterable[str] | None = None) -> str:
    """The `--import` flags of these modules, by default of those that were imported here."""
    names = _imported if modules is None else modules
    return "".join(f" --import {shlex.quote(name)}" for name in names)


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """Restore all registries if the block fails."""
    restores = [save() for save in SAVES]
    try:
        yield
    except BaseException:
        for restore in restores:
            restore()
        raise


def _module_of(file: Path) -> str:
    try:
        spec = None if "." in file.stem else find_spec(file.stem)
    except ValueError:  # such as __main__
        spec = None
    if spec is None or Path(spec.origin or "").resolve() != file.resolve():
        raise PluginError(
            f"{file}: {file.stem!r} is the name of another module, or of none; rename the file"
        )
    return file.stem


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
