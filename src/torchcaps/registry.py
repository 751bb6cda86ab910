"""Registries: names of routers, models, tasks, data sets and whatever else can be added from outside.

One class stands under every registry. An entry is found by name after the package's own files and
the installed plug-ins are imported; a name that is taken is refused unless it is replaced on
purpose.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from torchcaps import plugins
from torchcaps.errors import UnknownNameError

T = TypeVar("T")
E = TypeVar("E")


class Registry(Mapping[str, T]):
    """Entries of one kind by name, in the order in which they were registered.

    Args:
        kind: what an entry is, in words, for error messages: "model", "data set".

    Example:
        >>> schedules = Registry("schedule")
        >>> @schedules.register("constant")
        ... def constant(progress): return 1.0
        >>> schedules["constant"](0.5)
        1.0
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T, *, replace: bool = False) -> None:
        """Register an entry. Raises ValueError for a name that is taken, unless `replace`."""
        if name in self._entries and not replace:
            raise ValueError(
                f"{self.kind} {name!r} is registered already; expected another name, or replace=True"
            )
        self._entries[name] = entry

    def register(self, name: str | None = None, *, replace: bool = False) -> Callable[[E], E]:
        """Decorator that registers a function or class, by default under its own name.

        Raises ValueError for a name that is taken, unless `replace`.
        """

        def decorate(entry: E) -> E:
            self.add(name or entry.__name__, entry, replace=replace)  # type: ignore[attr-defined,arg-type]
            return entry

        return decorate

    def __getitem__(self, name: str) -> T:
        """The entry of a name, also of one that a plug-in adds; UnknownNameError where there is none."""
        if name not in self._entries:
            plugins.load_entry_points()
        if name not in self._entries:
            raise self.unknown(name)
        return self._entries[name]

    def unknown(self, name: str) -> UnknownNameError:
        """The error for a name that is not registered; it tells of plug-ins that failed, which may be why."""
        return UnknownNameError(self.kind, name, self._entries, note=plugins.failure_note())

    def __iter__(self) -> Iterator[str]:
        plugins.load_entry_points()
        return iter(list(self._entries))

    def __len__(self) -> int:
        plugins.load_entry_points()
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            plugins.load_entry_points()
        return name in self._entries

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the entries at the end of the block: what it registers is forgotten. For tests."""
        before = dict(self._entries)
        try:
            yield
        finally:
            self._entries.clear()
            self._entries.update(before)

    def registered(self) -> list[T]:
        """The entries so far, without those of plug-ins that are not loaded yet."""
        return list(self._entries.values())

    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self)

    def name_of(self, entry: object) -> str | None:
        """The name under which an entry is registered; None where it is not."""
        return next((name for name, other in self._entries.items() if other is entry), None)


def import_submodules(package: str) -> None:
    """Import every module below a package, so that its files register what they hold.

    An addition to the package is then one file: no list of imports names it. Modules whose name
    begins with an underscore are left to the modules that need them.
    """
    path = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(path, f"{package}."):
        if not module.name.removeprefix(package).startswith("._"):
            importlib.import_module(module.name)
            if module.ispkg:
                import_submodules(module.name)
