"""Overlapping digits, of which some pairs are never trained, and three digits at once.

The digits stand in a ring, 0 after 9. In training two that overlap are no neighbors: 35 of the 45
pairs. The ten pairs of neighbors are the test set; each digit belongs to two of them. In three
digits no two are neighbors, so that nothing but their number is new.
"""

from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data import Dataset, PairMaker, dataset_info, make_pairs, register_derived
from torchcaps.errors import check_known

PREFIX = "unseen-pairs-"  # of the names of sets, before that of the single digits
NUM_CLASSES = 10
SHIFT = 4  # largest of a digit along each axis, in pixels
# Kind -> digits in an image, and whether they are neighbors.
KINDS = {"trained": (2, False), "unseen": (2, True), "triples": (3, False)}
COUNTS = {"mnist": (46_813, 4_460), "digits": (4_683, 500)}  # images, train and test
Indices = Int64[Tensor, " n"]


class Overlaps(NamedTuple):
    """Digits over each other.

    Attributes:
        images: with the targets "labels" and "single_label", the classes `[n, k]`.
        singles: each digit alone, `[n, k, 1, height, width]`.
        chosen: index of each digit in the source, `[n, k]`.
    """

    images: Dataset
    singles: UInt8[Tensor, "n k 1 height width"]
    chosen: Int64[Tensor, "n k"]


def are_neighbors(first: Any, second: Any) -> Any:
    """Whether two digits, as numbers or tensors, stand next to each other in the ring."""
    distance = (first - second) % NUM_CLASSES
    return (distance == 1) | (distance == NUM_CLASSES - 1)


def list_classes(kind: str) -> list[tuple[int, ...]]:
    """The digits of every sort of image: 35 pairs, 10 pairs or 50 triples.

    Args:
        kind: "trained", "unseen" or "triples".

    Raises:
        UnknownNameError: another kind.
    """
    check_known("kind", kind, KINDS)
    size, near = KINDS[kind]
    return [
        classes
        for classes in combinations(range(NUM_CLASSES), size)
        if all(are_neighbors(*pair) == near for pair in combinations(classes, 2))
    ]


class DistantPairMaker(PairMaker):
    """Draws pairs of digits that are no neighbors; see `PairMaker`."""

    def num_partners_of(self, base: Indices) -> Indices:
        label = self.source.labels[base]
        near = torch.stack([label - 1, label, label + 1]) % NUM_CLASSES
        return len(self.source) - self._counts[near].sum(dim=0)

    def partner(self, base: Indices, rank: Indices) -> Indices:
        # Those of other classes lie behind each other from the class after the next one on.
        start = self._starts[(self.source.labels[base] + 2) % NUM_CLASSES]
        return self._sorted[(start + rank) % len(self._sorted)]

    def split(
        self, images: Dataset, fraction_or_count: float, seed: int
    ) -> tuple[Dataset, Dataset]:
        train, val = super().split(images, fraction_or_count, seed)
        return keep_distant(train), keep_distant(val)


def keep_distant(pairs: Dataset) -> Dataset:
    """The pairs that are no neighbors, and a maker that draws no others."""
    is_near = are_neighbors(*pairs.targets["single_label"].unbind(1))
    maker: Any = pairs.maker
    distant = DistantPairMaker(maker.source, maker.max_shift, maker.pad, maker.seed)
    return replace(pairs.subset((~is_near).nonzero().flatten()), maker=distant)


def draw_overlaps(source: Dataset, kind: str, seed: int = 1) -> Overlaps:
    """Images of which each digit is in one at most, as many of every sort as there can be.

    Args:
        source: single digits.
        kind: "trained", "unseen" or "triples".
        seed: 0 or more.

    Raises:
        UnknownNameError: another kind.
    """
    sorts = torch.tensor(list_classes(kind))
    uses = int((sorts == 0).sum())  # sorts that a digit belongs to, as many for each
    labels = sorts.repeat(int(source.labels.bincount().min()) // uses, 1)
    random = np.random.RandomState(seed)
    chosen = torch.empty_like(labels)
    for label in range(NUM_CLASSES):
        rows = (source.labels == label).nonzero().flatten()
        is_label = labels == label
        order = torch.from_numpy(random.permutation(len(rows)))
        chosen[is_label] = rows[order[: int(is_label.sum())]]
    moves = torch.from_numpy(random.randint(-SHIFT, SHIFT + 1, (*chosen.shape, 2)))
    maker = PairMaker(source, SHIFT)
    columns = [[k, k] for k in range(chosen.shape[1])]
    digits = [maker.overlay(chosen[:, column], moves[:, column])[1][:, 0] for column in columns]
    singles = torch.stack(digits, dim=1)
    pixels = singles.int().sum(dim=1).clamp(max=255).byte()
    hot = torch.zeros(len(labels), NUM_CLASSES, dtype=torch.uint8).scatter(1, labels, 1)
    targets = {"labels": hot, "single_label": labels}
    return Overlaps(Dataset(pixels, targets, source.classes, kind), singles, chosen)


def _make(source: Dataset, split: str) -> Dataset:
    if split == "test":
        return draw_overlaps(source, "unseen").images
    return keep_distant(make_pairs(source, 1, SHIFT))


for _base, (_train, _test) in COUNTS.items():
    register_derived(
        dataset_info(_base),
        _make,
        name=PREFIX + _base,
        title=f"35 of the 45 pairs of {_base}, tested on the others",
        image_shape=(1, 36, 36),
        train=_train,
        test=_test,
    )
