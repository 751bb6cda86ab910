"""Models so small that every figure they lead to can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcaps.types import Capsules


@dataclass
class StubData:
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def float_images(self, indices: Tensor) -> Tensor:
        return self.images[indices]


def data_of(activations: list[list[float]], labels: list[int], classes: tuple[str, ...]) -> StubData:
    """Images whose pixels are the activations that `PixelReader` will give."""
    images = torch.tensor(activations)[:, None, None, :]  # [n, 1, 1, classes]
    return StubData(images, torch.tensor(labels), classes)


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
