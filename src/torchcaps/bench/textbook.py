"""The whole network of 2017 as tutorials write it, to hold a training step of this library against."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from torchcaps.bench.baselines import TextbookCapsules
from torchcaps.nn import CapsuleLinear, FullyConnectedDecoder, PrimaryCaps
from torchcaps.types import Capsules

STAGES = (nn.Conv2d, PrimaryCaps, CapsuleLinear, FullyConnectedDecoder)
_Stages = tuple[nn.Conv2d, PrimaryCaps, CapsuleLinear, FullyConnectedDecoder]


class TextbookNetwork(nn.Module):
    """Eight convolutions stacked to primary capsules, routing with logits as large as the votes, a linear decoder.

    Contiguous `[batch, channels, height, width]` memory throughout. It holds the weights of a model of these `STAGES`,
    in the order that its own code needs, and computes the same.

    Raises:
        TypeError: for a model of other stages.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if not has_stages(model):
            stages = ", ".join(stage.__name__ for stage in STAGES)
            raise TypeError(f"model: expected one of {stages} alone, got {type(model).__name__}")
        conv, primary, class_capsules, decoder = cast(_Stages, tuple(model.children()))
        types, dim = primary.types, primary.dim
        self.num_classes = class_capsules.out_capsules
        self.conv1 = _convolution(conv.weight, conv.bias, conv.stride)
        weights, biases = primary.conv.weight.unflatten(0, (types, dim)), primary.conv.bias
        assert biases is not None
        self.capsules = nn.ModuleList(
            _convolution(weights[:, d], biases.view(types, dim)[:, d], primary.conv.stride) for d in range(dim)
        )
        self.digits = TextbookCapsules(class_capsules)
        # Children type by type here; position by position there.
        by_type = self.digits.route_weights.unflatten(1, (-1, types)).transpose(1, 2).flatten(1, 2)
        self.digits.route_weights = nn.Parameter(by_type.detach().contiguous())
        self.decoder = nn.Sequential(*(_copy(layer) for layer in decoder.layers))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Lengths `[batch, classes]`, and reconstructions `[batch, pixels]` of the labelled capsules."""
        x = torch.relu(self.conv1(images))
        u = torch.cat([capsule(x).view(x.size(0), -1, 1) for capsule in self.capsules], dim=-1)
        u = TextbookCapsules.squash(u)
        poses = self.digits(Capsules(u, u)).pose
        classes = (poses**2).sum(dim=-1) ** 0.5
        one_hot = torch.eye(self.num_classes)[labels]
        return classes, self.decoder((poses * one_hot[:, :, None]).reshape(x.size(0), -1))


def textbook_loss(images: Tensor, labels: Tensor, classes: Tensor, drawn: Tensor) -> Tensor:
    """Margin loss plus 0.0005 times the sum of squared errors, per image."""
    one_hot = torch.eye(classes.size(1))[labels]
    left, right = torch.relu(0.9 - classes) ** 2, torch.relu(classes - 0.1) ** 2
    margin = (one_hot * left + 0.5 * (1.0 - one_hot) * right).sum()
    error = ((drawn - images.view(images.size(0), -1)) ** 2).sum()
    return (margin + 0.0005 * error) / images.size(0)


def has_stages(model: nn.Module) -> bool:
    """Whether a model is made of `STAGES` and nothing else."""
    children = tuple(model.children())
    return len(children) == len(STAGES) and all(map(isinstance, children, STAGES))


def textbook_step(model: nn.Module, images: Tensor, labels: Tensor, precision: str) -> Callable[[], None]:
    """A function that runs one training step of the textbook network, with plain Adam."""
    network, images = TextbookNetwork(model), images.contiguous(memory_format=torch.contiguous_format)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = textbook_loss(images, labels, *network(images, labels))
        loss.backward()
        optimiser.step()

    return step


def _convolution(weight: Tensor, bias: Tensor | None, stride: tuple[int, ...]) -> nn.Conv2d:
    outputs, channels, *kernel = weight.shape
    made = nn.Conv2d(channels, outputs, (kernel[0], kernel[1]), (stride[0], stride[1]), bias=bias is not None)
    made.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made


def _copy(layer: nn.Module) -> nn.Module:
    """A linear layer with these weights; an activation as it is."""
    if not isinstance(layer, nn.Linear):
        return layer
    made = nn.Linear(layer.in_features, layer.out_features)
    made.load_state_dict(layer.state_dict())
    return made
