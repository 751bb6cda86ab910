"""Capsules for the classes of every level of a label tree: a small form of HT-CapsNet.

Khondaker Tasrif Noor et al., "HT-CapsNet", Knowledge-Based Systems 329, 2025, 114444. Differs from
the authors' code in: three convolutions; all levels have one dimension; no gate, no attention and
no layer norm; the taxonomy is a log prior of the couplings of the parents above, where theirs
multiplies the logits of arbitrary children.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil, prod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.data import label_tree
from torchcaps.errors import ArgumentError, check_known
from torchcaps.functional import dynamic_routing, squash
from torchcaps.functional.votes import Votes
from torchcaps.models._base import ImageModel, Images, ImageSize
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.models.capsnet import MAX_CLASSES_WITHOUT_BIAS
from torchcaps.nn import CapsuleLinear
from torchcaps.nn.routers import IterativeRouter
from torchcaps.types import Capsules, ModelSpec, Routed

Taxonomy = Literal["labels", "shuffled", "none", "flat"]
DIM = 8  # dimensions of a primary capsule
SMALLEST = 8  # pixels
OFF_TREE = 0.01  # eps: prior weight of a class under another parent's than its own


def tree_prior(parents: Sequence[int], above: int, free: int) -> Float[Tensor, "children classes"]:
    """Log priors of the couplings of a level: `log(eps + T[p, k])`, and 0 for primary capsules.

    `T[p, k]` is 1 where p is the parent of class k, else 0.

    Args:
        parents: number of the parent of each class of this level.
        above: number of classes of the level above; its capsules are the last children.
        free: number of primary capsules, which are the first children.
    """
    taxonomy = nn.functional.one_hot(torch.tensor(parents), above).T.float()
    return torch.cat([torch.zeros(free, len(parents)), (OFF_TREE + taxonomy).log()])


class PriorRouting(IterativeRouter):
    """`functional.dynamic_routing` from log priors of the couplings.

    Args:
        prior: log priors, `[children, parents]`.
        iterations: of the routing.
        saved: keep the priors in the `state_dict`.
    """

    permutation_equivariant = False
    handles_extreme_votes = True
    prior: Tensor

    def __init__(self, prior: Tensor, iterations: int, *, saved: bool) -> None:
        super().__init__(iterations)
        self.register_buffer("prior", prior, persistent=saved)

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        return dynamic_routing(votes, self.iterations, prior=self.prior)


# A level of capsules for each level of the label tree; 700,928 parameters with 2, 6 and 10 classes.
@register_model(
    ModelInfo(
        title="HT-CapsNet",
        year=2025,
        parameters=420_352,
        published="none for this small form, which the authors' results do not bear on",
        purpose="coarse and fine classes of a label tree",
        named=True,
    ),
    name="tree_capsnet",
)
class TreeCapsNet(ImageModel):
    """Convolutions -> primary capsules -> capsules of the coarsest classes -> ... -> the finest.

    Every level but the first routes the primary capsules, two of them as one, and the capsules of
    the level above. Outputs are lengths, in [0, 1), of the capsules of the finest level; for all
    levels see `levels`.

    Args:
        num_classes: of the finest level.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        classes: their names, whose paths make the tree (see `data.label_tree`); without a tree
            there is one level.
        tree: "labels" has a parent above start with its own children; "shuffled" with as many
            random classes instead, which is the control; "none" treats it like a primary capsule;
            "flat" leaves out all levels but the finest.
        channels: of the convolutions, each with stride 2; the last a multiple of 16.
        class_dim: dimensions of the capsules of a class, on every level; with a tree, those of two
            primary capsules.
        iterations: of each routing.

    Raises:
        ValueError: for names, channels and dimensions that do not fit; see also `ImageModel`.
    """

    spec = ModelSpec(pose=True, activation="length", smallest=SMALLEST, loss="margin")

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        classes: Sequence[str] = (),
        tree: Taxonomy = "labels",
        channels: tuple[int, int, int] = (32, 64, 128),
        class_dim: int = 16,
        iterations: int = 2,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size, class_dim=class_dim)
        check_known("tree", tree, Taxonomy)
        if len(channels) != 3 or min(channels) < 1 or channels[-1] % (2 * DIM):
            raise ArgumentError(
                "channels",
                f"expected three numbers, the last a multiple of {2 * DIM}, got {channels}",
            )
        if classes and len(classes) != num_classes:
            raise ArgumentError(
                "classes", f"expected a name for each of {num_classes}, got {len(classes)}"
            )
        self.tree = None if tree == "flat" else label_tree(classes)
        self.sizes = (num_classes,) if self.tree is None else self.tree.sizes
        if len(self.sizes) > 1 and class_dim != 2 * DIM:
            raise ArgumentError(
                "class_dim", f"expected {2 * DIM}, as two primary capsules have, got {class_dim}"
            )

        first, second, third = channels
        first_convolution = nn.Conv2d(in_chans, first, 3, 2, 1)
        self.convolutions = nn.Sequential(
            first_convolution, nn.Conv2d(first, second, 3, 2, 1), nn.Conv2d(second, third, 3, 2, 1)
        )
        # Primary capsules then begin near 0.1, as `CapsuleLinear` supposes.
        nn.init.kaiming_normal_(first_convolution.weight)
        num_primary = third // DIM * prod(ceil(side / 8) for side in self.img_size)
        self.level_capsules = nn.ModuleList(
            self._make_layer(level, num_primary, class_dim, tree, iterations)
            for level in range(len(self.sizes))
        )
        if len(self.sizes) > 1:
            self.declare(task="tree")

    def _make_layer(
        self,
        level: int,
        num_primary: int,
        dim: int,
        kind: Taxonomy,
        iterations: int,
    ) -> CapsuleLinear:
        """The capsules of the classes of a level."""
        count = self.sizes[level]
        bias = count > MAX_CLASSES_WITHOUT_BIAS
        if level == 0 or self.tree is None:
            return CapsuleLinear(num_primary, DIM, count, dim, iterations=iterations, bias=bias)
        above = self.sizes[level - 1]
        free = num_primary // 2
        layer = partial(CapsuleLinear, free + above, 2 * DIM, count, dim, bias=bias)
        if kind == "none":
            return layer(iterations=iterations)
        prior = tree_prior(self.tree.parents[level - 1], above, free)
        is_shuffled = kind == "shuffled"
        if is_shuffled:
            prior = prior[:, torch.randperm(count)]
        return layer(PriorRouting(prior, iterations, saved=is_shuffled))

    def levels(self, images: Images) -> list[Capsules]:
        """The capsules of the classes of every level, coarse to fine.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            For each level, pose `[batch, classes of the level, class_dim]` and its length, in
            [0, 1).
        """
        x = self._prepare(images)
        for number, convolution in enumerate(self.convolutions):
            x = convolution(torch.relu(x) if number else x)
        # 256 of 8, for 28x28 images.
        primary = squash(x.movedim(1, -1).unflatten(-1, (-1, DIM))).flatten(1, 3)
        levels: list[Capsules] = []
        for layer in self.level_capsules:
            children = primary
            if levels:  # 128 of 16, and those above
                pairs = primary.unflatten(1, (-1, 2)).flatten(2)
                children = torch.cat([pairs, levels[-1].pose], dim=1)
            levels.append(layer(children))
        return levels

    def capsules(self, images: Images) -> Capsules:
        return self.levels(images)[-1]
