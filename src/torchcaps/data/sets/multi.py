"""MultiMNIST: two images of different classes, shifted and laid over each other.

Sabour, Frosst, Hinton, "Dynamic Routing Between Capsules", arXiv 1710.09829, section 6. The named
sets are made on reading from the set of single images. Those with masks are the same pairs, which
then stay the same in training.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Generator, Tensor

from torchcaps.data._registry import register_derived, set_facts
from torchcaps.data.dataset import Batch, Dataset, Maker, select_rows
from torchcaps.data.masks import masked_set
from torchcaps.data.pixels import fit_images, to_float
from torchcaps.data.sets.fashion_mnist import INFO as FASHION
from torchcaps.data.sets.mnist import DIGITS, INFO as MNIST
from torchcaps.data.sets.placed import place_images
from torchcaps.errors import DataError, check_range
from torchcaps.transfer import to_device
from torchcaps.types import Tensors

Indices = Int64[Tensor, " batch"]

PER_IMAGE = {"train": 1, "test": 2}
SHIFT = 4
INK = 128  # of 255: from here on a pixel belongs to a digit
CHUNK = 4096  # composites made at a time


class PairMaker(Maker):
    """Draws composites of a set on the set's device: on-line MultiMNIST.

    A set of composites has the targets "labels", "single_label" (classes `[n, 2]` of the two
    images), "chosen" (their indices `[n, 2]` in the source) and "moves" (`[n, 2, 2]`, of each of
    the two, (down, right) in pixels). A batch that is drawn has "labels", "single_label" and
    "singles", the two images `[batch, 2, channels, height, width]` in [0, 1].

    Args:
        source: single images, uint8, of two or more classes that have images.
        max_shift: largest move along each axis in whole pixels, drawn uniformly; 4 in the paper.
        pad: black pixels added on every side; None is `max_shift`, with which nothing is cut off.
        seed: with which `split` makes sets of pairs.

    Raises:
        DataError: for another source.
        ValueError: for a shift or padding below 0.
    """

    def __init__(
        self, source: Dataset, max_shift: int = 4, pad: int | None = None, seed: int = 0
    ) -> None:
        self.source = source
        self.seed = seed
        self.max_shift = max_shift
        self.pad = max_shift if pad is None else pad
        check_range("max_shift", max_shift, low=0)
        check_range("pad", self.pad, low=0)
        # Sorted by class, the partners of an image are all positions but a block of known place
        # and length.
        self._counts = torch.bincount(source.labels, minlength=source.num_classes)
        self._starts = self._counts.cumsum(0) - self._counts
        self._sorted = source.labels.argsort(stable=True)
        if source.images.dtype != torch.uint8 or self._counts.max() == len(source):
            raise DataError(
                f"{source.name}: expected uint8 images of two classes or more, got {source!r}"
            )

    def num_partners_of(self, base: Indices) -> Indices:
        """The number of images of another class, for each of these.

        Args:
            base: `[batch]` indices of images.

        Returns:
            `[batch]` counts.
        """
        return len(self.source) - self._counts[self.source.labels[base]]

    def partner(self, base: Indices, rank: Indices) -> Indices:
        """Images of other classes than those at `base`.

        Args:
            base: indices of images.
            rank: number of the partner among all of another class, 0 to `num_partners_of(base) - 1`.

        Returns:
            `[batch]` indices of the partners.
        """
        label = self.source.labels[base]
        is_behind = rank >= self._starts[label]  # of the images of its own class
        return self._sorted[rank + self._counts[label] * is_behind]

    def draw(self, images: Dataset, indices: Tensor, generator: Generator) -> Batch:
        base = images.targets["chosen"][indices, 0].to(self.source.labels.device)
        device = generator.device
        shares = torch.rand(len(base), generator=generator, device=device, dtype=torch.float64)
        num_partners = self.num_partners_of(base)
        rank = (to_device(shares, base.device) * num_partners).long().minimum(num_partners - 1)
        pairs = torch.column_stack([base, self.partner(base, rank)])

        num_moves = 2 * self.max_shift + 1
        moves = torch.randint(num_moves, (len(base), 2, 2), generator=generator, device=device)
        moves = to_device(moves, base.device) - self.max_shift
        composites, singles = self.overlay(pairs, moves)
        targets = self.pair_labels(pairs) | {"singles": to_float(_fit_singles(singles, images))}
        inputs = fit_images(composites, images.img_size, images.in_chans)
        return Batch(to_float(inputs), targets, indices)

    def pair_labels(self, pairs: Int64[Tensor, "batch 2"]) -> Tensors:
        """The targets "labels" and "single_label" of pairs of images.

        Args:
            pairs: indices into the source.

        Returns:
            0 and 1, uint8 `[batch, classes]`, and classes `[batch, 2]`.
        """
        labels = self.source.labels[pairs]
        hot = torch.nn.functional.one_hot(labels, self.source.num_classes).sum(dim=1).byte()
        return {"labels": hot, "single_label": labels}

    def split(
        self, images: Dataset, fraction_or_count: float, seed: int
    ) -> tuple[Dataset, Dataset]:
        # New composites of two parts of the source, which share no single image.
        per_image = max(round(len(images) / len(self.source)), 1)
        train, val = (
            make_pairs(
                source, per_image, self.max_shift, self.pad, seed=self.seed, name=images.name
            ).resized(images.img_size, images.in_chans)
            for source in self.source.train_val_split(fraction_or_count, seed)
        )
        return train, val

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.source.to(device), self.max_shift, self.pad, self.seed)

    def singles(
        self, images: Dataset, indices: Tensor | Sequence[int]
    ) -> UInt8[Tensor, "m 2 channels height width"]:
        """The two images of each composite of a set, as large as the composites.

        Args:
            images: the set.
            indices: `[m]` rows of it.

        Returns:
            uint8 `[m, 2, channels, height, width]`.
        """
        rows = select_rows(images.targets, torch.as_tensor(indices))
        return _fit_singles(self.overlay(rows["chosen"], rows["moves"])[1], images)

    def overlay(
        self, chosen: Int64[Tensor, "batch 2"], moves: Int64[Tensor, "batch 2 2"]
    ) -> tuple[Tensor, Tensor]:
        """Composites of pairs of images.

        Args:
            chosen: indices into the source.
            moves: of each of the two, (down, right) in pixels.

        Returns:
            The composites, uint8 `[batch, channels, height, width]`, and the two images of each,
            uint8 `[batch, 2, channels, height, width]`.
        """
        size = [side + 2 * self.pad for side in self.source.img_size]
        corners = moves.flatten(0, 1) + self.pad
        margin = self.pad + self.max_shift
        singles = place_images(self.source.images[chosen.flatten()], size, corners, margin)
        singles = singles.unflatten(0, (-1, 2))
        first, second = singles.unbind(dim=1)
        return first + torch.minimum(second, 255 - first), singles  # bytes that end at 255


def _fit_singles(singles: Tensor, images: Dataset) -> Tensor:
    """The two images of each composite as the set of composites is, which may be resized."""
    flat = fit_images(singles.flatten(0, 1), images.img_size, images.in_chans)
    return flat.unflatten(0, (-1, 2))


def make_pairs(
    source: Dataset,
    per_image: int = 1,
    max_shift: int = 4,
    pad: int | None = None,
    *,
    seed: int = 0,
    name: str | None = None,
) -> Dataset:
    """A fixed set of composites: every image with different partners of other classes.

    An image keeps one shift in all of its composites, as in the authors' code; each partner has its
    own. Those of an image are next to each other.

    Args:
        source: single images, uint8, of two or more classes.
        per_image: partners of each image, from 1 to half of the images of other classes; 1,000 in
            the paper.
        max_shift: largest move along each axis in whole pixels, 0 or more; 4 in the paper.
        pad: black pixels added on every side; None is `max_shift`, with which nothing is cut off.
        seed: 0 or more; gives the same set on every machine and version.
        name: by default "multi-" and the source's.

    Returns:
        The set of `per_image` composites of each image.

    Raises:
        DataError: for a source that no pairs can be made of.
        ValueError: for more partners than there are.
    """
    maker = PairMaker(source.to("cpu"), max_shift, pad, seed)
    base = torch.arange(len(source))
    num_partners = maker.num_partners_of(base)
    check_range("per_image", per_image, low=1, high=max(int(num_partners.min()) // 2, 1))

    random = np.random.RandomState(seed)
    ranks = torch.from_numpy(_draw_distinct(random, num_partners.numpy(), per_image))
    base = base.repeat_interleave(per_image)
    pairs = torch.column_stack([base, maker.partner(base, ranks.flatten())])

    # One shift for an image in all of its composites, and one for each of its partners.
    shifts = random.randint(-max_shift, max_shift + 1, (len(source), per_image + 1, 2))
    first = np.repeat(shifts[:, :1], per_image, axis=1)
    moves = torch.from_numpy(np.stack([first, shifts[:, 1:]], axis=2)).reshape(-1, 2, 2)

    chunks = zip(pairs.split(CHUNK), moves.split(CHUNK), strict=True)
    return Dataset(
        torch.cat([maker.overlay(pair, move)[0] for pair, move in chunks]),
        maker.pair_labels(pairs) | {"chosen": pairs, "moves": moves},
        source.classes,
        name or f"multi-{source.name}",
        base if maker.source.groups is None else maker.source.groups[base],
        source.notes,
        maker=maker,
    )


def _draw_distinct(random: np.random.RandomState, limits: np.ndarray, count: int) -> np.ndarray:
    """Rows of different random numbers.

    Args:
        random: draws them.
        limits: `[n]`; a row has numbers from 0 to its limit - 1.
        count: of numbers in a row.

    Returns:
        `[n, count]`.
    """
    highs = np.broadcast_to(limits[:, None], (len(limits), count))
    numbers = random.randint(0, highs)
    while True:
        # A number that an earlier place of its row has too is drawn again.
        order = np.argsort(numbers, axis=1, kind="stable")
        ordered = np.take_along_axis(numbers, order, axis=1)
        is_repeated = np.empty_like(numbers, bool)
        np.put_along_axis(is_repeated, order, np.diff(ordered, axis=1, prepend=-1) == 0, axis=1)
        if not is_repeated.any():
            return numbers
        numbers[is_repeated] = random.randint(0, highs[is_repeated])


def _make(source: Dataset, split: str) -> Dataset:
    """The named set of a source."""
    # Train and test take their draws from different seeds: both count their images from 0.
    return make_pairs(source, PER_IMAGE[split], SHIFT, seed=int(split == "test"))


def _make_masked(source: Dataset, split: str) -> Dataset:
    """The same pairs, each pixel of ink with the class of the brighter of the two."""
    pairs = _make(source, split)
    maker: Any = pairs.maker
    # Filled in place: parts between large blocks split up memory.
    masks = torch.empty(len(pairs), *pairs.img_size, dtype=torch.uint8)
    for index in torch.arange(len(pairs)).split(CHUNK):
        ink, brighter = maker.singles(pairs, index).amax(dim=2).max(dim=1)
        labels = pairs.targets["single_label"][index].gather(1, brighter.flatten(1))
        masks[index] = ((1 + labels.view_as(brighter)) * (ink >= INK)).byte()
    masked = masked_set(pairs.images, masks, ("background", *source.classes), pairs.name)
    return replace(masked, groups=pairs.groups)


for _base in (MNIST, DIGITS, FASHION):
    register_derived(_base, _make, **set_facts(f"multi-{_base.name}"))
for _base in (MNIST, DIGITS):
    register_derived(_base, _make_masked, **set_facts(f"multi-{_base.name}-masks"))
