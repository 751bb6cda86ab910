"""Decoders: from class capsules back to an image."""

import math
from itertools import pairwise

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.types import Capsules


def mask_capsules(
    capsules: Capsules, labels: Int64[Tensor, " batch"] | None = None
) -> Float[Tensor, "batch capsules dim"]:
    """Poses with all but one capsule set to zero: the labeled one, or without labels the most active one.

    Source: arXiv 1710.09829, section 4.1. All inputs of the decoder are kept, so that it knows which class it draws.
    """
    pose, activation = capsules
    chosen = activation.argmax(dim=1) if labels is None else labels
    mask = torch.zeros_like(activation).scatter(1, chosen.unsqueeze(1), 1.0)
    return pose * mask.unsqueeze(-1)


class FullyConnectedDecoder(nn.Module):
    """Three linear layers: ReLU, ReLU, sigmoid (arXiv 1710.09829, figure 2).

    Masked poses `[batch, num_capsules, pose_dim]` become images `[batch, *image_shape]` in [0, 1]. The two hidden
    layers are of the paper's widths.
    """

    def __init__(
        self,
        num_capsules: int,
        pose_dim: int,
        image_shape: tuple[int, int, int],
        *,
        hidden: tuple[int, int] = (512, 1024),
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.layers = nn.Sequential(
            nn.Linear(num_capsules * pose_dim, hidden[0]),
            nn.ReLU(),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(),
            nn.Linear(hidden[1], math.prod(image_shape)),
            nn.Sigmoid(),
        )

    def forward(
        self, masked: Float[Tensor, "batch capsules dim"]
    ) -> Float[Tensor, "batch channels height width"]:
        first = next(self.parameters())
        return self.layers(masked.flatten(1).to(first.dtype)).unflatten(1, self.image_shape)


class UpsamplingDecoder(nn.Module):
    """A small map, doubled in size three times, with a 3x3 convolution after each, and one more that draws.

    Arguments and shapes are those of `FullyConnectedDecoder`.
    """

    def __init__(self, num_capsules: int, pose_dim: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *self.size = image_shape
        self.start = [-(-(side + 16) // 8) for side in self.size]  # n becomes 8 n - 16
        self.dense = nn.Linear(num_capsules * pose_dim, self.start[0] * self.start[1])
        widths = (1, 64, 128, 128, channels)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in pairwise(widths))

    def forward(
        self, masked: Float[Tensor, "batch capsules dim"]
    ) -> Float[Tensor, "batch channels height width"]:
        x = self.dense(masked.flatten(1).to(self.dense.weight.dtype)).unflatten(1, (1, *self.start))
        *growing, last = self.convolutions
        for convolution in growing:
            x = F.leaky_relu(convolution(F.interpolate(x, scale_factor=2, mode="bilinear")), 0.2)
        drawn = last(x).sigmoid()
        top, left = (
            (have - want) // 2 for have, want in zip(drawn.shape[2:], self.size, strict=True)
        )
        return drawn[:, :, top : top + self.size[0], left : left + self.size[1]]
