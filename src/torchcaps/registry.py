"""Registries: names of routers, models, tasks, data sets and other things that users can add.

One class stands under every registry. An entry is looked up after the package's own files and the
installed plug-ins are imported. A name that is taken is refused unless `replace` is given.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torchcaps.plugins as plugins  # not `from torchcaps`, whose names need this module
from torchcaps.errors import ArgumentError, UnknownNameError, check_known

T = TypeVar("T")
E = TypeVar("E")


class Registry(Mapping[str, T]):
    """Entries of one kind by name, in the order in which they were registered.

    Args:
        kind: of its entries, in words, for error messages: "model", "data set".
        home: module that registers the library's entries when it is imported, or a package of such
            modules, named like their entries. It is imported when a name is first looked up or
            listed; "" where others import it.
        facts: what `register` takes beside a name, with defaults, such as `reads`: names of the
            settings that an entry reads, of those that only some entries of its kind read. A run
            that gives another one of them is refused.

    Example:
        >>> schedules = Registry("schedule")
        >>> @schedules.register("constant")
        ... def constant(progress): return 1.0
        >>> schedules["constant"](0.5)
        1.0
    """

    def __init__(self, kind: str, home: str = "", **facts: Any) -> None:
        self.kind = kind
        self.home = home
        self.facts = {"reads": ()} | facts
        self._entries: dict[str, tuple[T, dict[str, Any]]] = {}  # with their facts
        plugins.SAVES.append(self._save)

    def add(self, name: str, entry: T, *, replace: bool = False, **facts: Any) -> None:
        """Register an entry.

        Args:
            name: of the entry.
            entry: what is registered.
            replace: allow a name that is taken.
            facts: about the entry, by the names of the registry.

        Raises:
            ArgumentError: the name is taken, unless `replace`.
            UnknownNameError: a fact that this kind of entry does not have.
        """
        for fact in facts:
            check_known(f"argument of a {self.kind}", fact, self.facts)
        if name in self._entries and not replace:
            raise ArgumentError(
                self.kind,
                f"{name!r} is registered already; expected another name, or replace=True",
            )
        self._entries[name] = (entry, self.facts | facts)

    def register(self, name: str | None = None, **options: Any) -> Callable[[E], E]:
        """Decorator that registers a function or class, by default under its own name.

        Args:
            name: of the entry.
            options: of `add`: `replace`, and facts about the entry.

        Raises:
            ArgumentError: the name is taken, unless `replace`.
        """

        def decorate(entry: E) -> E:
            self.add(name or entry.__name__, entry, **options)  # type: ignore[attr-defined, arg-type]
            return entry

        return decorate

    def __getitem__(self, name: str) -> T:
        """The entry of a name, also of one that a plug-in adds.

        Raises:
            UnknownNameError: there is no such name.
        """
        if name not in self:
            raise self.unknown(name)
        return self._entries[name][0]

    def fact(self, name: str, fact: str = "reads") -> Any:
        """What was said of an entry when it was registered.

        Args:
            name: of the entry.
            fact: its name.

        Raises:
            UnknownNameError: there is no such entry.
        """
        self[name]  # raises the error for an unknown name
        return self._entries[name][1][fact]

    def unknown(self, name: str) -> UnknownNameError:
        """The error for a name that is not registered; its note is about plug-ins."""
        return UnknownNameError(
            self.kind, name, self._entries, plugins.unknown_note(name, self._entries)
        )

    def _load(self) -> None:
        if self.home:
            import_submodules(self.home)
        plugins.load_entry_points()

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(list(self._entries))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        if name not in self._entries and self.home and str(name).isidentifier():
            file = f"{self.home}.{name}"
            if hasattr(importlib.import_module(self.home), "__path__") and find_spec(file):
                importlib.import_module(file)
        if name not in self._entries:
            self._load()
        return name in self._entries

    def _save(self) -> Callable[[], None]:
        """The function that restores the entries of now.

        A file is imported once, so its entries are to be among them.
        """
        if self.home:
            import_submodules(self.home)
        entries = dict(self._entries)

        def restore() -> None:
            self._entries = entries

        return restore

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the entries at the end of the block, for tests."""
        restore = self._save()
        try:
            yield
        finally:
            restore()

    def registered(self) -> list[T]:
        """The entries so far, without those of plug-ins that are not loaded yet."""
        return [entry for entry, _ in self._entries.values()]

    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self)

    def name_of(self, entry: object) -> str | None:
        """The name under which an entry is registered; None if it is not."""
        for name, (other, _) in self._entries.items():
            if other is entry:
                return name
        return None


def import_submodules(package: str) -> None:
    """Import every module below a package, so that its files register their contents.

    An addition to the package is then one file: no list of imports names it. Modules whose name
    begins with an underscore are left to the modules that need them.

    Args:
        package: its full name, such as "torchcaps.models"; or that of a module, which is imported.
    """
    path = getattr(importlib.import_module(package), "__path__", ())
    for module in pkgutil.iter_modules(path, f"{package}."):
        if not module.name.startswith(f"{package}._"):
            importlib.import_module(module.name)
            if module.ispkg:
                import_submodules(module.name)


def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], object]]:
    """`__all__` and `__getattr__` of a package whose public names are imported when first used.

    Args:
        package: its full name.
        file: path of its `__init__.py`, beside whose stub, `__init__.pyi`, type checkers and this
            function read what is imported from where.

    Returns:
        The public names, and a function that gives one of them, or a module of the package;
        AttributeError where there is no such name.
    """
    text = Path(file).with_suffix(".pyi").read_text("utf-8")
    modules = {}
    # Not by `ast`, which threads of CPython 3.11 cannot always use at once.
    for module, names in re.findall(r"^from (\S+) import (\([^)]*\)|.*)$", text, re.MULTILINE):
        for name in re.findall(r"(\w+) as ", names):
            modules[name] = module

    def load(name: str) -> object:
        home = modules.get(name, package)
        if home != package:
            return getattr(importlib.import_module(home), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return list(modules), load
