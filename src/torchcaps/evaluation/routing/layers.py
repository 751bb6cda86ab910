"""Inputs and outputs of every routed layer over images, its votes for one, and other routers."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from torchcaps import ops
from torchcaps.errors import ArgumentError, check_shape
from torchcaps.evaluation.base import (
    Activations,
    Images,
    batches,
    check_images,
    evaluating,
)
from torchcaps.functional import Votes, safe_norm, straightness
from torchcaps.functional.squash import full_precision
from torchcaps.nn import RoutedLayer, Router, RoutingTrace, record_routing
from torchcaps.nn.routed import routed_layers as routed_layers
from torchcaps.nn.routers import MAX_ITERATIONS
from torchcaps.types import Capsules

ROUTED_BATCH = 64  # images whose couplings and gradients are computed at once


class RoutedImages(NamedTuple):
    """A forward pass over n images, on the CPU."""

    activation: Activations  # of the classes
    # Of the layers that ran, by name, in the order of the model. Two extras: "children", activations
    # `[n, *space, capsules]` of the children, once each, while the recording has them once a window;
    # "straightness" `[n, parents]` of the votes, a mean over positions.
    layers: dict[str, RoutingTrace]


def route_images(model: nn.Module, images: Images) -> RoutedImages:
    """Run a model over all images, 64 at a time, and record every routed layer, by its last run.

    Couplings take images x children x parents numbers of four bytes a layer: 46 MB for a thousand
    images in the network of 2017, 1.3 GB for as many in that of 2018.

    Args:
        model: a model with routed layers.
        images: `[n, channels, height, width]` in [0, 1].

    Returns:
        Activations of the classes and recordings of all layers, with activations of their children
        and straightness of their votes; on the CPU.

    Raises:
        ArgumentError: for a model without routed layers, or images that do not fit.
    """
    check_images(images)
    activations = []
    parts = defaultdict(list)
    layers = routed_layers(model)
    with evaluating(model):
        for batch, _ in batches(model, images, batch_size=ROUTED_BATCH):
            with children_of(model) as children, record_routing(model) as record:
                activations.append(model(batch).float().cpu())
            for name, trace in record.last().items():
                straight = _straightness(layers[name].make_votes(children[name]), trace.coupling)
                extras = {"children": children[name].activation, "straightness": straight}
                parts[name].append(trace._replace(extras=extras).map(Tensor.cpu))
    return RoutedImages(
        torch.cat(activations),
        {
            name: tree_map(lambda *columns: torch.cat(columns), *rows)
            for name, rows in parts.items()
        },
    )


def _straightness(votes: Votes, coupling: Tensor) -> Float[Tensor, "n parents"]:
    """The mean over positions, without storing the votes of all samples."""
    [ratio] = ops.in_blocks(
        lambda votes, coupling: (straightness(coupling, votes),), votes, coupling
    )
    return ratio.flatten(1, -2).mean(dim=1) if ratio.dim() > 2 else ratio


@contextmanager
def children_of(model: nn.Module) -> Iterator[dict[str, Capsules]]:
    """Collect what goes into every routed layer: layer name -> its children.

    Raises:
        ArgumentError: for a model without routed layers.
    """
    collected: dict[str, Capsules] = {}

    def collect(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        children = inputs[0]
        if isinstance(children, Tensor):
            children = Capsules(children, safe_norm(children))
        collected[name] = children

    with ExitStack() as stack:
        for name, layer in routed_layers(model).items():
            stack.callback(layer.register_forward_pre_hook(partial(collect, name)).remove)
        yield collected


@contextmanager
def swapped_routers(model: nn.Module, change: Callable[[Router], Router]) -> Iterator[None]:
    """Put `change(router)` in the place of every routed layer's router.

    Raises:
        ArgumentError: for a model without routed layers.
    """
    routers = {layer: layer.router for layer in routed_layers(model).values()}
    try:
        for layer, router in routers.items():
            layer.router = change(router)
        yield
    finally:
        for layer, router in routers.items():
            layer.router = router


@dataclass(frozen=True, eq=False)
class VotePaths:
    """The last routed layer, for one image; the layers before it route as they were trained.

    Attributes:
        votes: u_ij, `[children, parents, dim]`.
        coupling: c_ij after each iteration, `[iterations, children, parents]`; where activations
            depend on the spread of votes, times the activations of the children.
        activation: of the parents after each iteration, `[iterations, parents]`, in [0, 1].
        agreement: whether activations depend on the spread of votes, as in EM routing; then a
            parent is a Gaussian, and not a sum of votes.
    """

    votes: Float[Tensor, "children parents dim"]
    coupling: Float[Tensor, "iterations children parents"]
    activation: Float[Tensor, "iterations parents"]
    agreement: bool

    @property
    def straightness(self) -> Float[Tensor, "iterations parents"]:
        """How far the votes for each parent agree; see `functional.straightness`."""
        return straightness(self.coupling, self.votes.expand(len(self.coupling), -1, -1, -1))


def vote_paths(model: nn.Module, image: Float[Tensor, "channels height width"]) -> VotePaths:
    """Run a model with 1, 2, ... iterations in its last routed layer.

    Args:
        model: a model whose last routed layer has parents in one position, such as class capsules.
        image: `[channels, height, width]` in [0, 1].

    Returns:
        Votes, couplings and activations, on the CPU.

    Raises:
        ArgumentError: for a model without routed layers, whose last one has a map of parents, or
            whose router gives no couplings over votes; or an image that does not fit.
    """
    check_shape("image", image, ("channels", "height", "width"))
    layer, votes, traces = route_last(model, image.unsqueeze(0))
    agreement = layer.router.agreement
    couplings = []
    for trace in traces:
        coupling = full_precision(trace.coupling)
        if agreement:
            coupling = coupling * trace.child_activation.unsqueeze(-1)
        couplings.append(coupling)
    with torch.inference_mode():
        [dense] = full_precision(votes.dense()).cpu()
    return VotePaths(
        dense,
        torch.cat(couplings),
        full_precision(torch.cat([trace.activation for trace in traces])),
        agreement,
    )


def route_last(
    model: nn.Module,
    images: Images,
    max_iterations: int = MAX_ITERATIONS,
    changes: Sequence[Callable[[Router], Router]] = (),
) -> tuple[RoutedLayer, Votes, list[RoutingTrace]]:
    """Run a model with 1, 2, ... iterations in its last routed layer, and with other changes of it.

    Args:
        model: a model whose last routed layer has parents in one position.
        images: `[n, channels, height, width]` in [0, 1].
        max_iterations: the last number of iterations, unless the router has fewer.
        changes: give further routers in the place of that one.

    Returns:
        The layer, its votes and its recording, on the CPU, with each router.

    Raises:
        ArgumentError: for a model without routed layers, whose last one has a map of parents, or
            whose router gives no couplings over votes; or images that do not fit.
    """
    name, layer = list(routed_layers(model).items())[-1]
    last = layer.router
    counts = range(1, min(last.num_iterations, max_iterations) + 1)
    stops: list[Any] = [methodcaller("with_iterations", count) for count in counts]
    traces = []
    with evaluating(model), children_of(model) as children:
        try:
            for change in [*stops, *changes]:
                layer.router = change(last)
                trace = route_images(model, images).layers.get(name)
                if trace is None or trace.coupling.dim() != 3:
                    raise ArgumentError(
                        "model",
                        "expected class capsules in one position, with couplings over votes, "
                        f"got {type(layer).__name__} {name!r}",
                    )
                traces.append(trace)
        finally:
            layer.router = last
        return layer, layer.make_votes(children[name]), traces
