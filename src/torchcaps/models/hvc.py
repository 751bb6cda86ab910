"""Homogeneous vector capsules: a branching and merging network without routing.

Adam Byerly, Tatiana Kalganova, Ian Dear, "No Routing Needed Between Capsules", Neurocomputing 2021, arXiv 2001.09136.
Differs from the authors' code in: sizes follow the images; running statistics follow the last ten batches or so, where
theirs (0.9997) need thousands; there is no decoder, which their default does not train either.
"""

from itertools import pairwise
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_known
from torchcaps.functional.squash import full_precision, safe_norm
from torchcaps.models._base import Classes, Images, ImageSize, LogitModel
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.types import Capsules, ModelSpec

Merge = Literal["fixed", "random", "ones"]
STD, EPSILON = 0.05, 1e-3  # of all weights at the start; of all batch norms


class ShiftNorm(nn.BatchNorm1d):
    """Batch norm of channels, the axis after the batch, that learns a shift and no scale: ones take its place."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, EPSILON)
        del self.weight
        self.register_buffer("weight", torch.ones(channels), persistent=False)

    def _check_input_dim(self, input: Tensor) -> None:
        """A map has two axes more."""


class HomogeneousCaps(nn.Module):
    """`y_kd = ReLU(BN(sum_n x_nd W_knd))`: dimension d of parent k sees only dimension d of the children n.

    `weight` is `[parents, children, dim]`. The statistics of a dimension are those of the batch and of all parents."""

    def __init__(self, children: int, dim: int, parents: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(parents, children, dim))
        self.norm = ShiftNorm(dim)
        nn.init.normal_(self.weight, std=STD)

    def forward(self, x: Float[Tensor, "batch dim children"]) -> Float[Tensor, "batch dim parents"]:
        return torch.relu(self.norm(torch.einsum("bdn,knd->bdk", x, self.weight)))


class HVC(LogitModel):
    """Convolutions 3x3; homogeneous capsules after some of them; the branches' lengths are normed, weighted and summed.

    A capsule is the vector of channels at one position; the pose of a class capsule is that of all branches in a row.

    Args:
        convolutions: how many; the first has 32 channels, each other one 16 more than the one before.
        branches: the convolutions, counted from 1, after which there are class capsules. For smallNORB the authors take
            11 convolutions and branches 5, 8, 11.
        merge: weights of the branches: "fixed" at one, or learned from "ones" or from "random" numbers (their standard
            deviation is 0.05). The batch norm after them cancels all but their sign, almost.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        convolutions: int = 9,
        branches: tuple[int, ...] = (3, 6, 9),
        merge: Merge = "ones",
    ) -> None:
        smallest = 2 * convolutions + 1
        super().__init__(num_classes, in_chans, img_size, smallest, convolutions=convolutions)
        if not branches or list(branches) != sorted({*branches} & {*range(1, convolutions + 1)}):
            raise ArgumentError(
                "branches",
                f"expected rising numbers from 1 to {convolutions}, got {list(branches)}",
            )
        check_known("merge", merge, get_args(Merge))
        self.branches = tuple(branches)
        channels = (in_chans, *(32 + 16 * k for k in range(convolutions)))
        self.convolutions = nn.ModuleList()
        for below, above in pairwise(channels):
            conv = nn.Conv2d(below, above, 3, bias=False)
            self.convolutions.append(nn.Sequential(conv, ShiftNorm(above), nn.ReLU()))
        for weight in self.convolutions.parameters():
            if weight.dim() == 4:
                nn.init.normal_(weight, std=STD)
        height, width = self.img_size
        self.class_capsules = nn.ModuleList(
            HomogeneousCaps((height - 2 * k) * (width - 2 * k), channels[k], num_classes)
            for k in branches
        )
        self.weights = None
        if merge != "fixed":
            ones = torch.ones(len(branches))
            self.weights = nn.Parameter(ones if merge == "ones" else torch.randn_like(ones) * STD)
        self.norm = ShiftNorm(len(branches))
        # Batch norm needs two values of each channel.
        is_alone = num_classes == 1 or (height, width) == (smallest, smallest)
        self.spec = ModelSpec(
            pose=True,
            activation="probability",
            logits=True,
            smallest=smallest,
            smallest_batch=2 if is_alone else 1,
        )

    def parents(self, images: Images) -> list[Float[Tensor, "batch dim classes"]]:
        """The class capsules of each branch."""
        found: list[Tensor] = []
        x = 2 * self._prepare(images) - 1
        for number, convolution in enumerate(self.convolutions, start=1):
            x = convolution(x)  # [batch, 16 + 16 number, height - 2 number, width - 2 number]
            if number in self.branches:
                found.append(self.class_capsules[len(found)](x.flatten(2)))
        return found

    def merged(self, parents: list[Float[Tensor, "batch dim classes"]]) -> Classes:
        """The sum over branches of the normed lengths: any numbers."""
        lengths = torch.stack([safe_norm(y, dim=1) for y in parents], dim=1)
        if self.weights is not None:
            lengths = lengths * self.weights.unsqueeze(1)  # [batch, branches, classes]
        return self.norm(lengths.to(self.norm.bias.dtype)).sum(dim=1)

    def logits(self, images: Images) -> Classes:
        return self.merged(self.parents(images))

    def capsules(self, images: Images) -> Capsules:
        parents = self.parents(images)
        pose = full_precision(torch.cat(parents, dim=1)).transpose(1, 2)
        return Capsules(pose, self.probabilities(self.merged(parents)))


# Homogeneous vector capsules after three of nine convolutions: 1.5 million parameters, no routing.
register_model(
    name="hvc",
    builder=HVC,
    info=ModelInfo(
        title="No Routing Needed Between Capsules",
        year=2021,
        arxiv="2001.09136",
        parameters=1_513_686,
        published="MNIST test error 0.17 % (the best of 32 trials; 300 epochs)",
    ),
)
