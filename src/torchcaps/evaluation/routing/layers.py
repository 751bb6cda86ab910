"""What goes into and out of every routed layer, over many images; and the same model with other routers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.evaluation.base import BATCH, Images, check_images
from torchcaps.evaluation.forward import batches, evaluating
from torchcaps.functional import safe_norm
from torchcaps.nn import RoutedLayer, Router, RoutingTrace, record_routing
from torchcaps.types import Capsules


class RoutedImages(NamedTuple):
    """A forward pass over n images, on the CPU."""

    activation: Float[Tensor, "n classes"]  # of the classes, `[n, classes]`
    layers: dict[
        str, RoutingTrace
    ]  # layer name -> what it did, in the order of the model, for those that ran
    children: dict[
        str, Float[Tensor, "n *space capsules"]
    ]  # their activations; once each, in `layers` once a window


def route_images(model: nn.Module, images: Images, *, batch_size: int = BATCH) -> RoutedImages:
    """Run the model over all images, and keep what every routed layer did, by its last run.

    Couplings take images x children x parents numbers of four bytes a layer: 46 MB for a thousand images in the network
    of 2017, 1.3 GB for as many in that of 2018. Raises ValueError for a model without routed layers, or images that do
    not fit."""
    check_images(images)
    routed_layers(model)
    parts = list[RoutedImages]()
    with evaluating(model):
        for batch, _ in batches(model, images, batch_size=batch_size):
            with record_routing(model) as record, children_of(model) as seen:
                activation = model(batch).float().cpu()
            layers = {name: layer.map(Tensor.cpu) for name, layer in record.last().items()}
            parts.append(
                RoutedImages(
                    activation, layers, {name: seen[name].activation.cpu() for name in layers}
                )
            )
    names = parts[0].layers
    return RoutedImages(
        torch.cat([part.activation for part in parts]),
        {name: _joined([part.layers[name] for part in parts]) for name in names},
        {name: torch.cat([part.children[name] for part in parts]) for name in names},
    )


def _joined(parts: Sequence[RoutingTrace]) -> RoutingTrace:
    """Recordings of parts of the images, as one; without what else routers tell."""
    coupling, activation, child_activation, pose = map(
        torch.cat, zip(*(part[:4] for part in parts), strict=True)
    )
    return RoutingTrace(coupling, activation, child_activation, pose)


@contextmanager
def children_of(model: nn.Module) -> Iterator[dict[str, Capsules]]:
    """Collect what goes into every routed layer while the block runs: layer name -> its children. Raises ValueError if
    the model has no routed layer."""
    seen: dict[str, Capsules] = {}

    def keep(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        children = inputs[0]
        seen[name] = (
            Capsules(children, safe_norm(children)) if isinstance(children, Tensor) else children
        )

    with ExitStack() as stack:
        for name, layer in routed_layers(model).items():
            stack.callback(layer.register_forward_pre_hook(partial(keep, name)).remove)
        yield seen


@contextmanager
def swapped_routers(model: nn.Module, change: Callable[[Router], Router]) -> Iterator[None]:
    """Put `change(router)` in the place of every routed layer's router while the block runs. Raises ValueError if the
    model has no routed layer."""
    before = {layer: layer.router for layer in routed_layers(model).values()}
    try:
        for layer, router in before.items():
            layer.router = change(router)
        yield
    finally:
        for layer, router in before.items():
            layer.router = router


def routers_of(model: nn.Module) -> dict[str, Router]:
    """Layer name -> its router, in the order of the model. Raises ValueError if the model has no routed layer."""
    return {name: layer.router for name, layer in routed_layers(model).items()}


def routed_layers(model: nn.Module) -> dict[str, RoutedLayer]:
    """Layer name -> layer, in the order of the model. Raises ValueError if the model has no routed layer."""
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, RoutedLayer)
    }
    if not layers:
        raise ArgumentError(
            "model", f"expected a capsule network with routed layers, got {type(model).__name__}"
        )
    return layers
