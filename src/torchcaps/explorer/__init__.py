"""The page that explains a network while you draw: as a file, or by a small server."""

from torchcaps.registry import load_name, stub_names

_MODULES = stub_names(__file__)
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    return load_name(__name__, _MODULES, name)
