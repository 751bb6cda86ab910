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
    "torchcaps.training.defaults",
    "torchcaps.evaluation",
    "torchcaps.exporting",
    "torchcaps.viz",
    "torchcaps.reporting",
    "torchcaps.testing",
]


def public_names(module):
    """Names that the `__init__` of a module exports."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, member in vars(module).items()
            if not name.startswith("_") and not isinstance(member, ModuleType)
        ]
    return sorted(names)


def surface():
    """Public names of each module."""
    return {name: public_names(import_module(name)) for name in MODULES}


def public_classes():
    """Classes of the library whose names are public, without protocols."""
    classes = set()
    for info in pkgutil.walk_packages(torchcaps.__path__, "torchcaps."):
        for name, member in vars(import_module(info.name)).items():
            is_local = inspect.isclass(member) and member.__module__ == info.name
            if is_local and not name.startswith("_") and not vars(member).get("_is_protocol"):
                classes.add(member)
    return classes


def undocumented_methods(cls):
    return [
        f"{cls.__module__}.{cls.__qualname__}.{name}"
        for name, member in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, property))
        and not inspect.getdoc(getattr(cls, name))
    ]


def test_public_names_are_those_on_the_list():
    assert surface() == json.loads(LIST.read_text(encoding="utf-8"))


def test_every_public_method_has_a_docstring_or_inherits_one():
    classes = public_classes()
    assert len(classes) > 100
    assert not [name for cls in classes for name in undocumented_methods(cls)]


if __name__ == "__main__":
    LIST.write_text(json.dumps(surface(), indent=1) + "\n", encoding="utf-8")
