"""The public names. Removing or adding one is a decision: `python tests/test_api_surface.py` writes the list anew."""

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

LIST = Path(__file__).with_name("api_surface.json")
MODULES = [
    "torchcaps", "torchcaps.functional", "torchcaps.nn", "torchcaps.models", "torchcaps.data", "torchcaps.training",
    "torchcaps.evaluation", "torchcaps.viz", "torchcaps.report", "torchcaps.testing",
]  # fmt: skip


def surface() -> dict[str, list[str]]:
    """Public names of each module, as its `__init__` re-exports them."""
    found = {}
    for name in MODULES:
        module = import_module(name)
        names = getattr(module, "__all__", None) or [
            key for key, value in vars(module).items() if not key.startswith("_") and not isinstance(value, ModuleType)
        ]
        found[name] = sorted(names)
    return found


def test_public_names_are_those_on_the_list():
    assert surface() == json.loads(LIST.read_text(encoding="utf-8"))


if __name__ == "__main__":
    LIST.write_text(json.dumps(surface(), indent=1) + "\n", encoding="utf-8")
