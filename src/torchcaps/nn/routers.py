"""Routers: a routing function with its options (and, where it learns, its parameters) as a small module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal, TypeVar, get_args

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps import functional, ops
from torchcaps.errors import AblationUnsupportedError, ArgumentError, check_known, check_range
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
MOST_ITERATIONS = 100  # of a layer: a file may ask for any number; the functions take any
R = TypeVar("R", bound="type[Router]")


def register_router(name: str, *, replace: bool = False) -> Callable[[R], R]:
    """Class decorator: registers a router for every routed layer, the shared tests and the command line.

    Raises ValueError for a name that is taken, unless `replace`.
    """
    return ROUTERS.register(name, replace=replace)


def list_routers() -> list[str]:
    """Names that `CapsuleLinear(routing=...)` accepts."""
    return ROUTERS.names()


def create_router(routing: Routing, **options: Any) -> Router:
    """A router from a name with options, from a router module, or from a function `(votes, activation) -> Routed`.

    ValueError for an unknown name, TypeError for an option that this router does not take.
    """
    if isinstance(routing, str):
        kind = ROUTERS[routing]
        known = list(inspect.signature(kind).parameters)
        for option in (name for name in options if name not in known):
            raise TypeError(
                f"routing {routing!r} takes no option {option!r}; it takes: {', '.join(known) or 'none'}"
            )
        return kind(**options)
    if options:
        raise TypeError(
            f"routing: options ({', '.join(options)}) go with a name, not with {type(routing).__name__}"
        )
    if isinstance(routing, Router):
        return routing
    if callable(routing):
        return FunctionRouter(routing)
    raise TypeError(
        f"routing: expected a name, a module or a function, got {type(routing).__name__}"
    )


def set_impl(model: nn.Module, impl: ops.Impl) -> None:
    """Have every layer of a model take this implementation of its operators, where it has one of that name.

    Layers whose operators know no such name stay as they are: "numba", say, routes and does not convolve. Whether it
    can run is asked at the next call, which raises the reason if it cannot. ValueError for a name that no layer knows.
    """
    check_known("impl", impl, ops.IMPLS)
    modules: list[Any] = list(model.modules())
    layers = [
        m
        for m in modules
        if any(impl in ops.implementations(op) for op in getattr(m, "operators", ()))
    ]
    if not layers:
        raise ArgumentError(
            "impl", f"no layer of this {type(model).__name__} has an implementation {impl!r}"
        )
    for layer in layers:
        layer.impl = impl


def check_iterations(iterations: int) -> int:
    """The number, if a layer may have so many iterations, from 1 to 100; ValueError if not, TypeError for no int."""
    if isinstance(iterations, bool) or not isinstance(iterations, int):
        raise TypeError(f"iterations: expected a whole number, got {iterations!r}")
    check_range("iterations", iterations, low=1)
    check_range("iterations", iterations, high=MOST_ITERATIONS)
    return iterations


class Router(nn.Module):
    """Base of routers. A subclass writes `route`, and `build_parameters` if their sizes are its layer's.

    Couplings come from `votes.couple(logits)`: a softmax over the parents that compete for a child. A router that takes
    them from there works in every layer, and has its ablations for nothing: `uniform()` and `random()`.

    Attributes:
        activation: what the activation of a parent is: the "length" of its pose, a "probability" of its own, or
            "none", where nothing tells whether a parent is present.
        normalized: couplings sum to one over the parents that compete for a child (to less with an option `leaky`);
            otherwise they are any numbers.
        adds_bias: `route` adds `votes.bias`, where there is one; a layer with a bias refuses other routers.
        permutation_equivariant: children and parents may be numbered in any order: the outcome moves with them.
            Not so where couplings or parameters belong to their places, as fixed random ones do.
        convention: which parents compete in a convolution unless its layer says otherwise; see `functional.ConvField`.
        handles_extreme_votes: finite for votes of any size. Others see votes beyond 2^32 (2^256 in float64) as that,
            so that squares of them stay finite.
        sizes: of the layer, once it has built the router.
    """

    activation: Literal["length", "probability", "none"] = "length"
    normalized: bool = True
    adds_bias: bool = False
    permutation_equivariant: bool = True
    convention: Convention = "all"
    handles_extreme_votes: bool = False
    sizes: LayerSizes | None = None
    fixed: tuple[int, float] | None = None  # seed and scale of the couplings of an ablation

    def build(self, sizes: LayerSizes) -> None:
        """Take the sizes of the layer that this router belongs to; ValueError if it belongs to one of other sizes."""
        if self.sizes is None:
            self.sizes = sizes
            self.build_parameters(sizes)
        elif self.sizes != sizes:
            name = type(self).__name__
            raise ArgumentError(
                "routing", f"this {name} was built for a layer of {self.sizes}, not of {sizes}"
            )

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Make the parameters that depend on the sizes of a layer; nothing unless a subclass does."""

    def forward(
        self,
        votes: AnyVotes,
        activation: Float[Tensor, "*batch children"] | None = None,
        parents: Capsules | None = None,
        context: RoutingContext | None = None,
    ) -> Routed:
        """Route, in full precision under any autocast.

        ArgumentError for votes that do not fit, or a layer with a bias that this router does not add;
        AblationUnsupportedError for an ablation of a router that does not take its couplings from the
        votes; RuntimeError for a router with parameters that no layer has built.

        Args:
            votes: of a layer, or given ones `[batch, *space, children, parents, dim]`.
            activation: of the children of given votes, `[batch, *space, children]` in [0, 1]; 1 unless given.
            parents: of the iteration before, where layers route together.
            context: what the caller needs of this call; see `RoutingContext`. The router itself says
                whether votes are clamped and couplings fixed.
        """
        votes = as_votes(votes, activation)
        if self.sizes is None and type(self).build_parameters is not Router.build_parameters:
            raise RuntimeError(
                f"{type(self).__name__}: no layer has built this router; call build(layer.votes.sizes)"
            )
        if votes.bias is not None and not self.adds_bias:
            raise ArgumentError(
                "bias", f"expected False for a layer routed by {self.describe()}, which adds none"
            )
        fixed = None if self.fixed is None else FixedCoupling(*self.fixed, uses=[])
        context = RoutingContext() if context is None else context
        votes = votes.bind(context._replace(clamp=not self.handles_extreme_votes, fixed=fixed))
        with without_autocast(votes.children.pose):
            routed = self.route(votes, parents)
        if fixed is not None and not fixed.uses:
            raise AblationUnsupportedError(
                f"routing: {self.describe()} makes its couplings by itself, so they cannot be fixed for an ablation; "
                "let it take them from votes.couple(logits)"
            )
        return routed

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """The parents of these votes; `votes` has the poses and activations of the children too."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it routes")

    def uniform(self) -> Router:
        """This router with every coupling equal, and all else as it has learned it: its own ablation."""
        return self.random(scale=0.0)

    def random(self, seed: int = 0, *, scale: float = 1.0) -> Router:
        """This router with fixed random couplings: a softmax of normal numbers of this seed and standard deviation."""
        functional.random_logits(1, 1, seed, scale=scale)  # refuses what is out of range
        copy = deepcopy(self)
        copy.fixed = (seed, scale)
        return copy

    def with_iterations(self, iterations: int) -> Router:
        """This router, stopped after so many iterations, at least 1, where it has more."""
        check_range("iterations", iterations, low=1)
        if iterations >= self.num_iterations:
            return self
        copy: Any = deepcopy(self)
        copy.iterations = iterations
        return copy

    @property
    def num_iterations(self) -> int:
        """How many iterations a call makes; 1 for a router that does not iterate, or whose couplings are fixed."""
        return 1 if self.fixed is not None else int(getattr(self, "iterations", 1))

    def describe(self) -> str:
        """Name in words."""
        return ROUTERS.name_of(type(self)) or type(self).__name__

    def extra_repr(self) -> str:
        options = {
            name: getattr(self, name, None) for name in inspect.signature(type(self)).parameters
        }
        return ", ".join(
            f"{k}={v!r}" for k, v in options.items() if isinstance(v, str | int | float)
        )


@register_router("dynamic")
class DynamicRouting(Router):
    """`functional.dynamic_routing` with its options; by a fast path it never stores the votes of a batch.

    Iterations are from 1 to 100; `impl` is "auto", "reference", "blocked", "numba" or "triton": see `torchcaps.ops`.
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
        super().__init__()
        check_known("over", over, get_args(Over))
        self.iterations, self.leaky, self.detach = check_iterations(iterations), leaky, detach
        self.over, self.impl = over, impl
        self.normalized = over == "parents"

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        options: dict[str, Any] = {"leaky": self.leaky, "detach": self.detach}
        if self.over == "children":
            return functional.dynamic_routing(votes, self.num_iterations, over=self.over, **options)
        return ops.dynamic_routing(votes, self.num_iterations, impl=self.impl, **options)


@register_router("uniform")
class UniformRouting(DynamicRouting):
    """`functional.uniform_routing`: the ablation without routing. As an operator it is dynamic routing's first pass."""

    def __init__(self, *, impl: ops.Impl = "auto") -> None:
        super().__init__(1, impl=impl)


@register_router("random")
class RandomRouting(Router):
    """`functional.random_routing`: fixed random couplings, the ablation beside uniform ones; nothing is learned.

    Layers of equal sizes and seeds have equal couplings. `impl` is as of `DynamicRouting`.
    """

    operators = ("dynamic_routing",)
    adds_bias = True
    handles_extreme_votes = True
    permutation_equivariant = False

    def __init__(self, seed: int = 0, *, scale: float = 1.0, impl: ops.Impl = "auto") -> None:
        super().__init__()
        functional.random_logits(1, 1, seed, scale=scale)  # refuses what is out of range
        self.seed, self.scale, self.impl = seed, scale, impl

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        # Weighted sums of votes; in one operator where only the parents of one position compete for a child.
        observed = votes.context.fixed is not None or votes.context.trace is not None
        if (
            self.impl == "reference"
            or observed
            or not isinstance(votes, ProductVotes)
            or not votes.field.local
            or votes.shift is not None
            or votes.mask is not None
        ):
            return functional.random_routing(votes, self.seed, scale=self.scale)
        weight, count, many = votes.matrices, votes.count, votes.parents
        c = functional.random_coupling(
            count, many, self.seed, scale=self.scale, device=weight.device
        )
        scaled = (
            weight * (many * c).to(weight.dtype)[:, :, None, None]
        )  # then couplings may be equal
        given = ProductVotes(votes.children, votes.field, scaled, bias=votes.bias)
        routed = ops.dynamic_routing(given, 1, impl=self.impl)
        shape = (*routed.activation.shape[:-1], *c.shape)
        return routed._replace(coupling=c.to(routed.pose.dtype).expand(shape))


class FunctionRouter(Router):
    """Any function `(votes, activation) -> Routed` of stored votes (or module that takes these) as a router.

    A bias of the layer is passed on as a third argument. Nothing is known of its couplings, so it has no ablations.
    """

    adds_bias = True

    def __init__(self, function: RouteFunction) -> None:
        super().__init__()
        self.function = function

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        return self.function(
            votes.dense(), votes.activation, *(() if votes.bias is None else (votes.bias,))
        )

    def describe(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))
