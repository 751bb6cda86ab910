"""The loop, optimization, checkpoints, resume, the run folder.

Names are loaded when first used, so that a training imports no more than it needs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig as TrainConfig
    from torchcaps.training.allocator import keep_memory as keep_memory
    from torchcaps.training.api import resolve_config as resolve_config, train as train
    from torchcaps.training.callbacks import (
        Callback as Callback,
        ProgressBar as ProgressBar,
        StopWhen as StopWhen,
        register_callback as register_callback,
    )
    from torchcaps.training.checkpoint import OptionError as OptionError, load as load, save as save
    from torchcaps.training.fitting import Fitted as Fitted, fit as fit
    from torchcaps.training.folder import Interrupted as Interrupted, RunFolder as RunFolder
    from torchcaps.training.imported import import_weights as import_weights
    from torchcaps.training.loop import Trainer as Trainer
    from torchcaps.training.optimizers import register_optimizer as register_optimizer
    from torchcaps.training.recipes import (
        Recipe as Recipe,
        Row as Row,
        RunBudget as RunBudget,
        default_folder as default_folder,
        list_recipes as list_recipes,
        load_recipe as load_recipe,
        register_recipe as register_recipe,
        resolve_recipe as resolve_recipe,
    )
    from torchcaps.training.run import Run as Run
    from torchcaps.training.schedules import register_schedule as register_schedule

# Public names, and the modules that they are loaded from.
_HOMES = {
    "TrainConfig": "torchcaps.settings",
    "keep_memory": "torchcaps.training.allocator",
    "resolve_config": "torchcaps.training.api",
    "train": "torchcaps.training.api",
    "Callback": "torchcaps.training.callbacks",
    "ProgressBar": "torchcaps.training.callbacks",
    "StopWhen": "torchcaps.training.callbacks",
    "register_callback": "torchcaps.training.callbacks",
    "OptionError": "torchcaps.training.checkpoint",
    "load": "torchcaps.training.checkpoint",
    "save": "torchcaps.training.checkpoint",
    "Fitted": "torchcaps.training.fitting",
    "fit": "torchcaps.training.fitting",
    "Interrupted": "torchcaps.training.folder",
    "RunFolder": "torchcaps.training.folder",
    "import_weights": "torchcaps.training.imported",
    "Trainer": "torchcaps.training.loop",
    "register_optimizer": "torchcaps.training.optimizers",
    "Recipe": "torchcaps.training.recipes",
    "Row": "torchcaps.training.recipes",
    "RunBudget": "torchcaps.training.recipes",
    "default_folder": "torchcaps.training.recipes",
    "list_recipes": "torchcaps.training.recipes",
    "load_recipe": "torchcaps.training.recipes",
    "register_recipe": "torchcaps.training.recipes",
    "resolve_recipe": "torchcaps.training.recipes",
    "Run": "torchcaps.training.run",
    "register_schedule": "torchcaps.training.schedules",
}
__all__ = [*_HOMES]  # noqa: PLE0604 (names)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
