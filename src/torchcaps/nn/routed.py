"""The routed layer: votes x field x router; and record_routing, which looks at it while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_floating, check_range, check_shape
from torchcaps.functional.bounds import FACTOR, bounded
from torchcaps.functional.fields import DenseField, Field
from torchcaps.functional.squash import full_precision, safe_norm
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import Router, Routing, create_router
from torchcaps.types import Capsules, Routed

MAP = ("batch", "height", "width", "types", "dim")  # axes of poses on a map
_MOVED = ("weight", "bias")  # names in a layer's state until its votes were a module of their own


class RoutingTrace(NamedTuple):
    """What one routed layer did in one forward pass.

    Attributes:
        coupling: `[batch, *space, children, parents]`; see `Router.coupling`.
        activation, pose: the parents', `[batch, *space, parents]`, in [0, 1], and `[batch, *space, parents, dim]`.
        child_activation: the children's, `[batch, *space, children]`, in [0, 1].
        iterations: the couplings of every iteration, first to last, where they were asked for.
        more: what else the router told; see `Routed`.
    """

    coupling: Float[Tensor, "*batch children parents"]
    activation: Float[Tensor, "*batch parents"]
    child_activation: Float[Tensor, "*batch children"]
    pose: Float[Tensor, "*batch parents dim"]
    iterations: tuple[Tensor, ...] = ()
    more: Mapping[str, Tensor] = MappingProxyType({})

    def map(self, change: Callable[[Tensor], Tensor]) -> RoutingTrace:
        """The same with every tensor changed."""
        coupling, activation, child_activation, pose = map(change, self[:4])
        more = {name: change(x) for name, x in self.more.items()}
        return RoutingTrace(
            coupling, activation, child_activation, pose, tuple(map(change, self.iterations)), more
        )


class _Recorder(list[RoutingTrace]):
    """Takes what a layer did; says whether gradients and iterations are wanted."""

    def __init__(self, detach: bool, iterations: bool) -> None:
        super().__init__()
        self.detach, self.iterations = detach, iterations


class RoutedLayer(nn.Module):
    """Any votes, in any field, by any router; ValueError for an unknown one, or children that do not fit.

    Args:
        votes: a module `(children, field) -> Votes` with the `sizes` of the layer, such as `LinearVotes`.
        routing: a name of `list_routers()`, a router module, or a function `(votes, activation) -> Routed`.
        field: makes the field of a map from its height and width (of children without places: from nothing), such as
            `partial(ConvField, kernel=3, stride=2)`.
        routing_options: passed to the router of that name, e.g. `iterations=2`.

    Shapes:
        input Capsules (or their pose, taken as vector capsules) `[batch, *space, n, in_dim]`; output Capsules with
        pose `[batch, *positions, parents, dim]` and activation `[batch, *positions, parents]`.

    Attributes:
        axes, expected: of the children's poses, and the sizes wanted of some of them.

    Example:
        >>> sizes = LayerSizes(children=9 * 32, in_dim=8, parents=32, dim=8)
        >>> layer = RoutedLayer(LinearVotes(sizes), "dynamic", partial(Windows, kernel=3, stride=2))
    """

    axes: tuple[str, ...] = ("*batch", "types", "dim")
    expected: Mapping[str, int] = MappingProxyType({})
    recorder: _Recorder | None = None
    votes: Any
    router: Router

    def __init__(
        self,
        votes: nn.Module,
        routing: Routing = "dynamic",
        field: Callable[..., Field] = DenseField,
        **routing_options: Any,
    ) -> None:
        super().__init__()
        self.votes, self.router, self.field = (
            votes,
            create_router(routing, **routing_options),
            field,
        )
        self.router.build(self.votes.sizes)

    @property
    def weight(self) -> Tensor:
        """The matrices of the votes."""
        return self.votes.weight

    @property
    def bias(self) -> Tensor | None:
        """What is added to each parent's sum of votes."""
        return self.votes.bias

    def reset_parameters(self) -> None:
        """Draw the matrices anew."""
        self.votes.reset_parameters()

    def forward(self, children: Capsules | Tensor, parents: Capsules | None = None) -> Capsules:
        """Parents of these children; `parents` are those of the pass before, where layers route together."""
        votes = self.ask(children)
        recorder = self.recorder
        votes.wanted = recorder is not None or bool(self.router._forward_hooks)
        if recorder is not None and recorder.iterations:
            votes.trace = []
        routed = self.router(votes, parents=parents)
        if recorder is not None:
            recorder.append(_recorded(votes, routed, recorder.detach))
        return Capsules(routed.pose, full_precision(routed.activation))

    def ask(self, children: Capsules | Tensor) -> Votes:
        """The votes of these children, not computed yet."""
        if isinstance(children, Tensor):
            check_floating(children=children)
            children = Capsules(children, safe_norm(bounded(children, FACTOR)))
        self.check(children)
        field, pose, expected = (
            self.field(*children.pose.shape[1:-2]),
            children.pose.shape,
            self.votes.sizes.children,
        )
        if field.count(pose[-2]) % expected:
            raise ArgumentError(
                "children",
                f"expected {expected} at each position of the parents (or a multiple, position after "
                f"position), got {field.count(pose[-2])} from poses {list(pose)}",
            )
        return self.votes(children, field)

    def check(self, children: Capsules) -> None:
        """Raise ValueError unless the children fit this layer, before anything else is tried."""
        check_shape(
            "children", children.pose, self.axes, dim=self.votes.sizes.in_dim, **self.expected
        )

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.votes.sizes._asdict().items())
        return f"{sizes}, bias={getattr(self.votes, 'bias', None) is not None}"

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "recorder"}

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        """Take what was written when the matrices stood in the layer itself."""
        for name in _MOVED:
            if prefix + name in state:
                state[f"{prefix}votes.{name}"] = state.pop(prefix + name)
        super()._load_from_state_dict(state, prefix, *others)


class RoutedStack(nn.Module):
    """Layers that route together: in each pass, each of them takes the parents that it had in the pass before.

    Source: Tsai, Srivastava, Goh, Salakhutdinov, ICLR 2020, arXiv 2002.04764 (concurrent routing). Layer by layer, each
    to its last pass, is what layers in a row do without a stack. The routers of these layers make one pass a call and
    use the parents of the pass before; there is at least one layer, and one pass.
    """

    def __init__(self, *layers: nn.Module, passes: int = 2) -> None:
        super().__init__()
        check_range("number of layers", len(layers), low=1)
        check_range("passes", passes, low=1)
        self.layers, self.passes = nn.ModuleList(layers), passes

    def forward(self, children: Capsules) -> Capsules:
        found: list[Capsules] = []
        for layer in self.layers:  # the first pass goes up layer by layer
            found.append(layer(found[-1] if found else children))
        for _ in range(1, self.passes):
            below = [children, *found[:-1]]
            found = [
                layer(x, parents=y) for layer, x, y in zip(self.layers, below, found, strict=True)
            ]
        return found[-1]


class RoutingTraces(dict[str, list[RoutingTrace]]):
    """Recordings by layer name; `record["class_capsules"]` is a list with one entry per forward pass."""

    def last(self) -> dict[str, RoutingTrace]:
        """The newest recording of each layer that ran."""
        return {name: recordings[-1] for name, recordings in self.items() if recordings}


def names_now(state: Iterable[str], model: nn.Module) -> dict[str, str]:
    """Names of tensors in a file -> names in the state of this model: those of earlier versions are other ones."""
    places = [
        f"{name}." if name else ""
        for name, module in model.named_modules()
        if isinstance(module, RoutedLayer)
    ]
    moved = {f"{place}{name}": f"{place}votes.{name}" for place in places for name in _MOVED}
    return {name: moved.get(name, name) for name in state}


@contextmanager
def record_routing(
    model: nn.Module, *, detach: bool = True, iterations: bool = False
) -> Iterator[RoutingTraces]:
    """Collect what every routed layer of `model` does while the block runs: layer name -> list of Recorded, one a pass.

    Args:
        model: any module that holds routed layers (`CapsuleLinear`, ...); ValueError if it has none.
        detach: cut the recordings from the graph; False lets a loss on couplings train the model.
        iterations: record the couplings of every iteration. The reference runs then, which stores all votes.

    Example:
        >>> with record_routing(model) as record:
        ...     activation = model(images)
        >>> record["class_capsules"][-1].coupling.shape  # [batch, children, parents]
    """
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, RoutedLayer)
    }
    if not layers:
        raise ArgumentError("record_routing", f"{type(model).__name__} has no routed layer")
    before = {name: layer.recorder for name, layer in layers.items()}
    recorders = {name: _Recorder(detach, iterations) for name in layers}
    for name, layer in layers.items():
        layer.recorder = recorders[name]
    try:
        yield RoutingTraces(recorders)
    finally:
        for name, layer in layers.items():
            layer.recorder = before[name]


def _recorded(votes: Votes, routed: Routed, detach: bool) -> RoutingTrace:
    if routed.coupling is None:
        raise ArgumentError("record_routing", "this router returned no coupling")
    found = RoutingTrace(
        routed.coupling,
        full_precision(routed.activation),
        votes.activation,
        routed.pose,
        tuple(votes.trace or ()),
        routed.more,
    )
    return found.map(Tensor.detach) if detach else found
