"""Tasks that a model is trained for, one file each, and the registries of tasks and losses.

The file of a task is imported when the task, or a name of its file, is first asked for.
"""

from torchcaps.registry import load_name, stub_names

_MODULES = stub_names(__file__)
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    return load_name(__name__, _MODULES, name)
