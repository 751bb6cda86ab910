"""A capsule network as a list of layers in plain words, which a program without torch runs.

`Network.layers` are dictionaries ready for JSON. Their key "op" is the operation, and keys that hold
a tensor have its place in `Network.tensors`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.errors import ExportError
from torchcaps.functional import (
    dynamic_routing,
    squash_with_length,
    steep_squash_with_length,
)
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.efficient_capsnet import PRIMARY_DIM, EfficientCapsNet
from torchcaps.nn import (
    CapsuleLinear,
    DynamicRouting,
    FullyConnectedDecoder,
    PrimaryCaps,
    SelfAttentionRouting,
)
from torchcaps.nn.primary import WholeMapConv2d
from torchcaps.nn.routers import UniformRouting
from torchcaps.types import model_metadata

CARRIED = "capsnet, capsnet_small and efficient_capsnet, of any size"

Layer = dict[str, Any]
SQUASHES = {"squash": squash_with_length, "steep": steep_squash_with_length}


@dataclass
class Network:
    """Layers in words and their tensors.

    Attributes:
        layers: from the image to the class capsules.
        decoder: the linear layers of the decoder; empty without one.
        draw_shape: channels, height and width of what the decoder draws.
        tensors: float32, on the CPU.
    """

    layers: list[Layer] = field(default_factory=list)
    decoder: list[Layer] = field(default_factory=list)
    draw_shape: tuple[int, ...] = ()
    tensors: list[Tensor] = field(default_factory=list)

    def keep(self, tensor: Tensor | None) -> int | None:
        """The place of a tensor, which is kept; None for none."""
        if tensor is None:
            return None
        self.tensors.append(tensor.detach().float().cpu().contiguous())
        return len(self.tensors) - 1

    @torch.inference_mode()
    def answer(self, images: Tensor) -> Tensor:
        """The lengths of the class capsules, from the layers in words alone.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            `[batch, classes]`.
        """
        x = images
        for layer in self.layers:
            parts: dict[str, Tensor | None] = {}
            for key in layer.keys() & {"weight", "bias", "factor", "shift", "prior"}:
                parts[key] = None if layer[key] is None else self.tensors[layer[key]]
            x = OPERATIONS[layer["op"]](x, layer, parts)
        return x


def describe_network(model: nn.Module) -> Network:
    """The layers of a network and its decoder.

    Args:
        model: in eval mode.

    Returns:
        The layers.

    Raises:
        ExportError: for a model, or an option of one, that the page does not carry.
    """
    network = Network()
    modules: list[nn.Module]
    if type(model) is CapsNet and not model.standardized:
        modules = [model.conv, nn.ReLU(), model.primary]
        modules.extend([] if model.between is None else model.between)
    elif type(model) is EfficientCapsNet:
        modules = list(model.stem)
        modules.append(model.primary)
    else:
        raise _refusal(model_metadata(model).name or type(model).__name__)
    modules.append(model.class_capsules)
    for module in modules:
        if type(module) not in WRITERS:
            raise _refusal(f"one with {type(module).__name__}")
        network.layers += WRITERS[type(module)](network, module)
    for layer in network.layers[:-1]:
        layer["between"] = layer["op"] == "route"
    if model.decoder is not None:
        if not isinstance(model.decoder, FullyConnectedDecoder):
            raise _refusal(f"one with {type(model.decoder).__name__}")
        network.draw_shape = tuple(model.decoder.image_shape)
        for module in model.decoder.layers:
            if isinstance(module, nn.Linear):
                weight, bias = network.keep(module.weight), network.keep(module.bias)
                network.decoder.append({"weight": weight, "bias": bias})
    return network


def _refusal(name: str) -> ExportError:
    return ExportError(f"model: expected one of those that a page carries ({CARRIED}), got {name}")


def _write_convolution(network: Network, module: Any) -> list[Layer]:
    weight, bias = map(network.keep, (module.weight, module.bias))
    sizes = {"stride": module.stride, "padding": module.padding}
    return [{"op": "convolve", "weight": weight, "bias": bias} | sizes]


def _write_activation(_: Network, module: Any) -> list[Layer]:
    return [{"op": "rectify", "slope": getattr(module, "negative_slope", 0.0)}]


def _write_batch_norm(network: Network, module: Any) -> list[Layer]:
    factor = module.weight / (module.running_var + module.eps).sqrt()
    shift = module.bias - factor * module.running_mean
    return [{"op": "scale", "factor": network.keep(factor), "shift": network.keep(shift)}]


def _write_instance_norm(network: Network, module: Any) -> list[Layer]:
    factor = network.keep(module.weight)
    shift = network.keep(module.bias)
    return [{"op": "normalize", "eps": module.eps, "factor": factor, "shift": shift}]


def _write_primary(network: Network, module: Any) -> list[Layer]:
    group = {"op": "group", "dim": module.dim, "by": module.grouping, "squash": "squash"}
    return [*_write_convolution(network, module.conv), group]


def _write_whole_map(network: Network, module: Any) -> list[Layer]:
    weight = network.keep(module.weight[:, 0])
    layer = {"op": "weigh", "weight": weight, "bias": network.keep(module.bias)}
    return [layer, {"op": "group", "dim": PRIMARY_DIM, "by": "flat", "squash": "steep"}]


def _write_routing(network: Network, module: Any) -> list[Layer]:
    router = module.router
    layer: Layer = {"op": "route", "weight": network.keep(module.weight)}
    layer |= {"bias": network.keep(module.votes.bias)}
    if type(router) in (DynamicRouting, UniformRouting):
        options = {"leaky": router.leaky, "over": router.over}
        return [layer | {"router": "dynamic", "iterations": router.num_iterations} | options]
    if type(router) is SelfAttentionRouting and not router.equal and router.fixed is None:
        scale = module.out_dim**0.5 if router.scale is None else router.scale
        layer |= {"router": "attention", "iterations": 1, "scale": scale}
        return [layer | {"prior": network.keep(router.prior)}]
    raise _refusal(f"one with {router.describe()} routing")


WRITERS: dict[type[nn.Module], Callable[[Network, Any], list[Layer]]] = {
    nn.Conv2d: _write_convolution,
    nn.ReLU: _write_activation,
    nn.LeakyReLU: _write_activation,
    nn.BatchNorm2d: _write_batch_norm,
    nn.InstanceNorm2d: _write_instance_norm,
    PrimaryCaps: _write_primary,
    WholeMapConv2d: _write_whole_map,
    CapsuleLinear: _write_routing,
}


def _convolve(x: Tensor, layer: Layer, parts: Any) -> Tensor:
    return F.conv2d(x, parts["weight"], parts["bias"], layer["stride"], layer["padding"])


def _scale(x: Tensor, _: Layer, parts: Any) -> Tensor:
    return x * parts["factor"][:, None, None] + parts["shift"][:, None, None]


def _normalize(x: Tensor, layer: Layer, parts: Any) -> Tensor:
    return F.instance_norm(x, weight=parts["factor"], bias=parts["shift"], eps=layer["eps"])


def _weigh(x: Tensor, _: Layer, parts: Any) -> Tensor:
    rows, columns = parts["weight"].shape[1:]
    features = (x[:, :, :rows, :columns] * parts["weight"]).sum(dim=(2, 3))
    return features if parts["bias"] is None else features + parts["bias"]


def _group(x: Tensor, layer: Layer, _: Any) -> Tensor:
    if layer["by"] == "position":
        x = x.permute(0, 2, 3, 1)
    return SQUASHES[layer["squash"]](x.flatten(1).unflatten(1, (-1, layer["dim"]))).pose


def _route(x: Tensor, layer: Layer, parts: Any) -> Tensor:
    votes = torch.einsum("ijdk,bik->bijd", parts["weight"], x)
    if layer["router"] == "dynamic":
        routed: Any = dynamic_routing(
            votes,
            layer["iterations"],
            bias=parts["bias"],
            leaky=layer["leaky"],
            over=layer["over"],
        )
    else:
        logits = (votes * votes.sum(dim=1, keepdim=True)).sum(dim=-1) / layer["scale"]
        coupling = logits.softmax(dim=-1) + parts["prior"]
        total = (coupling.unsqueeze(-1) * votes).sum(dim=1)
        routed = steep_squash_with_length(total if parts["bias"] is None else total + parts["bias"])
    return routed.pose if layer.get("between", False) else routed.activation


OPERATIONS: dict[str, Callable[[Tensor, Layer, Any], Tensor]] = {
    "convolve": _convolve,
    "rectify": lambda x, layer, _: F.leaky_relu(x, layer["slope"]),
    "scale": _scale,
    "normalize": _normalize,
    "weigh": _weigh,
    "group": _group,
    "route": _route,
}
