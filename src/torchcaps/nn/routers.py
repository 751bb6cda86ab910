"""Routers: a routing function with its options (and, where it learns, its parameters) as a small module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps import functional, ops
from torchcaps.errors import UnknownNameError, check_range
from torchcaps.types import Routed

RouteFunction = Callable[..., Routed]
_ROUTERS: dict[str, type[Router]] = {}
MOST_ITERATIONS = 100  # of a layer: a file may ask for any number; the functions take any
R = TypeVar("R", bound="type[Router]")


def register_router(name: str) -> Callable[[R], R]:
    """Class decorator: makes a router known as `name` to `CapsuleLinear`, the shared tests and the command line."""

    def register(cls: R) -> R:
        _ROUTERS[name] = cls
        return cls

    return register


def list_routers() -> list[str]:
    """Names that `CapsuleLinear(routing=...)` accepts."""
    return sorted(_ROUTERS)


def create_router(routing: str | nn.Module | RouteFunction, **options: Any) -> Router:
    """A router from a name with options, from a router module, or from a function `(votes, activation) -> Routed`.

    Raises:
        ValueError: for an unknown name. TypeError: for an option that this router does not take.
    """
    if isinstance(routing, str):
        if routing not in _ROUTERS:
            raise UnknownNameError("routing", routing, _ROUTERS)
        known = list(inspect.signature(_ROUTERS[routing]).parameters)
        for option in options:
            if option not in known:
                raise TypeError(
                    f"routing {routing!r} takes no option {option!r}; it takes: {', '.join(known) or 'none'}"
                )
        return _ROUTERS[routing](**options)
    if options:
        raise TypeError(f"routing: options ({', '.join(options)}) go with a name, not with {type(routing).__name__}")
    if isinstance(routing, Router):
        return routing
    if callable(routing):
        return FunctionRouter(routing)
    raise TypeError(f"routing: expected a name, a module or a function, got {type(routing).__name__}")


def check_iterations(iterations: int) -> None:
    """Raise ValueError unless a layer may have this number of iterations, from 1 to 100; TypeError for no int."""
    if isinstance(iterations, bool) or not isinstance(iterations, int):
        raise TypeError(f"iterations: expected a whole number, got {iterations!r}")
    check_range("iterations", iterations, low=1)
    check_range("iterations", iterations, high=MOST_ITERATIONS)


class Router(nn.Module):
    """Base of routers. A subclass writes `forward`; one with a path that skips the votes also writes `linear`.

    Attributes:
        exchangeable: children and parents may be numbered in any order: the outcome moves with them. Not so where
            couplings belong to their places, as fixed random ones do.
    """

    exchangeable: bool = True

    def forward(
        self,
        votes: Float[Tensor, "*batch children parents dim"],
        activation: Float[Tensor, "*batch children"],
        bias: Float[Tensor, "parents dim"] | None = None,
    ) -> Routed:
        """Route votes `[batch, *space, children, parents, dim]`; activation is the children's, in [0, 1]."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it routes")

    def linear(
        self,
        pose: Tensor,
        activation: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        want_coupling: bool = True,
    ) -> Routed:
        """Linear votes of `pose` by `weight`, then this routing. `want_coupling=False` lets a fast path omit it."""
        del want_coupling  # votes that are stored give the coupling for nothing
        return self(functional.linear_votes(pose, weight), activation, *(() if bias is None else (bias,)))


@register_router("dynamic")
class DynamicRouting(Router):
    """`functional.dynamic_routing` with its options; with a fast path, it never stores the votes of a linear layer.

    Args:
        iterations: from 1 to 100; the paper uses 3.
        leaky: give each child a "none of the above" parent.
        detach: send no gradient through the coupling.
        impl: "auto", "reference", "cpu", "numba" or "triton"; see `torchcaps.ops`.
    """

    operators = ("routed_dynamic", "dynamic_routing")

    def __init__(
        self, iterations: int = 3, *, leaky: bool = False, detach: bool = False, impl: ops.Impl = "auto"
    ) -> None:
        super().__init__()
        check_iterations(iterations)
        self.iterations, self.leaky, self.detach, self.impl = iterations, leaky, detach, impl

    def forward(self, votes: Tensor, activation: Tensor, bias: Tensor | None = None) -> Routed:
        """Route votes `[batch, *space, children, parents, dim]`; the children's lengths are in the votes already."""
        del activation
        return ops.dynamic_routing(
            votes, self.iterations, bias=bias, leaky=self.leaky, detach=self.detach, want_coupling=True, impl=self.impl
        )

    def linear(
        self,
        pose: Tensor,
        activation: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        want_coupling: bool = True,
    ) -> Routed:
        """Votes and routing as one operator."""
        del activation
        return ops.routed_dynamic(
            pose, weight, bias, iterations=self.iterations, leaky=self.leaky, detach=self.detach,
            want_coupling=want_coupling, impl=self.impl,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The options."""
        return f"iterations={self.iterations}, leaky={self.leaky}, detach={self.detach}, impl={self.impl!r}"


@register_router("uniform")
class UniformRouting(Router):
    """`functional.uniform_routing`: the ablation without routing. As an operator it is dynamic routing's first pass.

    Args:
        impl: "auto", "reference", "cpu", "numba" or "triton"; see `torchcaps.ops`.
    """

    operators = ("routed_dynamic",)

    def __init__(self, *, impl: ops.Impl = "auto") -> None:
        super().__init__()
        self.impl = impl

    def forward(self, votes: Tensor, activation: Tensor, bias: Tensor | None = None) -> Routed:
        """Average votes `[batch, *space, children, parents, dim]`."""
        del activation
        return functional.uniform_routing(votes, bias=bias)

    def linear(
        self,
        pose: Tensor,
        activation: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        want_coupling: bool = True,
    ) -> Routed:
        """Votes and their average as one operator."""
        del activation
        return ops.routed_dynamic(pose, weight, bias, iterations=1, want_coupling=want_coupling, impl=self.impl)


@register_router("random")
class RandomRouting(Router):
    """`functional.random_routing`: fixed random couplings, the ablation beside uniform ones; nothing is learned.

    Args:
        seed: of the couplings, from 0 to 2^32 - 1. Layers of equal sizes and seeds have equal couplings.
        scale: standard deviation of their logits, at least 0; 0 is uniform.
        impl: "auto", "reference", "cpu", "numba" or "triton"; see `torchcaps.ops`.
    """

    operators = ("routed_dynamic",)
    exchangeable = False

    def __init__(self, seed: int = 0, *, scale: float = 1.0, impl: ops.Impl = "auto") -> None:
        super().__init__()
        functional.random_coupling(1, 1, seed, scale=scale)  # refuses what is out of range
        self.seed, self.scale, self.impl = seed, scale, impl

    def forward(self, votes: Tensor, activation: Tensor, bias: Tensor | None = None) -> Routed:
        """Weighted sums of votes `[batch, *space, children, parents, dim]`."""
        del activation
        return functional.random_routing(votes, self.seed, scale=self.scale, bias=bias)

    def linear(
        self,
        pose: Tensor,
        activation: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        want_coupling: bool = True,
    ) -> Routed:
        """Votes and their weighted sums as one operator: uniform coupling of matrices scaled by `parents * c_ij`."""
        del activation
        children, parents = weight.shape[:2]
        c = functional.random_coupling(children, parents, self.seed, scale=self.scale, device=weight.device)
        scaled = weight * (parents * c).to(weight.dtype)[:, :, None, None]
        routed = ops.routed_dynamic(pose, scaled, bias, iterations=1, impl=self.impl)
        coupling = c.to(routed.pose.dtype).expand(len(pose), -1, -1) if want_coupling else None
        return Routed(routed.pose, routed.activation, coupling)

    def extra_repr(self) -> str:
        """The options."""
        return f"seed={self.seed}, scale={self.scale}, impl={self.impl!r}"


class FunctionRouter(Router):
    """Any function `(votes, activation) -> Routed` (or module without a bias of its own) as a router."""

    def __init__(self, function: RouteFunction) -> None:
        super().__init__()
        self.function = function

    def forward(self, votes: Tensor, activation: Tensor, bias: Tensor | None = None) -> Routed:
        """Call the function; a bias is passed on as a third argument where the layer has one."""
        return self.function(votes, activation) if bias is None else self.function(votes, activation, bias)
