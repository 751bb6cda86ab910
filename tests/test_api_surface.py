"""The public names and their docstrings.

Removing or adding a name is a decision: `python tests/test_api_surface.py` writes the list anew.
"""

import inspect
import json
import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torchcaps

LIST = Path(__file__).with_name("api_surface.json")
MODULES = [
    "torchcaps",
    "torchcaps.functional",
    "torchcaps.nn",
    "torchcaps.models",
    "torchcaps.data",
    "torchcaps.training",
    "torchcaps.evaluation",
    "torchcaps.viz",
    "torchcaps.reporting",
    "torchcaps.testing",
]


def surface() -> dict[str, list[str]]:
    """Public names of each module, as its `__init__` re-exports them."""
    found = {}
    for name in MODULES:
        module = import_module(name)
        names = getattr(module, "__all__", None) or [
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and not isinstance(value, ModuleType)
        ]
        found[name] = sorted(names)
    return found


def test_public_names_are_those_on_the_list():
    assert surface() == json.loads(LIST.read_text(encoding="utf-8"))


def test_every_public_method_has_a_docstring_or_inherits_one():
    modules = [
        import_module(found.name)
        for found in pkgutil.walk_packages(torchcaps.__path__, "torchcaps.")
    ]
    classes = {
        value
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not vars(value).get("_is_protocol")
    }
    assert len(classes) > 100
    bare = [
        f"{cls.__module__}.{cls.__qualname__}.{name}"
        for cls in classes
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property))
        and not inspect.getdoc(getattr(cls, name))
    ]
    assert not bare


if __name__ == "__main__":
    LIST.write_text(json.dumps(surface(), indent=1) + "\n", encoding="utf-8")
