"""torchcaps: capsule networks in PyTorch.

Names are loaded when first used, so that `torchcaps --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torchcaps import (
        data,
        evaluation,
        exporting,
        functional,
        models,
        nn,
        ops,
        reporting,
        tasks,
        testing,
        training,
        viz,
    )
    from torchcaps.explorer import explore
    from torchcaps.exporting import export
    from torchcaps.models import create_model, list_models
    from torchcaps.nn import record_routing, set_impl
    from torchcaps.reporting import Predictor, compare, diagnose, evaluate, predict, report
    from torchcaps.reproduction import audit, cross_validate, reproduce
    from torchcaps.training import fit, load, save, train
    from torchcaps.training.classifier import CapsuleClassifier
    from torchcaps.types import Capsules, ModelSpec, Routed

# Names of the top level, and the packages that they are loaded from.
_HOMES = {
    "CapsuleClassifier": "training.classifier",
    "Capsules": "types",
    "ModelSpec": "types",
    "Predictor": "reporting",
    "Routed": "types",
    "audit": "reproduction",
    "create_model": "models",
    "cross_validate": "reproduction",
    "explore": "explorer",
    "export": "exporting",
    "reproduce": "reproduction",
    "report": "reporting",
    "predict": "reporting",
    "evaluate": "reporting",
    "diagnose": "reporting",
    "compare": "reporting",
    "fit": "training",
    "list_models": "models",
    "load": "training",
    "record_routing": "nn",
    "save": "training",
    "set_impl": "nn",
    "train": "training",
}
__all__ = [
    "CapsuleClassifier",
    "Capsules",
    "ModelSpec",
    "Predictor",
    "Routed",
    "__version__",
    "audit",
    "compare",
    "create_model",
    "cross_validate",
    "data",
    "diagnose",
    "evaluate",
    "evaluation",
    "explore",
    "export",
    "exporting",
    "fit",
    "functional",
    "list_models",
    "load",
    "models",
    "nn",
    "ops",
    "predict",
    "record_routing",
    "report",
    "reporting",
    "reproduce",
    "save",
    "set_impl",
    "tasks",
    "testing",
    "train",
    "training",
    "viz",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"torchcaps.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"torchcaps.{name}")
    raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
