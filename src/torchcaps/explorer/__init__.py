"""The interactive page: draw, and watch the capsules. `Session` is the model's side."""

from torchcaps.registry import load_name, stub_names

_MODULES = stub_names(__file__)
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    return load_name(__name__, _MODULES, name)
