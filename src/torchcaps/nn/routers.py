"""Routers: a routing function with its options (and its parameters) as a small module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps import functional, ops
from torchcaps.errors import (
    AblationUnsupportedError,
    ArgumentError,
    check_known,
    check_positive,
    check_range,
)
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.fields import Convention
from torchcaps.functional.votes import (
    AnyVotes,
    FixedCoupling,
    Over,
    ProductVotes,
    RoutingContext,
    Votes,
    as_votes,
)
from torchcaps.registry import Registry
from torchcaps.types import Capsules, LayerSizes, Routed

RouteFunction = Callable[..., Routed]
Routing = str | nn.Module | RouteFunction
ROUTERS: Registry[type[Router]] = Registry("routing")
MAX_ITERATIONS = 100  # of a layer: a file may ask for any number; the functions take any
register_router = ROUTERS.register
"""Class decorator: registers a router for layers, the shared tests and the command line.

Its argument is the name; ArgumentError for one that is taken, unless `replace`.
"""
list_routers = ROUTERS.names
"""Names that `CapsuleLinear(routing=...)` accepts."""


def create_router(routing: Routing, **options: Any) -> Router:
    """Create a router.

    Args:
        routing: a name, a router module, or a function `(votes, activation) -> Routed`.
        options: of the router of that name.

    Returns:
        The router; parameters that depend on the sizes of a layer come when one builds it.

    Raises:
        UnknownNameError: an unknown name.
        TypeError: an option that this router does not take, or a routing of another type.

    Example:
        >>> create_router("dynamic", iterations=2)
        DynamicRouting(iterations=2, leaky=False, detach=False, over='parents', impl='auto')
    """
    if isinstance(routing, str):
        router_class = ROUTERS[routing]
        parameters = inspect.signature(router_class).parameters
        for option in options:
            if option not in parameters:
                raise TypeError(
                    f"routing {routing!r} takes no option {option!r}; "
                    f"it takes: {', '.join(parameters) or 'none'}"
                )
        return router_class(**options)
    if options:
        raise TypeError(
            f"routing: options ({', '.join(options)}) go with a name, "
            f"not with {type(routing).__name__}"
        )
    if isinstance(routing, Router):
        return routing
    if callable(routing):
        return FunctionRouter(routing)
    raise TypeError(
        f"routing: expected a name, a module or a function, got {type(routing).__name__}"
    )


def set_impl(model: nn.Module, impl: ops.Impl) -> None:
    """Set the implementation of the operators of a model's layers.

    Layers whose operators have no implementation of that name stay as they are: "triton", say,
    routes and does not convolve. The next call raises the reason where it cannot run.

    Args:
        model: any module.
        impl: name of the implementation; see `torchcaps.ops`.

    Raises:
        ArgumentError: a name that no layer of the model knows.
    """
    check_known("impl", impl, ops.IMPLS)
    has_layer = False
    for layer in model.modules():
        if any(impl in ops.implementations(name) for name in getattr(layer, "operators", ())):
            layer.impl = impl  # type: ignore[assignment]
            has_layer = True
    if not has_layer:
        raise ArgumentError(
            "impl", f"no layer of this {type(model).__name__} has an implementation {impl!r}"
        )


def check_iterations(iterations: int) -> int:
    """The number of iterations of a layer, from 1 to 100.

    Raises:
        ArgumentError: a number out of range, or not a whole number.
    """
    check_positive(iterations=iterations)
    check_range("iterations", iterations, high=MAX_ITERATIONS)
    return iterations


class Router(nn.Module):
    """Base of routers. A subclass defines `route`, and `build_parameters` if it has parameters.

    Couplings come from `votes.couple(logits)`: a softmax over the parents that compete for a child.
    A router that takes them from there, by exactly one call in each iteration, works in every layer,
    has the ablations `uniform()` and `random()`, and has the couplings of its iterations recorded.

    Attributes:
        activation: meaning of the activation of a parent: the "length" of its pose, a "probability"
            of its own, or "none", where nothing says whether a parent is present.
        normalized: couplings sum to one over the parents that compete for a child (to less with an
            option `leaky`); otherwise they are any numbers.
        adds_bias: `route` adds `votes.bias`; a layer with a bias refuses other routers.
        permutation_equivariant: children and parents may be numbered in any order: the outcome
            moves with them. Not so where couplings or parameters belong to their places.
        needs_votes: activations of parents depend on votes, not on the poses of children alone.
        agreement: activations depend on the spread of votes about their mean, whatever the
            couplings are; an ablation may set it to False, and `route` then leaves that out.
        convention: which parents compete in a convolution by default; see `functional.ConvField`.
        handles_extreme_votes: finite for any votes; others get them clamped to 2^32 (float64 2^256).
        draws: `route` draws random numbers in training, which a run seeds in every step.
        sizes: of the layer, once it has built the router.
        fixed: seed and scale of the couplings of an ablation, or None.

    Example:
        >>> @register_router("mean")
        ... class MeanRouting(Router):
        ...     def route(self, votes, parents):
        ...         coupling = votes.couple()
        ...         pose = votes.weighted(coupling)
        ...         return Routed(pose, pose.norm(dim=-1), coupling)
    """

    activation: Literal["length", "probability", "none"] = "length"
    normalized: bool = True
    adds_bias: bool = False
    permutation_equivariant: bool = True
    needs_votes: bool = True
    agreement: bool = False
    convention: Convention = "all"
    handles_extreme_votes: bool = False
    draws: bool = False
    sizes: LayerSizes | None = None
    fixed: tuple[int, float] | None = None

    def build(self, sizes: LayerSizes) -> None:
        """Take the sizes of the layer of this router.

        Args:
            sizes: numbers of children and parents, and the dimensions of their poses.

        Raises:
            ArgumentError: the router belongs to a layer of other sizes.
        """
        if self.sizes is None:
            self.sizes = sizes
            self.build_parameters(sizes)
        elif self.sizes != sizes:
            raise ArgumentError(
                "routing", f"expected the sizes it was built for, {self.sizes}, got {sizes}"
            )

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Make the parameters that depend on the sizes of a layer; by default none.

        Args:
            sizes: numbers of children and parents, and the dimensions of their poses.
        """

    def forward(
        self,
        votes: AnyVotes,
        activation: Float[Tensor, "*batch children"] | None = None,
        parents: Capsules | None = None,
        context: RoutingContext | None = None,
    ) -> Routed:
        """Route, in full precision under any autocast.

        Args:
            votes: of a layer, or a tensor `[batch, *space, children, parents, dim]`.
            activation: of the children of a tensor, `[batch, *space, children]` in [0, 1], or all 1.
            parents: of the iteration before, where layers route together.
            context: what the caller needs; the router says what is clamped and fixed.

        Returns:
            Parents and couplings; see `Routed`.

        Raises:
            ArgumentError: votes that do not fit, a bias that this router does not add, or a `route`
                that returns no `Routed`.
            AblationUnsupportedError: an ablation of a router that makes its couplings by itself.
            RuntimeError: a router with parameters that no layer has built.
        """
        votes = as_votes(votes, activation)
        if self.sizes is None and type(self).build_parameters is not Router.build_parameters:
            raise RuntimeError("router: no layer has built it; call build(layer.votes.sizes)")
        if votes.bias is not None and not self.adds_bias:
            raise ArgumentError(
                "bias", f"expected False for a layer routed by {self.describe()}, which adds none"
            )
        fixed = None if self.fixed is None else FixedCoupling(*self.fixed, uses=[])
        context = context or RoutingContext()
        votes = votes.bind(replace(context, clamp=not self.handles_extreme_votes, fixed=fixed))
        with without_autocast(votes.children.pose):
            routed: object = self.route(votes, parents)
        if not isinstance(routed, Routed):
            raise ArgumentError(
                "routing",
                f"expected {self.describe()} to return Routed, got {type(routed).__name__}",
            )
        if fixed is not None and not fixed.uses:
            problem = "makes its couplings by itself; an ablation needs votes.couple(logits)"
            raise AblationUnsupportedError(f"routing: {self.describe()} {problem}")
        return routed

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """The parents of these votes.

        Args:
            votes: `[batch, *positions, children, parents, dim]`, lazy, and their children.
            parents: of the iteration before, where layers route together.

        Returns:
            Pose `[batch, *positions, parents, dim]`, activation `[batch, *positions, parents]` and
            couplings `[batch, *positions, children, parents]`.

        Raises:
            NotImplementedError: a subclass that does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define route")

    def uniform(self, *, agreement: bool = True) -> Router:
        """The ablation of this router: every coupling is equal, its parameters stay as learned.

        Args:
            agreement: as of `random`.

        Returns:
            A copy of this router, whose couplings are equal.
        """
        return self.random(scale=0.0, agreement=agreement)

    def random(self, seed: int = 0, *, scale: float = 1.0, agreement: bool = True) -> Router:
        """The ablation of this router with fixed random couplings.

        Args:
            seed: of the couplings, in [0, 2^32).
            scale: standard deviation of their normal logits, at least 0.
            agreement: False takes the spread of votes out of activations; see `Router.agreement`.

        Returns:
            A copy of this router, whose couplings are fixed.

        Raises:
            ArgumentError: a seed or scale out of range.
        """
        _check_fixed(seed, scale)
        router = deepcopy(self)
        router.fixed = (seed, scale)
        router.agreement = agreement and self.agreement
        return router

    def with_iterations(self, iterations: int) -> Router:
        """This router, stopped after fewer iterations.

        Args:
            iterations: at least 1.

        Returns:
            A copy with so many iterations, or this router where it has no more.

        Raises:
            ArgumentError: fewer than 1.
        """
        check_positive(iterations=iterations)
        if iterations >= self.num_iterations:
            return self
        router: Any = deepcopy(self)
        router.iterations = iterations
        return router

    @property
    def num_iterations(self) -> int:
        """Iterations of a call; 1 for a router that has no iterations, or fixed couplings."""
        if self.fixed is not None:
            return 1
        return int(getattr(self, "iterations", 1))

    def describe(self) -> str:
        """Name in words."""
        return ROUTERS.name_of(type(self)) or type(self).__name__

    def extra_repr(self) -> str:
        parameters = inspect.signature(type(self)).parameters
        options = {name: getattr(self, name, None) for name in parameters}
        return ", ".join(
            f"{name}={option!r}"
            for name, option in options.items()
            if isinstance(option, str | int | float)
        )


class IterativeRouter(Router):
    """Base of routers that have a number of iterations.

    Args:
        iterations: from 1 to 100.
    """

    def __init__(self, iterations: int) -> None:
        super().__init__()
        self.iterations = check_iterations(iterations)


@register_router("dynamic")
class DynamicRouting(IterativeRouter):
    """`functional.dynamic_routing` with its options; a fast path never stores the votes of a batch.

    Args:
        iterations: from 1 to 100.
        leaky: let one more parent of logit 0, "none of the above", compete for each child.
        detach: send the gradient through the last weighted sum alone, not through the coupling.
        over: axis of the softmax: "parents", or "children", a mistake of public code, for weights
            that were trained with it.
        impl: "auto", "reference", "blocked", "bmm" or "triton"; see `torchcaps.ops`.
    """

    operators = ("dynamic_routing",)
    adds_bias = True
    handles_extreme_votes = True

    def __init__(
        self,
        iterations: int = 3,
        *,
        leaky: bool = False,
        detach: bool = False,
        over: Over = "parents",
        impl: ops.Impl = "auto",
    ) -> None:
        super().__init__(iterations)
        check_known("over", over, Over)
        self.leaky = leaky
        self.detach = detach
        self.over = over
        self.impl = impl
        self.normalized = over == "parents"

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        options: dict[str, Any] = {"leaky": self.leaky, "detach": self.detach}
        if self.over == "children":
            return functional.dynamic_routing(votes, self.num_iterations, over=self.over, **options)
        return ops.dynamic_routing(votes, self.num_iterations, impl=self.impl, **options)


@register_router("uniform")
class UniformRouting(DynamicRouting):
    """`functional.uniform_routing`: the ablation without routing, dynamic routing's first pass.

    Args:
        impl: "auto", or the name of an implementation; see `ops.dynamic_routing`.
    """

    def __init__(self, *, impl: ops.Impl = "auto") -> None:
        super().__init__(1, impl=impl)


@register_router("random")
class RandomRouting(Router):
    """`functional.random_routing`: fixed random couplings, an ablation without parameters.

    Layers of equal sizes and seeds have equal couplings.

    Args:
        seed: of the couplings, in [0, 2^32).
        scale: standard deviation of their normal logits, at least 0; 0 is uniform.
        impl: "auto", "reference", "blocked", "bmm" or "triton"; see `torchcaps.ops`.

    Raises:
        ArgumentError: a seed or scale out of range.
    """

    operators = ("dynamic_routing",)
    adds_bias = True
    handles_extreme_votes = True
    permutation_equivariant = False

    def __init__(self, seed: int = 0, *, scale: float = 1.0, impl: ops.Impl = "auto") -> None:
        super().__init__()
        _check_fixed(seed, scale)
        self.seed = seed
        self.scale = scale
        self.impl = impl

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        if not isinstance(votes, ProductVotes) or not self._can_scale_weights(votes):
            return functional.random_routing(votes, self.seed, scale=self.scale)

        # Couplings that multiply the weights leave equal ones to a single operator.
        c = functional.random_coupling(
            votes.count,
            votes.parents,
            self.seed,
            scale=self.scale,
            device=votes.weight.device,
        )
        weight = votes.matrices * (votes.parents * c).to(votes.weight.dtype)[:, :, None, None]
        scaled = ProductVotes(votes.children, votes.field, weight, bias=votes.bias)
        pose, activation, _ = ops.dynamic_routing(scaled, 1, impl=self.impl)
        coupling = c.to(pose.dtype).expand(activation.shape[:-1] + c.shape)
        return Routed(pose, activation, coupling)

    def _can_scale_weights(self, votes: ProductVotes) -> bool:
        """Whether only the parents of one position compete, and no couplings are recorded."""
        return (
            self.impl != "reference"
            and votes.field.local
            and votes.shift is None
            and votes.mask is None
            and votes.context.fixed is None
            and votes.context.trace is None
        )


class FunctionRouter(Router):
    """A function `(votes, activation) -> Routed` of stored votes (or a module) as a router.

    A bias of the layer is passed on as a third argument. The function makes its couplings by
    itself, so it has no ablations.

    Args:
        function: `(votes, activation) -> Routed`, with votes `[batch, *space, children, parents,
            dim]` and activations of the children `[batch, *space, children]` in [0, 1]; where the
            layer has a bias, its third argument is `[parents, dim]`.
    """

    adds_bias = True

    def __init__(self, function: RouteFunction) -> None:
        super().__init__()
        self.function = function

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        if votes.bias is None:
            return self.function(votes.dense(), votes.activation)
        return self.function(votes.dense(), votes.activation, votes.bias)

    def describe(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def _check_fixed(seed: int, scale: float) -> None:
    """Raise ArgumentError for fixed couplings that are out of range."""
    functional.random_logits(1, 1, seed, scale=scale)
