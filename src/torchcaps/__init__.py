"""torchcaps: capsule networks in PyTorch.

Names are loaded when first used, so that `torchcaps --help` does not wait for torch.
"""

from functools import cache
from typing import Any

__version__ = "0.1.0"


@cache
def _lazy_names() -> Any:
    from torchcaps.registry import lazy_names

    names, load = lazy_names(__name__, __file__)
    return ["__version__", *names], load


def __getattr__(name: str) -> Any:
    names, load = _lazy_names()
    return names if name == "__all__" else load(name)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
