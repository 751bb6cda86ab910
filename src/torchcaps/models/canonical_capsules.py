"""Canonical Capsules: parts of a set of points, and its canonical pose, without labels.

Weiwei Sun, Andrea Tagliasacchi, Boyang Deng, Sara Sabour, Soroosh Yazdani, Geoffrey Hinton, Kwang
Moo Yi, "Canonical Capsules: Self-Supervised Capsules in Canonical Pose", NeurIPS 2021, arXiv
2012.04718; sizes and constants as in the authors' code. There is no routing: each point shares
itself among capsules by attention. Differs from the paper in: the gradient of the rotation is
finite everywhere, so that nothing is added to the points and no step is passed over.

Letters: b batch, n points, d coordinates, k capsules, c channels of a descriptor, m points of a
capsule's drawing.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_range
from torchcaps.functional import procrustes
from torchcaps.functional.bounds import (
    clamp_finite,
    full_precision,
    gradient_limit,
    without_autocast,
)
from torchcaps.models._base import ImageModel, ImageSize
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.types import Capsules, ModelSpec

EPS = 1e-3  # least weight that a mean is divided by; added to variances

Points = Float[Tensor, "batch dim points 1"]


class Aligned(NamedTuple):
    """Sets of points, divided into parts and moved to their canonical pose.

    Attributes:
        attention: A, of sum 1 over capsules, `[batch, points, capsules]`.
        keypoints: θ_k, mean place of each capsule's points, `[batch, capsules, dim]`.
        descriptors: β_k, `[batch, capsules, channels]`.
        canonical: θ̂_k, places of the keypoints in the canonical pose, `[batch, capsules, dim]`.
        rotation: R, from the pose of the points to the canonical one, `[batch, dim, dim]`.
        translation: t, after the rotation, `[batch, dim]`.
        upright: the points in the canonical pose, `[batch, points, dim]`.
    """

    attention: Tensor
    keypoints: Tensor
    descriptors: Tensor
    canonical: Tensor
    rotation: Tensor
    translation: Tensor
    upright: Tensor


def attend(attention: nn.Linear, x: Tensor) -> Tensor:
    """`A = softmax_k(attention(x))` `[b, n, k]` of `x` `[b, n, c]`; float32 for half precision."""
    # Eight times as fast as over a short last axis.
    return full_precision(attention(x)).mT.softmax(dim=1).mT


def pool(attention: Tensor, x: Tensor) -> Tensor:
    """`sum_n A_nk x_n / sum_n A_nk`, means `[b, k, c]` of `x` `[b, n, c]`, by `A` `[b, n, k]`."""
    with without_autocast(x):
        return normalize_over_points(attention).mT @ full_precision(x)


def normalize_over_points(attention: Tensor) -> Tensor:
    """Attention `[b, n, k]` divided by its sum over points, which counts as at least 0.001."""
    return attention / at_least(attention.sum(dim=1, keepdim=True), EPS)


def at_least(x: Tensor, low: float) -> Tensor:
    """`x.clamp(min=low)` whose gradient is one operation."""
    return nn.functional.hardtanh(x, low, math.inf)


class ContextNorm(nn.Module):
    """Attentive context normalization: points are normalized by the statistics of their groups.

        y_n = sum_g a_ng (x_n - mean_g) / std_g

    `a` is a softmax over groups of a linear map of `x_n`; mean and variance are those of the points
    of one set, weighted by `a`. The sum is multiplied out, so that nothing is of size points ×
    groups × channels.

    Args:
        channels: of the features.
        groups: number of groups.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.attention = nn.Linear(channels, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Features `[b, n, c]` of the same shape and type; float32 inside for half precision."""
        dtype = x.dtype
        a = attend(self.attention, x)
        with without_autocast(x):
            x = full_precision(x)
            weights = normalize_over_points(a)
            mean = weights.mT @ x
            # The weights of a group with next to no points do not sum to 1.
            total = weights.sum(dim=1).unsqueeze(2)
            variance = weights.mT @ x.square() - mean.square() * (2 - total)
            scale = (at_least(variance, 0.0) + EPS).rsqrt()
            return (x * (a @ scale) - a @ (mean * scale)).to(dtype)


class PointLayer(nn.Module):
    """A linear map of each point, context normalization, batch normalization and ReLU."""

    def __init__(self, in_channels: int, channels: int, groups: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, channels)
        self.context = ContextNorm(channels, groups)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Features `[b, n, in_channels]` to `[b, n, channels]`."""
        x = self.context(self.linear(x))
        return self.norm(x.flatten(0, 1)).relu().unflatten(0, x.shape[:2])


class PointEncoder(nn.Module):
    """A layer that widens, three residual blocks of two layers, and attention over capsules.

    There are as many groups as capsules.

    Args:
        dim: coordinates of a point.
        channels: of the features.
        capsules: number of capsules.
        attends: whether the attention learns. It is there in any case, as in the authors' code.
    """

    def __init__(self, dim: int, channels: int, capsules: int, *, attends: bool) -> None:
        super().__init__()
        self.widen = PointLayer(dim, channels, capsules)
        layer = partial(PointLayer, channels, channels, capsules)
        self.blocks = nn.ModuleList(nn.Sequential(layer(), layer()) for _ in range(3))
        self.attention = nn.Linear(channels, capsules).requires_grad_(attends)

    def forward(self, points: Tensor) -> Tensor:
        """Features `[b, n, c]` of points `[b, n, d]`."""
        x = self.widen(points.to(self.attention.weight.dtype))
        for block in self.blocks:
            x = x + block(x)
        return x


def make_decoder(in_features: int, widths: Sequence[int], dim: int) -> nn.Sequential:
    """Linear maps with batch normalization and ReLU between them, and a tanh at the end."""
    layers = nn.Sequential()
    for width in widths:
        layers.extend([nn.Linear(in_features, width), nn.BatchNorm1d(width), nn.ReLU()])
        in_features = width
    return layers.extend([nn.Linear(in_features, dim), nn.Tanh()])


# The network of the paper.
@register_model(
    ModelInfo(
        title="Canonical Capsules: Self-Supervised Capsules in Canonical Pose",
        year=2021,
        arxiv="2012.04718",
        img_size=(1024, 1),
        in_chans=3,
        num_classes=0,
        parameters=13_994_932,
        published="Chamfer distance on ShapeNet; its tables were not read here",
        purpose="parts and canonical pose of sets of points, without labels",
    ),
    name="canonical_capsules",
)
class CanonicalCapsules(ImageModel):
    """Capsules of a set of points, its canonical pose, and a drawing of the set in that pose.

    A set, around 0 and about 1 in size, is an image one pixel wide, whose channels are the
    coordinates: `[batch, dim, points, 1]`. The drawing, in the canonical pose, is
    `[batch, dim, m, 1]`; m is the largest multiple of the number of capsules that is at most the
    number of points.

    Args:
        in_chans: coordinates of a point, 2 or 3.
        img_size: (points, 1).
        capsules: their number; 10 in the paper.
        channels: of a descriptor; 128 in the paper.
        grid: learned numbers that each drawn point starts from.
        decoder: widths of the hidden layers that draw a capsule.
        canonical: whether points are turned to the canonical pose before they are drawn; without
            it, the drawing has to follow every pose. For comparison.

    Raises:
        ValueError: for other sizes; see also `ImageModel`.
    """

    spec = ModelSpec(pose=True, activation="probability", task="align", loss="weighted")

    def __init__(
        self,
        in_chans: int = 3,
        img_size: ImageSize = (1024, 1),
        *,
        capsules: int = 10,
        channels: int = 128,
        grid: int = 10,
        decoder: Sequence[int] = (1280, 640, 320),
        canonical: bool = True,
    ) -> None:
        super().__init__(None, in_chans, img_size, capsules=capsules, channels=channels, grid=grid)
        check_range("in_chans (coordinates of a point)", in_chans, low=2, high=3)
        num_points, width = self.img_size
        if width != 1 or num_points < capsules:
            raise ArgumentError(
                "img_size", f"expected ({capsules} or more points, 1), got {self.img_size}"
            )
        self.channels = channels
        self.is_canonical = canonical

        self.aligner = PointEncoder(in_chans, channels, capsules, attends=True)
        flat = capsules * channels
        self.keypoints = nn.Sequential(
            nn.Linear(flat, flat), nn.ReLU(), nn.Linear(flat, capsules * in_chans)
        )
        self.encoder = PointEncoder(in_chans, channels, capsules, attends=False)
        self.grid = nn.Parameter(torch.rand(capsules, num_points // capsules, grid))
        self.decoders = nn.ModuleList(
            make_decoder(grid + channels, decoder, in_chans) for _ in range(capsules)
        )

    def align(self, points: Points) -> Aligned:
        """Divide points into parts by the first encoder, and move them to the canonical pose.

        Args:
            points: `[batch, 2 or 3, points, 1]`, any finite numbers.

        Returns:
            Attention, keypoints, descriptors and the rigid motion; see `Aligned`.
        """
        self._check(points)
        x = clamp_finite(full_precision(points), gradient_limit).squeeze(3).mT
        features = self.aligner(x)
        attention = attend(self.aligner.attention, features)
        keypoints = pool(attention, x)
        descriptors = pool(attention, features)

        flat = self.keypoints(descriptors.flatten(1).to(self.grid.dtype))
        canonical = full_precision(flat).unflatten(1, keypoints.shape[1:])
        canonical = canonical - canonical.mean(dim=1, keepdim=True)
        rotation, translation = procrustes(keypoints, canonical)
        upright = x
        if self.is_canonical:
            with without_autocast(x):
                upright = x @ rotation.mT + translation.unsqueeze(1)
        return Aligned(attention, keypoints, descriptors, canonical, rotation, translation, upright)

    def described(self, aligned: Aligned) -> tuple[Tensor, Tensor]:
        """Keypoints and descriptors of the points in the canonical pose.

        The attention is that of the first encoder, the features are those of the second.

        Args:
            aligned: of `align`.

        Returns:
            Keypoints `[batch, capsules, dim]` and descriptors `[batch, capsules, channels]`.
        """
        upright = aligned.upright
        return pool(aligned.attention, upright), pool(aligned.attention, self.encoder(upright))

    def draw(self, keypoints: Tensor, descriptors: Tensor) -> Float[Tensor, "batch capsules m dim"]:
        """Draw each capsule: `MLP_k(grid_k, β_k) + θ_k`.

        Args:
            keypoints: θ, `[batch, capsules, dim]`.
            descriptors: β, `[batch, capsules, channels]`.

        Returns:
            m points of each capsule.
        """
        batch = keypoints.shape[0]
        m = self.grid.shape[1]
        drawings = []
        for k, decoder in enumerate(self.decoders):
            grid = self.grid[k].expand(batch, -1, -1)
            descriptor = descriptors[:, k, None].expand(-1, m, -1).to(grid.dtype)
            flat = decoder(torch.cat([grid, descriptor], dim=2).flatten(0, 1))
            drawings.append(full_precision(flat).unflatten(0, (batch, m)))
        return torch.stack(drawings, dim=1) + keypoints.unsqueeze(2)

    def capsules(self, images: Points) -> Capsules:
        """Capsules of a set of points.

        Args:
            images: points `[batch, 2 or 3, points, 1]`, any finite numbers.

        Returns:
            Poses `[batch, capsules, dim + channels]`: keypoints in the canonical pose, and
            descriptors. Activations `[batch, capsules]`: shares of the points, in [0, 1].
        """
        aligned = self.align(images)
        return Capsules(torch.cat(self.described(aligned), dim=2), aligned.attention.mean(dim=1))

    def decode(self, capsules: Capsules) -> Points:
        """Draw the points of capsules in the canonical pose, capsule after capsule.

        Args:
            capsules: of `capsules`.

        Returns:
            Points `[batch, dim, capsules * m, 1]`.
        """
        keypoints, descriptors = capsules.pose.split([self.in_chans, self.channels], dim=2)
        return self.draw(keypoints, descriptors).flatten(1, 2).mT.unsqueeze(3)

    def forward(self, images: Points) -> Points:
        """The set of points as its capsules draw it, in the canonical pose.

        Args:
            images: points `[batch, 2 or 3, points, 1]`, any finite numbers.

        Returns:
            Points `[batch, dim, capsules * m, 1]`.
        """
        return self.decode(self.capsules(images))


# Five capsules of 32 channels, for 256 points of the plane: minutes on a CPU.
register_variant(
    "canonical_capsules_small",
    "canonical_capsules",
    img_size=(256, 1),
    in_chans=2,
    parameters=68_320,
    published="nothing of this size",
    capsules=5,
    channels=32,
    grid=4,
    decoder=(64, 32),
)
