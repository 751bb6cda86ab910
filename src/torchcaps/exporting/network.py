"""A capsule network as a list of layers in plain words, which a program without torch runs.

`Network.layers` are dictionaries ready for JSON. Their key "op" is the operation, and keys that hold
a tensor have its place in `Network.tensors`.
"""

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
    UniformRouting,
)
from torchcaps.nn.primary import WholeMapConv2d
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
        self.tensors.append(tensor.detach().float().cpu())
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
            parts = {
                key: None if layer[key] is None else self.tensors[layer[key]]
                for key in layer.keys() & {"weight", "bias", "factor", "shift", "prior"}
            }
            x = _apply(x, layer | parts)
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
        modules = [model.conv, nn.ReLU(), model.primary, *(model.between or ())]
    elif type(model) is EfficientCapsNet:
        modules = [*model.stem, model.primary]
    else:
        raise _refusal(model_metadata(model).name or type(model).__name__)
    modules.append(model.class_capsules)
    for module in modules:
        network.layers += describe_module(network, module)
    for layer in network.layers[:-1]:
        layer["between"] = layer["op"] == "route"
    if model.decoder is not None:
        if not isinstance(model.decoder, FullyConnectedDecoder):
            raise _refusal(f"one with {type(model.decoder).__name__}")
        network.draw_shape = tuple(model.decoder.image_shape)
        for module in model.decoder.layers:
            if isinstance(module, nn.Linear):
                layer = {"weight": network.keep(module.weight), "bias": network.keep(module.bias)}
                network.decoder.append(layer)
    return network


def _refusal(name: str) -> ExportError:
    return ExportError(f"model: expected one of those that a page carries ({CARRIED}), got {name}")


def describe_module(network: Network, module: Any) -> list[Layer]:
    """A module as layers, whose tensors the network keeps."""
    keep = network.keep
    kind = type(module)
    if kind is PrimaryCaps:
        group = {"op": "group", "dim": module.dim, "by": module.grouping, "squash": "squash"}
        return [*describe_module(network, module.conv), group]
    if kind is WholeMapConv2d:
        return [
            {"op": "weigh", "weight": keep(module.weight[:, 0]), "bias": keep(module.bias)},
            {"op": "group", "dim": PRIMARY_DIM, "by": "flat", "squash": "steep"},
        ]
    if isinstance(module, nn.Conv2d):
        layer: Layer = {"op": "convolve", "stride": module.stride, "padding": module.padding}
        return [layer | {"weight": keep(module.weight), "bias": keep(module.bias)}]
    if kind in (nn.ReLU, nn.LeakyReLU):
        return [{"op": "rectify", "slope": getattr(module, "negative_slope", 0.0)}]
    if kind is nn.BatchNorm2d:
        factor = module.weight / (module.running_var + module.eps).sqrt()
        shift = module.bias - factor * module.running_mean
        return [{"op": "scale", "factor": keep(factor), "shift": keep(shift)}]
    if kind is nn.InstanceNorm2d:
        layer = {"op": "normalize", "eps": module.eps}
        return [layer | {"factor": keep(module.weight), "shift": keep(module.bias)}]
    if kind is not CapsuleLinear:
        raise _refusal(f"one with {kind.__name__}")
    router = module.router
    layer = {"op": "route", "weight": keep(module.weight), "bias": keep(module.votes.bias)}
    if type(router) in (DynamicRouting, UniformRouting):
        options = {"leaky": router.leaky, "over": router.over}
        return [layer | {"router": "dynamic", "iterations": router.num_iterations} | options]
    if type(router) is SelfAttentionRouting and not router.equal and router.fixed is None:
        scale = module.out_dim**0.5 if router.scale is None else router.scale
        layer |= {"router": "attention", "iterations": 1, "scale": scale}
        return [layer | {"prior": keep(router.prior)}]
    raise _refusal(f"one with {router.describe()} routing")


def _apply(x: Tensor, layer: Layer) -> Tensor:
    """What a layer, with its tensors in place of their numbers, gives."""
    match layer["op"]:
        case "convolve":
            return F.conv2d(x, layer["weight"], layer["bias"], layer["stride"], layer["padding"])
        case "rectify":
            return F.leaky_relu(x, layer["slope"])
        case "scale":
            return x * layer["factor"][:, None, None] + layer["shift"][:, None, None]
        case "normalize":
            return F.instance_norm(x, weight=layer["factor"], bias=layer["shift"], eps=layer["eps"])
        case "weigh":
            rows, columns = layer["weight"].shape[1:]
            features = (x[:, :, :rows, :columns] * layer["weight"]).sum(dim=(2, 3))
            return features if layer["bias"] is None else features + layer["bias"]
        case "group":
            x = x.movedim(1, -1) if layer["by"] == "position" else x
            return SQUASHES[layer["squash"]](x.flatten(1).unflatten(1, (-1, layer["dim"]))).pose
    votes = torch.einsum("ijdk,bik->bijd", layer["weight"], x)
    if layer["router"] == "dynamic":
        options = {name: layer[name] for name in ("bias", "leaky", "over")}
        routed: Any = dynamic_routing(votes, layer["iterations"], **options)
    else:
        logits = (votes * votes.sum(dim=1, keepdim=True)).sum(dim=-1) / layer["scale"]
        coupling = logits.softmax(dim=-1) + layer["prior"]
        total = (coupling.unsqueeze(-1) * votes).sum(dim=1)
        routed = steep_squash_with_length(total if layer["bias"] is None else total + layer["bias"])
    return routed.pose if layer.get("between", False) else routed.activation
