"""The property checks, run one by one on a layer or router from anywhere."""

from collections.abc import Callable
from inspect import isclass
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.nn.routers import Router
from torchcaps.testing.modules import MODULE_CHECKS
from torchcaps.testing.properties import ROUTER_CHECKS
from torchcaps.testing.random import random_capsules
from torchcaps.types import Capsules


class _Layer(nn.Module):
    """A layer whose parents may be a tensor, the poses, of which the lengths are activations."""

    def __init__(self, layer: nn.Module, *, takes_capsules: bool) -> None:
        super().__init__()
        self.layer = layer
        self.takes_capsules = takes_capsules

    def forward(self, children: Capsules) -> Any:
        parents = self.layer(children if self.takes_capsules else children.pose)
        if isinstance(parents, Tensor):
            return Capsules(parents, parents.norm(dim=-1))
        return parents


def check_any(target: Any, children: int = 6, dim: int = 8, **options: Any) -> dict[str, str]:
    """Run every property check on a layer, a class of layers, or a router.

    Args:
        target: a layer, that takes `Capsules` or their poses `[batch, children, dim]`, or the class
            of one; or a router, or a function `(votes, activation) -> Routed`.
        children: number of child capsules.
        dim: dimensions of a child.
        options: arguments of the class, or options of the router.

    Returns:
        By the sentence that states the property: why it does not hold, empty where it does.

    Raises:
        ArgumentError: for options that the class does not take.

    Example:
        >>> from torchcaps.nn import CapsuleLinear
        >>> from torchcaps.testing import check_any
        >>> any(check_any(CapsuleLinear(6, 4, 3, 4), 6, 4).values())
        False
    """
    if isclass(target):
        try:
            target = target(**options)
        except TypeError as error:
            raise ArgumentError("options", f"{target.__name__} takes others ({error})") from error
        options = {}
    checks: Any = ROUTER_CHECKS
    arguments = [target]
    if isinstance(target, nn.Module) and not isinstance(target, Router):
        checks = MODULE_CHECKS
        inputs = random_capsules(3, children, dim)
        layer = _Layer(target.eval(), takes_capsules=_takes_capsules(target, inputs))
        arguments = [layer, inputs]
        options = {}
    return {_first_line(check): _problem(check, *arguments, **options) for check in checks}


def _takes_capsules(layer: nn.Module, inputs: Capsules) -> bool:
    """Whether a layer takes both fields; one that takes poses alone fails on a pair."""
    try:
        with torch.no_grad():
            layer(inputs)
    except (AttributeError, TypeError):
        return False
    return True


def _first_line(check: Callable[..., None]) -> str:
    return (check.__doc__ or check.__name__).partition("\n")[0].removesuffix(".")


def _problem(check: Callable[..., None], *arguments: Any, **options: Any) -> str:
    """Why a check fails; a layer from elsewhere may raise anything."""
    try:
        check(*arguments, **options)
    except Exception as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""
