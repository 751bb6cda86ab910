"""The whole network of 2017 as tutorials write it, to hold a training step of this library against."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchcaps.bench.baselines import TextbookCapsules
from torchcaps.bench.workload import image_shape, routed_layer
from torchcaps.types import Capsules, spec_of

COPIED = ("conv.weight", "conv.bias", "primary.conv.weight", "primary.conv.bias")
SIZE, STRIDE = (28, 28), 2  # of its images; of the convolution that makes capsules


class TextbookNetwork(nn.Module):
    """Eight convolutions stacked to primary capsules, routing with logits as large as the votes, a linear decoder.

    Contiguous `[batch, channels, height, width]` memory throughout. It holds the weights of the library's `capsnet`, in
    the order that its own code needs, and computes the same.

    Raises:
        TypeError: for a model without the weights of that network and its decoder.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        known = dict(model.named_parameters())
        if not spec_of(model).decoder or not known.keys() >= set(COPIED):
            raise TypeError(f"model: expected a capsnet with a decoder, got {type(model).__name__}")
        weight, bias, primary, primary_bias = (known[name] for name in COPIED)
        layer = routed_layer(model)[1]
        dim, self.num_classes = layer.in_dim, layer.out_capsules
        types = len(primary) // dim
        self.conv1 = _convolution(weight, bias, stride=1)
        weights, biases = (each.unflatten(0, (types, dim)) for each in (primary, primary_bias))
        self.capsules = nn.ModuleList(_convolution(weights[:, d], biases[:, d], STRIDE) for d in range(dim))
        self.digits = TextbookCapsules(layer)
        # Children type by type here; position by position there.
        by_type = self.digits.route_weights.unflatten(1, (-1, types)).transpose(1, 2).flatten(1, 2)
        self.digits.route_weights = nn.Parameter(by_type.detach().contiguous())
        self.decoder = nn.Sequential(*map(_copy, model.get_submodule("decoder.layers").children()))

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


def replicable(model: nn.Module) -> bool:
    """Whether `TextbookNetwork` can take the place of this model."""
    known = {name for name, _ in model.named_parameters()}
    return spec_of(model).decoder and known >= set(COPIED) and image_shape(model)[1:] == SIZE


def _convolution(weight: Tensor, bias: Tensor, stride: int) -> nn.Conv2d:
    outputs, channels, *kernel = weight.shape
    made = nn.Conv2d(channels, outputs, (kernel[0], kernel[1]), stride)
    made.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
    made.bias = nn.Parameter(bias.detach().clone())
    return made


def _copy(layer: nn.Module) -> nn.Module:
    """A linear layer with these weights; an activation as it is."""
    if not isinstance(layer, nn.Linear):
        return layer
    made = nn.Linear(layer.in_features, layer.out_features)
    made.load_state_dict(layer.state_dict())
    return made
