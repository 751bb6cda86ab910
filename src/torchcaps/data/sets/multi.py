"""MultiMNIST: two images of different classes, shifted and laid over each other.

Sabour, Frosst, Hinton, "Dynamic Routing Between Capsules", arXiv 1710.09829, section 6. The named
sets are made on reading from the set of single images. Those with masks are the same pairs, which
then stay the same in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from torchcaps.data._registry import register_derived
from torchcaps.data.dataset import ImageBatch, ImageSet
from torchcaps.data.masks import MaskedSet
from torchcaps.data.pixels import fit_images, to_float
from torchcaps.data.sets.fashion_mnist import INFO as FASHION
from torchcaps.data.sets.mnist import DIGITS, INFO as MNIST
from torchcaps.data.sets.placed import place_images
from torchcaps.errors import DataError, check_range, check_shape
from torchcaps.transfer import to_device

PER_IMAGE = {"train": 1, "test": 2}
SHIFT = 4
INK = 128  # of 255: from here on a pixel belongs to a digit
CHUNK = 4096  # composites made at a time


def multi_hot(
    labels: Int64[Tensor, "batch several"], num_classes: int
) -> Float[Tensor, "batch classes"]:
    """1 for each class that an image shows and 0 for the others, as in margin loss.

    Args:
        labels: `[batch, several]` class indices; -1 where an image shows fewer classes.
        num_classes: number of classes.

    Returns:
        Float32 `[batch, num_classes]`.

    Raises:
        ValueError: for labels of other axes.
    """
    check_shape("labels", labels, ("batch", "several"))
    targets = torch.zeros(len(labels), 1 + num_classes, device=labels.device)
    return targets.scatter_(1, labels + 1, 1.0)[:, 1:].contiguous()  # the first column is of -1


class PairMaker:
    """Draws composites of a set on the set's device: on-line MultiMNIST.

    Args:
        source: single images, uint8, of two or more classes that have images.
        max_shift: largest move along each axis in whole pixels, drawn uniformly; 4 in the paper.
        pad: black pixels added on every side; None is `max_shift`, with which nothing is cut off.

    Raises:
        DataError: for another source.
        ValueError: for a shift or padding below 0.
    """

    def __init__(self, source: ImageSet, max_shift: int = 4, pad: int | None = None) -> None:
        self.source = source
        self.max_shift = max_shift
        self.pad = max_shift if pad is None else pad
        check_range("max_shift", self.max_shift, low=0)
        check_range("pad", self.pad, low=0)
        if source.images.dtype != torch.uint8:
            dtype = source.images.dtype
            raise DataError(f"{source.name}: expected uint8 images to make pairs of, got {dtype}")
        # Sorted by class, the partners of an image are all positions but a block of known place
        # and length.
        self._counts = torch.bincount(source.labels, minlength=source.num_classes)
        self._starts = self._counts.cumsum(0) - self._counts
        self._sorted = source.labels.argsort(stable=True)
        if int(self._counts.max()) == len(source):
            expected = "expected images of two classes or more to make pairs of"
            raise DataError(f"{source.name}: {expected}, got one class")

    def others(self, base: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
        """The number of images of another class, for each of these.

        Args:
            base: `[batch]` indices of images.

        Returns:
            `[batch]` counts.
        """
        label = self.source.labels[base]
        return len(self.source) - self._counts[label]

    def partner(
        self, base: Int64[Tensor, " batch"], rank: Int64[Tensor, " batch"]
    ) -> Int64[Tensor, " batch"]:
        """Images of other classes than those at `base`.

        Args:
            base: indices of images.
            rank: number of the partner among all of another class, 0 to `others(base) - 1`.

        Returns:
            `[batch]` indices of the partners.
        """
        label = self.source.labels[base]
        is_behind = rank >= self._starts[label]  # of the images of its own class
        place = rank + self._counts[label] * is_behind
        return self._sorted[place]

    def sample_batch(self, base: Int64[Tensor, " batch"], *, generator: Generator) -> ImageBatch:
        """Composites, uint8, of images with random partners and shifts.

        Args:
            base: indices of the images; each gets a partner of another class.
            generator: draws partners and shifts.

        Returns:
            Composites `[batch, channels, height, width]`, their two labels `[batch, 2]` and the two
            single images `[batch, 2, channels, height, width]`.
        """
        device = generator.device
        base = base.to(self.source.labels.device)
        shares = torch.rand(len(base), generator=generator, device=device, dtype=torch.float64)
        num_partners = self.others(base)
        rank = (to_device(shares, base.device) * num_partners).long()
        rank = torch.minimum(rank, num_partners - 1)
        pairs = torch.stack([base, self.partner(base, rank)], dim=1)

        num_moves = 2 * self.max_shift + 1
        moves = torch.randint(num_moves, (len(base), 2, 2), generator=generator, device=device)
        return self.overlay(pairs, to_device(moves, base.device) - self.max_shift)

    def overlay(
        self, chosen: Int64[Tensor, "batch 2"], moves: Int64[Tensor, "batch 2 2"]
    ) -> ImageBatch:
        """Composites, uint8, of pairs of images.

        Args:
            chosen: `[batch, 2]` indices into the source.
            moves: `[batch, 2, 2]`, of each of the two, (down, right) in pixels.

        Returns:
            Composites `[batch, channels, height, width]`, their two labels `[batch, 2]` and the two
            single images `[batch, 2, channels, height, width]`.
        """
        height, width = self.source.img_size
        size = (height + 2 * self.pad, width + 2 * self.pad)
        corners = moves.flatten(0, 1) + self.pad
        margin = self.pad + self.max_shift
        singles = place_images(self.source.images[chosen.flatten()], size, corners, margin)
        singles = singles.unflatten(0, (-1, 2))

        first, second = singles.unbind(dim=1)
        room = 255 - first  # in bytes, the second may add no more
        images = first + torch.minimum(second, room)
        return ImageBatch(images, self.source.labels[chosen], singles)


@dataclass(frozen=True, eq=False, repr=False)
class PairSet(ImageSet):
    """Composites of two images; the single images are not stored, but made from the source.

    Attributes:
        maker: what made the set; `maker.source` is the set of single images.
        chosen: indices into the source.
        moves: of each of the two, (down, right) in pixels.
        seed: with which the set was made.
        images: the composites, uint8 `[n, channels, height, width]`.
        labels: `[n, 2]` classes of the two images, indices into `classes`.
        classes: names of the classes.
        name: name of the set in tables and reports.
        factors: further numbers of each composite by name, each `[n]`.
        groups: `[n]` integers, equal for composites of one first image, which are not independent.
        notes: sentences about what was read and what was left out.
        files: name of the file of each image, if known.
    """

    maker: PairMaker = field(kw_only=True)
    chosen: Int64[Tensor, "n 2"] = field(kw_only=True)
    moves: Int64[Tensor, "n 2 2"] = field(kw_only=True)
    seed: int = field(default=0, kw_only=True)
    per_image: ClassVar[tuple[str, ...]] = ("images", "labels", "chosen", "moves")
    label_shape: ClassVar[tuple[int, ...]] = (2,)

    def singles(
        self, indices: Tensor | Sequence[int]
    ) -> UInt8[Tensor, "m 2 channels height width"]:
        """The two images of each composite at `indices`, as large as the composites.

        Args:
            indices: `[m]` integers.

        Returns:
            uint8 `[m, 2, channels, height, width]`.
        """
        """The two images of each composite at `indices`, as the composites are."""
        index = self._index(indices)
        pairs = self.maker.overlay(self.chosen[index], self.moves[index])
        _, singles = self._fit(pairs)
        return singles

    def sample_batch(self, indices: Tensor | Sequence[int], *, generator: Generator) -> ImageBatch:
        """New composites of the first images of some composites.

        Args:
            indices: `[batch]` integers.
            generator: draws partners and shifts.

        Returns:
            Float composites in [0, 1], their labels `[batch, 2]`, and their single images.
        """
        base = self.chosen[self._index(indices), 0]
        pairs = self.maker.sample_batch(base, generator=generator)
        images, singles = self._fit(pairs)
        return ImageBatch(to_float(images), pairs.labels, to_float(singles))

    def train_val_split(self, fraction_or_count: float, seed: int = 0) -> tuple[PairSet, PairSet]:
        """Two sets of new composites, made of two parts of the source: they share no single image.

        Args:
            fraction_or_count: of the source's images, as `stratified_split` takes it.
            seed: of the split.

        Returns:
            The training set and the validation set.
        """
        train, val = self.maker.source.train_val_split(fraction_or_count, seed)
        return self._remake(train), self._remake(val)

    def to(self, device: torch.device | str) -> Self:
        """The set, and its source, with images and labels on a device.

        Args:
            device: of torch, such as "cuda".

        Returns:
            The moved set.
        """
        source = self.maker.source.to(device)
        maker = PairMaker(source, self.maker.max_shift, self.maker.pad)
        return replace(super().to(device), maker=maker)

    def _remake(self, source: ImageSet) -> PairSet:
        """A set of another source, with as many composites of each image."""
        maker = self.maker
        per_image = max(round(len(self) / len(maker.source)), 1)
        pairs = make_pairs(
            source,
            per_image,
            maker.max_shift,
            maker.pad,
            seed=self.seed,
            name=self.name,
        )
        return pairs.resized(self.img_size, self.in_chans)

    def _fit(self, pairs: ImageBatch) -> tuple[Tensor, Tensor]:
        """Composites and singles as the stored composites, which a caller may have resized."""
        assert pairs.singles is not None
        images = fit_images(pairs.images, self.img_size, self.in_chans)
        singles = fit_images(pairs.singles.flatten(0, 1), self.img_size, self.in_chans)
        return images, singles.unflatten(0, (-1, 2))


def make_pairs(
    source: ImageSet,
    per_image: int = 1,
    max_shift: int = 4,
    pad: int | None = None,
    *,
    seed: int = 0,
    name: str | None = None,
) -> PairSet:
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
    maker = PairMaker(source.to("cpu"), max_shift, pad)
    base = torch.arange(len(source))
    num_partners = maker.others(base)
    check_range("per_image", per_image, low=1, high=max(int(num_partners.min()) // 2, 1))

    random = np.random.RandomState(seed)
    ranks = torch.from_numpy(_draw_distinct(random, num_partners.numpy(), per_image))
    base = base.repeat_interleave(per_image)
    pairs = torch.stack([base, maker.partner(base, ranks.flatten())], dim=1)

    # One shift for an image in all of its composites, and one for each of its partners.
    shifts = random.randint(-max_shift, max_shift + 1, (len(source), per_image + 1, 2))
    first = np.repeat(shifts[:, :1], per_image, axis=1)
    second = shifts[:, 1:]
    moves = torch.from_numpy(np.stack([first, second], axis=2)).reshape(-1, 2, 2)

    images = []
    for pairs_chunk, moves_chunk in zip(pairs.split(CHUNK), moves.split(CHUNK), strict=True):
        images.append(maker.overlay(pairs_chunk, moves_chunk).images)
    return PairSet(
        torch.cat(images),
        maker.source.labels[pairs],
        source.classes,
        name or f"multi-{source.name}",
        groups=base if maker.source.groups is None else maker.source.groups[base],
        notes=source.notes,
        maker=maker,
        chosen=pairs,
        moves=moves,
        seed=seed,
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
        is_repeated = np.empty_like(numbers, dtype=bool)
        repeats = np.diff(ordered, axis=1, prepend=-1) == 0
        np.put_along_axis(is_repeated, order, repeats, axis=1)
        if not is_repeated.any():
            return numbers
        numbers[is_repeated] = random.randint(0, highs[is_repeated])


def _make(source: ImageSet, split: str) -> PairSet:
    """The named set of a source."""
    # Train and test take their draws from different seeds: both count their images from 0.
    return make_pairs(source, PER_IMAGE[split], SHIFT, seed=0 if split == "train" else 1)


def _make_masked(source: ImageSet, split: str) -> MaskedSet:
    """The same pairs, each pixel of ink with the class of the brighter of the two."""
    pairs = _make(source, split)
    # Filled in place: parts between large blocks split up memory.
    masks = torch.empty((len(pairs), *pairs.img_size), dtype=torch.uint8)
    for index in torch.arange(len(pairs)).split(CHUNK):
        ink, brighter = pairs.singles(index).amax(dim=2).max(dim=1)
        labels = pairs.labels[index].gather(1, brighter.flatten(1)).view_as(brighter)
        is_ink = ink >= INK
        masks[index] = ((1 + labels) * is_ink).to(torch.uint8)
    classes = ("background", *source.classes)
    masked = MaskedSet.of(pairs.images, masks, classes, pairs.name)
    return replace(masked, groups=pairs.groups)


for _base, _title in (
    (MNIST, "MultiMNIST, made from MNIST"),
    (DIGITS, "pairs of the package's digits"),
    (FASHION, "pairs of Fashion-MNIST's articles"),
):
    _, _height, _width = _base.image_shape
    _changes = {
        "image_shape": (1, _height + 2 * SHIFT, _width + 2 * SHIFT),
        "train": _base.train * PER_IMAGE["train"],
        "test": _base.test * PER_IMAGE["test"],
    }
    _name = f"multi-{_base.name}"
    register_derived(_base, _make, name=_name, title=_title, **_changes)
    if _base is not FASHION:
        register_derived(
            _base,
            _make_masked,
            name=f"{_name}-masks",
            title=f"{_title}, with masks",
            classes=("background", *_base.classes),
            **_changes,
        )
