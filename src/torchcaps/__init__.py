"""torchcaps: capsule networks in PyTorch.

Names are loaded when first used, so that `torchcaps --help` does not wait for torch.
"""

from importlib import import_module

__version__ = "0.1.0"

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
_PACKAGES = (
    "data",
    "evaluation",
    "exporting",
    "functional",
    "models",
    "nn",
    "ops",
    "reporting",
    "tasks",
    "testing",
    "training",
    "viz",
)
_NAMES = sorted(["__version__", *_HOMES, *_PACKAGES])
__all__ = list(_NAMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"torchcaps.{_HOMES[name]}"), name)
    if name in _PACKAGES:
        return import_module(f"torchcaps.{name}")
    raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return _NAMES
