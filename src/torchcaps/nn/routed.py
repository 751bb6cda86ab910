"""The routed layer: votes x field x router; and record_routing, which records a model's routing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from torchcaps.errors import (
    ArgumentError,
    check_floating,
    check_positive,
    check_range,
    check_shape,
)
from torchcaps.functional.bounds import clamp_finite, factor_limit
from torchcaps.functional.fields import DenseField, Field
from torchcaps.functional.squash import full_precision, safe_norm
from torchcaps.functional.votes import MapVotes, RoutingContext, Votes, mask_votes
from torchcaps.nn.routers import Router, Routing, create_router
from torchcaps.types import Capsules, Routed

MAP = ("batch", "height", "width", "types", "dim")  # axes of poses on a map
# Has `recorders`, by layer, in a thread within `record_routing`; other threads have their own.
_recording = threading.local()


class RoutingTrace(NamedTuple):
    """One forward pass of a routed layer.

    Attributes:
        coupling: `[batch, *space, children, parents]`; see `Router.normalized`.
        activation: of the parents, `[batch, *space, parents]`, in [0, 1].
        child_activation: of the children, `[batch, *space, children]`, in [0, 1].
        pose: of the parents, `[batch, *space, parents, dim]`.
        iterations: the couplings of every iteration, first to last, if they are recorded.
        extras: further tensors of the router; see `RoutingContext.record`.
    """

    coupling: Float[Tensor, "*batch children parents"]
    activation: Float[Tensor, "*batch parents"]
    child_activation: Float[Tensor, "*batch children"]
    pose: Float[Tensor, "*batch parents dim"]
    iterations: tuple[Tensor, ...] = ()
    extras: Mapping[str, Tensor] = MappingProxyType({})

    def map(self, change: Callable[[Tensor], Tensor]) -> RoutingTrace:
        """The same trace with every tensor changed.

        Args:
            change: a function of one tensor, such as `Tensor.cpu`.

        Returns:
            A trace of the changed tensors.
        """
        return tree_map_only(Tensor, change, self._replace(extras=dict(self.extras)))


class _Recorder(list[RoutingTrace]):
    """Recordings of a layer, one for each forward pass."""

    def __init__(self, detach: bool, iterations: bool) -> None:
        super().__init__()
        self.detach = detach
        self.iterations = iterations

    def record(self, votes: Votes, routed: Routed, context: RoutingContext) -> None:
        """Append one forward pass, with what the context asked for."""
        if routed.coupling is None:
            raise ArgumentError("record_routing", "this router returned no coupling")
        trace = RoutingTrace(
            routed.coupling,
            full_precision(routed.activation),
            votes.activation,
            routed.pose,
            tuple(context.trace or ()),
            context.extras or {},
        )
        self.append(trace.map(Tensor.detach) if self.detach else trace)


class RoutedLayer(nn.Module):
    """Any votes, in any field, by any router.

    Args:
        votes: a module `(children, field) -> Votes` with the `sizes` of the layer, such as
            `LinearVotes`.
        routing: a name of `list_routers()`, a router module, or a function
            `(votes, activation) -> Routed`.
        field: a function that makes the field, such as `partial(ConvField, kernel=3, stride=2)`.
            It takes the height and width of a map; for children without places it takes nothing.
        routing_options: options of the router of that name, e.g. `iterations=2`.

    Shapes:
        input Capsules (or their pose, as vector capsules) `[batch, *space, n, in_dim]`; output
        Capsules with pose `[batch, *positions, parents, dim]` and activation
        `[batch, *positions, parents]`.

    Attributes:
        axes: names of the axes of the children's poses.
        expected: sizes of some of these axes, by name, which children must have.

    Raises:
        ArgumentError: an unknown routing, or children that do not fit.

    Example:
        >>> sizes = LayerSizes(children=9 * 32, in_dim=8, parents=32, dim=8)
        >>> field = partial(ConvField, kernel=3, stride=2)
        >>> layer = RoutedLayer(LinearVotes(sizes), "dynamic", field)
    """

    axes: tuple[str, ...] = ("*batch", "types", "dim")
    expected: Mapping[str, int] = MappingProxyType({})
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
        self.votes = votes
        self.router = create_router(routing, **routing_options)
        self.field = field
        self.router.build(self.votes.sizes)

    @property
    def weight(self) -> Tensor:
        """The matrices of the votes."""
        return self.votes.weight

    @property
    def bias(self) -> Tensor | None:
        """The bias of each parent's sum of votes."""
        return self.votes.bias

    @property
    def recorder(self) -> _Recorder | None:
        """Takes the passes of this layer in this thread, within a block of `record_routing`."""
        recorders: dict[nn.Module, _Recorder] | None = getattr(_recording, "recorders", None)
        if recorders is None:
            return None
        return recorders.get(self)

    def reset_parameters(self) -> None:
        """Draw the matrices anew."""
        self.votes.reset_parameters()

    def forward(
        self,
        children: Capsules | Tensor,
        parents: Capsules | None = None,
        mask: Bool[Tensor, "batch *space n"] | None = None,
    ) -> Capsules:
        """Route children to their parents.

        Args:
            children: Capsules, or their pose; see the class.
            parents: of the iteration before, where layers route together.
            mask: True for children that are present, `[batch, *space, n]`. Routers leave the others
                out; a function as `routing` gets zeros as their votes and activations.

        Returns:
            Parents: pose `[batch, *positions, parents, dim]` and activation
            `[batch, *positions, parents]`.

        Raises:
            ArgumentError: children or a mask that do not fit.
        """
        votes = self.make_votes(children)
        if mask is not None:
            check_mask(mask, votes.children.activation.shape)
            if isinstance(votes, MapVotes):
                raise ArgumentError("mask", "expected None: here a window of children votes as one")
            votes = mask_votes(votes, mask)
        recorder = self.recorder
        context = RoutingContext(bool(self.router._forward_hooks))
        if recorder is not None:
            context = RoutingContext(trace=[] if recorder.iterations else None, extras={})
        routed = self.router(votes, parents=parents, context=context)
        if recorder is not None:
            recorder.record(votes, routed, context)
        return Capsules(routed.pose, full_precision(routed.activation))

    def make_votes(self, children: Capsules | Tensor) -> Votes:
        """The votes of these children, not computed yet.

        Args:
            children: Capsules, or their pose `[batch, *space, types, in_dim]`; the activation is
                then the length of the pose.

        Returns:
            Votes `[batch, *positions, children, parents, dim]`, which a router asks for what it
            needs.

        Raises:
            ArgumentError: children of a shape or type that does not fit this layer.
        """
        if isinstance(children, Tensor):
            check_floating(children=children)
            # `factor_limit` is the largest magnitude by which the products of votes stay finite.
            children = Capsules(children, safe_norm(clamp_finite(children, factor_limit)))
        self.check(children)
        check_floating(**children._asdict())
        weight = next(self.parameters(), children.pose)
        for name, tensor in children._asdict().items():
            if (tensor.dtype == torch.float64) != (weight.dtype == torch.float64):
                raise ArgumentError(
                    name, f"expected {weight.dtype}, as the weights are, got {tensor.dtype}"
                )
        shape = children.pose.shape
        field = self.field(*shape[1:-2])
        num_children = field.count(shape[-2])
        divisor = self.votes.sizes.children
        if num_children % divisor:
            raise ArgumentError(
                "children",
                f"expected {divisor} at each position of the parents (or a multiple, position "
                f"after position), got {num_children} from poses {list(shape)}",
            )
        return self.votes(children, field)

    def check(self, children: Capsules) -> None:
        """Check that the shape of the children fits this layer.

        Args:
            children: pose `[batch, *space, types, in_dim]`.

        Raises:
            ArgumentError: another shape.
        """
        sizes = {"dim": self.votes.sizes.in_dim, **self.expected}
        check_shape("children", children.pose, self.axes, **sizes)

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.votes.sizes._asdict().items())
        return f"{sizes}, bias={getattr(self.votes, 'bias', None) is not None}"


def check_mask(mask: Tensor, shape: torch.Size) -> None:
    """Raise ArgumentError unless a mask is of booleans and of this shape."""
    if mask.dtype != torch.bool or mask.shape != shape:
        raise ArgumentError(
            "mask",
            f"expected {list(shape)} of torch.bool, True for what is present, "
            f"got {list(mask.shape)} of {mask.dtype}",
        )


class RoutedStack(nn.Module):
    """Layers that route together: in each pass, each layer takes its parents of the pass before.

    Source: Tsai, Srivastava, Goh, Salakhutdinov, ICLR 2020, arXiv 2002.04764 (concurrent routing).
    Without a stack, layers in a row route one after the other, each to its last iteration. The
    routers of these layers make one iteration a call and use the parents of the one before.

    Args:
        layers: at least one, from the bottom up.
        num_iterations: at least 1.

    Raises:
        ArgumentError: no layer, or no iteration.

    Example:
        >>> stack = RoutedStack(lower_layer, upper_layer, num_iterations=2)
    """

    def __init__(self, *layers: nn.Module, num_iterations: int = 2) -> None:
        super().__init__()
        check_range("number of layers", len(layers), low=1)
        check_positive(num_iterations=num_iterations)
        self.layers = nn.ModuleList(layers)
        self.num_iterations = num_iterations

    def forward(self, children: Capsules) -> Capsules:
        """Route children through all layers, `num_iterations` times.

        Args:
            children: of the lowest layer.

        Returns:
            Parents of the highest layer after the last iteration.
        """
        # First iteration: layer by layer, from the bottom up.
        outputs: list[Capsules] = []
        current = children
        for layer in self.layers:
            current = layer(current)
            outputs.append(current)

        # Later ones: every layer routes again, with its parents of the iteration before.
        for _ in range(1, self.num_iterations):
            inputs = [children, *outputs[:-1]]
            outputs = [
                layer(capsules, parents=previous)
                for layer, capsules, previous in zip(self.layers, inputs, outputs, strict=True)
            ]
        return outputs[-1]


class RoutingTraces(dict[str, list[RoutingTrace]]):
    """Recordings by layer name: `record["class_capsules"]` has one entry per forward pass."""

    def last(self) -> dict[str, RoutingTrace]:
        """The newest recording of each layer that ran."""
        return {name: recordings[-1] for name, recordings in self.items() if recordings}


@contextmanager
def record_routing(
    model: nn.Module, *, detach: bool = True, iterations: bool = False
) -> Iterator[RoutingTraces]:
    """Record every routed layer of a model while the block runs, in this thread alone.

    Of a layer that a block within this one records too, the passes are in the record of the inner
    block alone.

    Args:
        model: any module with routed layers (`CapsuleLinear`, ...).
        detach: cut the recordings from the graph; False lets a loss on couplings train the model.
        iterations: record the couplings of every iteration. The reference runs then, which stores
            all votes.

    Yields:
        A dictionary: layer name -> list of `RoutingTrace`, one for each forward pass.

    Raises:
        ArgumentError: a model without a routed layer.

    Example:
        >>> with record_routing(model) as record:
        ...     activation = model(images)
        >>> record["class_capsules"][-1].coupling.shape  # [batch, children, parents]
    """
    layers = routed_layers(model)
    recorders = {layer: _Recorder(detach, iterations) for layer in layers.values()}
    outer = getattr(_recording, "recorders", {})
    _recording.recorders = outer | recorders
    try:
        yield RoutingTraces(zip(layers, recorders.values(), strict=True))
    finally:
        _recording.recorders = outer


def routed_layers(model: nn.Module) -> dict[str, RoutedLayer]:
    """Return layer name -> layer, in the order of the model.

    Raises:
        ArgumentError: for a model without routed layers.
    """
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, RoutedLayer)
    }
    if not layers:
        raise ArgumentError(
            "model", f"expected a capsule network with routed layers, got {type(model).__name__}"
        )
    return layers
