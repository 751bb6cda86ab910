"""Models so small that every figure they lead to can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.evaluation import Evaluation, score
from torchcaps.evaluation.forward import image_activations
from torchcaps.nn import CapsuleLinear, RoutingTrace
from torchcaps.types import Capsules, ModelSpec


@dataclass
class StubData:
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def float_images(self, indices: Tensor) -> Tensor:
        return self.images[indices]


def data_of(
    activations: list[list[float]], labels: list[int], classes: tuple[str, ...]
) -> StubData:
    """Images whose pixels are the activations that `PixelReader` will give."""
    images = torch.tensor(activations)[:, None, None, :]  # [n, 1, 1, classes]
    return StubData(images, torch.tensor(labels), classes)


def evaluate(model: nn.Module, data: StubData, batch_size: int = 256) -> Evaluation:
    """What a classifier makes of images."""
    activations = image_activations(model, data.images, batch_size=batch_size)
    return score(activations, data.labels, data.classes)


class PixelReader(nn.Module):
    """The pixels of an image are its activations, by way of one matrix product."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(classes))
        self.seen: list[tuple[int, torch.dtype, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        activation = images.flatten(1) @ self.weight
        self.seen.append((len(images), activation.dtype, torch.is_grad_enabled()))
        return activation


class PoseReader(nn.Module):
    """The pixels of a `[1, classes, dim]` image are the poses of its capsules, and the decoder draws the poses."""

    spec = ModelSpec(pose=True, activation="length", decoder=True)

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.decoded: list[tuple[Capsules, Tensor]] = []

    def capsules(self, images: Tensor) -> Capsules:
        pose = self.dropout(images.squeeze(1))
        return Capsules(pose, pose.norm(dim=-1))

    def forward(self, images: Tensor) -> Tensor:
        return self.capsules(images).activation

    def reconstruct(self, capsules: Capsules, labels: Tensor | None = None) -> Tensor:
        assert labels is not None
        self.decoded.append((capsules, labels))
        return capsules.pose.unsqueeze(1)


class Linear(nn.Module):
    """Logits of two classes, `w x` and `-w x`, squashed to activations: every attack on it is known in closed form."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, images: Tensor) -> Tensor:
        score = images.flatten(1) @ self.weight.flatten()
        return torch.sigmoid(torch.stack([score, -score], dim=1))


class RoutedPixels(nn.Module):
    """The rows of a `[1, children, dim]` image are poses, which a stack of routed layers takes to its classes."""

    def __init__(self, *sizes: int, dim: int = 4, **options: Any) -> None:
        super().__init__()
        pairs, options = zip(sizes, sizes[1:], strict=False), {"impl": "reference"} | options
        self.layers = nn.Sequential(*(CapsuleLinear(i, dim, o, dim, **options) for i, o in pairs))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.squeeze(1)).activation


def recorded(coupling: Tensor, activation: Tensor | None = None) -> RoutingTrace:
    """What a layer with these couplings `[n, children, parents]` would have written down; children alike by default."""
    n, children, parents = coupling.shape
    child = torch.ones(n, children) if activation is None else activation
    return RoutingTrace(coupling, torch.ones(n, parents), child, torch.ones(n, parents, 1))
