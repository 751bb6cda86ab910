"""Homogeneous vector capsules: a branching and merging network without routing.

Adam Byerly, Tatiana Kalganova, Ian Dear, "No Routing Needed Between Capsules", Neurocomputing 2021,
arXiv 2001.09136. Differs from the authors' code in: sizes follow the images; running statistics
follow the last ten batches or so, where theirs (0.9997) need thousands; there is no decoder, which
their default does not train either.
"""

from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_known
from torchcaps.functional.squash import full_precision, safe_norm
from torchcaps.models._base import Classes, Images, ImageSize, LogitModel, Sizes
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.types import Capsules

Merge = Literal["fixed", "random", "ones"]
STD = 0.05  # of all weights at the start
EPSILON = 1e-3  # of all batch norms

ClassCapsules = Float[Tensor, "batch dim classes"]


class ShiftNorm(nn.BatchNorm1d):
    """Batch norm of channels, the axis after the batch, that learns a shift and no scale.

    The scale is one.

    Args:
        channels: number of channels.
        momentum: share of each batch in the running statistics that evaluation uses.
    """

    def __init__(self, channels: int, momentum: float) -> None:
        super().__init__(channels, EPSILON, momentum)
        del self.weight
        self.register_buffer("weight", torch.ones(channels), persistent=False)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of axes after the channels; the base class takes one at most."""


class HomogeneousCaps(nn.Module):
    """`y_kd = ReLU(BN(sum_n x_nd W_knd))`: dimension d of parent k sees dimension d of the children.

    `weight` is `[parents, children, dim]`. The statistics of a dimension are those of the batch and
    of all parents.

    Args:
        children: number of children.
        dim: dimensions of children and parents.
        parents: number of parents.
        momentum: share of each batch in the running statistics.

    Example:
        >>> HomogeneousCaps(children=484, dim=64, parents=10)(torch.rand(2, 64, 484)).shape
        torch.Size([2, 64, 10])
    """

    def __init__(self, children: int, dim: int, parents: int, *, momentum: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(parents, children, dim))
        self.norm = ShiftNorm(dim, momentum)
        nn.init.normal_(self.weight, std=STD)

    def forward(self, x: Float[Tensor, "batch dim children"]) -> ClassCapsules:
        return torch.relu(self.norm(torch.einsum("bdn,knd->bdk", x, self.weight)))


# Homogeneous vector capsules after three of nine convolutions: 1.5 million parameters, no routing.
@register_model(
    ModelInfo(
        title="No Routing Needed Between Capsules",
        year=2021,
        arxiv="2001.09136",
        parameters=1_513_686,
        published="MNIST test error 0.17 % (the best of 32 trials; 300 epochs)",
        purpose="capsules of single positions, without routing",
    ),
    name="hvc",
)
class HVC(LogitModel):
    """Convolutions 3x3, homogeneous capsules after some of them, and a sum over these branches.

    A branch gives one capsule per class, made from the capsules below it: the vectors of channels
    at the positions of a map. The lengths of a branch's class capsules are multiplied by the weight
    of the branch, pass a batch norm, and are summed over branches to logits; activations are their
    softmax. The pose of a class capsule is its vectors in all branches, concatenated.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        convolutions: number of convolutions, at least 1. The first has 32 channels, every later one
            16 more than the one before it.
        branches: numbers of the convolutions, counted from 1 and rising, after which there are
            class capsules. For smallNORB the authors take 11 convolutions and branches 5, 8, 11.
        merge: weights of the branches: "fixed" at one, or learned from "ones" or from "random"
            numbers of standard deviation 0.05. The batch norm after the weights almost cancels
            their magnitudes; only their signs matter.
        momentum: share of each batch in the running statistics; 0.0003 in the authors' code.

    Raises:
        ArgumentError: for branches that do not rise from 1 to `convolutions` at most, images
            smaller than `2 convolutions + 1` pixels, or a size below 1.
        UnknownNameError: for an unknown `merge`.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        convolutions: int = 9,
        branches: Sizes = (3, 6, 9),
        merge: Merge = "ones",
        momentum: float = 0.1,
    ) -> None:
        # Side of the smallest image, in pixels: every convolution takes two off.
        smallest = 2 * convolutions + 1
        # The base class checks that `convolutions` is at least 1, as every size given by name.
        super().__init__(
            num_classes, in_chans, img_size, smallest=smallest, convolutions=convolutions
        )
        numbers = set(range(1, convolutions + 1)) & set(branches)
        if not branches or list(branches) != sorted(numbers):
            raise ArgumentError(
                "branches",
                f"expected rising numbers from 1 to {convolutions}, got {list(branches)}",
            )
        check_known("merge", merge, Merge)
        self.branches = tuple(branches)

        channels = [in_chans] + [32 + 16 * index for index in range(convolutions)]
        self.convolutions = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(below, above, 3, bias=False), ShiftNorm(above, momentum), nn.ReLU()
            )
            for below, above in pairwise(channels)
        )
        # After all convolutions are made: their default initialization draws random numbers too.
        for weight in self.convolutions.parameters():
            if weight.dim() == 4:
                nn.init.normal_(weight, std=STD)

        height, width = self.img_size
        self.class_capsules = nn.ModuleList(
            HomogeneousCaps(
                (height - 2 * number) * (width - 2 * number),
                channels[number],
                num_classes,
                momentum=momentum,
            )
            for number in branches
        )
        self.weights = None
        if merge != "fixed":
            ones = torch.ones(len(branches))
            self.weights = nn.Parameter(ones if merge == "ones" else torch.randn_like(ones) * STD)
        self.norm = ShiftNorm(len(branches), momentum)

        # Batch norm needs two values of each channel.
        if num_classes == 1 or self.img_size == (smallest, smallest):
            self.declare(smallest_batch=2)

    def branch_capsules(self, images: Images) -> list[ClassCapsules]:
        """The class capsules of each branch.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            For each branch, class capsules `[batch, dim, classes]`.
        """
        branches: list[Tensor] = []
        x = 2 * self._prepare(images) - 1
        for number, convolution in enumerate(self.convolutions, start=1):
            x = convolution(x)  # [batch, 16 + 16 number, height - 2 number, width - 2 number]
            if number in self.branches:
                branches.append(self.class_capsules[len(branches)](x.flatten(2)))
        return branches

    def merge_branches(self, branches: list[ClassCapsules]) -> Classes:
        """Logits: the sum over branches of weighted lengths after batch norm.

        Args:
            branches: class capsules of each branch, `[batch, dim, classes]`.

        Returns:
            Logits `[batch, classes]`, any numbers.
        """
        lengths = torch.stack([safe_norm(y, dim=1) for y in branches], dim=1)
        if self.weights is not None:
            lengths = lengths * self.weights.unsqueeze(1)  # [batch, branches, classes]
        # Lengths of half precision capsules are float32, but batch norm takes the type of its bias.
        return self.norm(lengths.to(self.norm.bias.dtype)).sum(dim=1)

    def logits(self, images: Images) -> Classes:
        return self.merge_branches(self.branch_capsules(images))

    def capsules(self, images: Images) -> Capsules:
        branches = self.branch_capsules(images)
        pose = full_precision(torch.cat(branches, dim=1)).mT
        # Softmax over classes.
        return Capsules(pose, self.probabilities(self.merge_branches(branches)))
