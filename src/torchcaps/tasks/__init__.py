"""Tasks that a model is trained for, one file each, and the registries of tasks and losses.

The file of a task is imported when the task, or a name of its file, is first asked for.
"""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)
