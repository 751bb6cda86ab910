"""torchcaps: capsule networks in PyTorch.

Names are loaded when first used, so that `torchcaps --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torchcaps import bench as bench
    from torchcaps import data as data
    from torchcaps import evaluation as evaluation
    from torchcaps import functional as functional
    from torchcaps import models as models
    from torchcaps import nn as nn
    from torchcaps import ops as ops
    from torchcaps import report as report
    from torchcaps import tasks as tasks
    from torchcaps import testing as testing
    from torchcaps import training as training
    from torchcaps import viz as viz
    from torchcaps.bench import MemoryEstimate as MemoryEstimate
    from torchcaps.bench import estimate_memory as estimate_memory
    from torchcaps.models import create_model as create_model
    from torchcaps.models import list_models as list_models
    from torchcaps.nn import record_routing as record_routing
    from torchcaps.nn import set_impl as set_impl
    from torchcaps.training import fit as fit
    from torchcaps.training import load as load
    from torchcaps.types import Capsules as Capsules
    from torchcaps.types import ModelSpec as ModelSpec
    from torchcaps.types import Routed as Routed

_ROOMS = (
    "bench", "data", "evaluation", "functional", "models", "nn", "ops", "report", "tasks", "testing", "training", "viz",
)  # fmt: skip
_NAMES = {
    "Capsules": "types", "MemoryEstimate": "bench", "ModelSpec": "types", "Routed": "types", "create_model":
    "models", "estimate_memory": "bench", "fit": "training", "list_models": "models", "load": "training",
    "record_routing": "nn", "set_impl": "nn",
}  # fmt: skip
__all__ = [
    "Capsules", "MemoryEstimate", "ModelSpec", "Routed", "__version__", "bench", "create_model", "data",
    "estimate_memory", "evaluation", "fit", "functional", "list_models", "load", "models", "nn", "ops",
    "record_routing", "report", "set_impl", "tasks", "testing", "training", "viz",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"torchcaps.{name}")
    if name in _NAMES:
        return getattr(import_module(f"torchcaps.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
