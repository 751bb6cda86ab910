"""MultiMNIST: two images of different classes, shifted and laid over each other (arXiv 1710.09829, section 6).

The named sets are made on reading from the set of single images. Those with masks are the same pairs, which then stay
the same in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from torchcaps.data._registry import register_derived
from torchcaps.data.augment.crop import windows_at
from torchcaps.data.dataset import ImageBatch, ImageSet
from torchcaps.data.masks import MaskedSet
from torchcaps.data.pixels import fit_images, to_float
from torchcaps.data.sets.fashion_mnist import INFO as FASHION
from torchcaps.data.sets.mnist import DIGITS, INFO as MNIST
from torchcaps.errors import DataError, check_range, check_shape

PER_IMAGE = {"train": 1, "test": 2}
SHIFT = 4
INK = 128  # of 255: from here on a pixel belongs to a digit
CHUNK = 4096  # composites made at a time


def multi_hot(
    labels: Int64[Tensor, "batch several"], num_classes: int
) -> Float[Tensor, "batch classes"]:
    """1 for each class that is there and 0 for the others, `[batch, num_classes]` float32, as in margin loss.

    ValueError for other axes.
    """
    check_shape("labels", labels, ("batch", "several"))
    return torch.zeros(len(labels), num_classes, device=labels.device).scatter_(1, labels, 1.0)


class PairMaker:
    """Draws composites of a set on the set's device: on-line MultiMNIST.

    The source is uint8, of two or more classes that have images; otherwise DataError. `max_shift` is the largest move
    along each axis, in whole pixels, drawn uniformly; 4 in the paper. `pad` is how many black pixels are added on every
    side; None is `max_shift`, with which nothing is cut off.
    """

    def __init__(self, source: ImageSet, max_shift: int = 4, pad: int | None = None) -> None:
        pad = max_shift if pad is None else pad
        check_range("max_shift", max_shift, low=0)
        check_range("pad", pad, low=0)
        if source.images.dtype != torch.uint8:
            raise DataError(
                f"{source.name}: expected uint8 images to make pairs of, got {source.images.dtype}"
            )
        self.source, self.max_shift, self.pad = source, max_shift, pad
        counts = torch.bincount(source.labels, minlength=source.num_classes)
        if int((counts > 0).sum()) < 2:
            raise DataError(
                f"{source.name}: expected images of two classes or more to make pairs of, got one class"
            )
        # Sorted by class, the partners of an image are all positions but a block of known place and length.
        self._sorted = source.labels.argsort(stable=True)
        self._count, self._start = counts, counts.cumsum(0) - counts

    def others(self, base: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
        """How many images are of another class than each of these."""
        return len(self.source) - self._count[self.source.labels[base]]

    def partner(
        self, base: Int64[Tensor, " batch"], rank: Int64[Tensor, " batch"]
    ) -> Int64[Tensor, " batch"]:
        """The image of number `rank` among those of another class; `rank` from 0 to `others(base) - 1`."""
        label = self.source.labels[base]
        return self._sorted[rank + self._count[label] * (rank >= self._start[label])]

    def sample_batch(self, base: Int64[Tensor, " batch"], *, generator: Generator) -> ImageBatch:
        """Composites, uint8, of the images at `base`, each with a random partner and two random shifts."""
        base, place = base.to(self.source.labels.device), generator.device
        drawn = torch.rand(len(base), generator=generator, device=place, dtype=torch.float64).to(
            base.device
        )
        others = self.others(base)
        rank = torch.minimum((drawn * others).long(), others - 1)
        moves = torch.randint(
            2 * self.max_shift + 1, (len(base), 2, 2), generator=generator, device=place
        )
        moves = moves.to(base.device) - self.max_shift
        return self.overlay(torch.stack([base, self.partner(base, rank)], dim=1), moves)

    def overlay(
        self, chosen: Int64[Tensor, "batch 2"], moves: Int64[Tensor, "batch 2 2"]
    ) -> ImageBatch:
        """The composites of these pairs of images, moved (down, right) by these numbers of pixels; uint8."""
        singles = _moved(
            self.source.images[chosen.flatten()], moves.flatten(0, 1), self.pad
        ).unflatten(0, (-1, 2))
        first, second = singles.unbind(dim=1)
        # In bytes: what is left up to 255 is all that the second may add.
        return ImageBatch(
            first + torch.minimum(second, 255 - first), self.source.labels[chosen], singles
        )


@dataclass(frozen=True, eq=False, repr=False)
class PairSet(ImageSet):
    """Composites of two images, with labels `[n, 2]`; the single images are not stored, but made from the source."""

    maker: PairMaker = field(
        kw_only=True
    )  # what made the set; `maker.source` is the set of single images
    chosen: Int64[Tensor, "n 2"] = field(kw_only=True)  # indices into the source
    moves: Int64[Tensor, "n 2 2"] = field(
        kw_only=True
    )  # of each of the two, (down, right) in pixels
    seed: int = field(default=0, kw_only=True)
    per_image: ClassVar[tuple[str, ...]] = ("images", "labels", "chosen", "moves")
    label_shape: ClassVar[tuple[int, ...]] = (2,)

    def targets(self, indices: Tensor | Sequence[int] | None = None) -> Float[Tensor, "m classes"]:
        """The two-hot labels of the images at `indices` (all when None): `multi_hot(labels, num_classes)`."""
        labels = self.labels if indices is None else self.labels[self._index(indices)]
        return multi_hot(labels, self.num_classes)

    def singles(
        self, indices: Tensor | Sequence[int]
    ) -> UInt8[Tensor, "m 2 channels height width"]:
        """What each of the two classes of an image looks like alone."""
        index = self._index(indices)
        return self._fitted_singles(self.maker.overlay(self.chosen[index], self.moves[index]))

    @property
    def draws(self) -> Int64[Tensor, " n"]:
        return self.chosen[:, 0]

    def sample_batch(self, indices: Tensor | Sequence[int], *, generator: Generator) -> ImageBatch:
        pairs = self.maker.sample_batch(self.chosen[self._index(indices), 0], generator=generator)
        return ImageBatch(
            to_float(self._fitted(pairs.images)),
            pairs.labels,
            to_float(self._fitted_singles(pairs)),
        )

    def train_val_split(self, fraction_or_count: float, seed: int = 0) -> tuple[PairSet, PairSet]:
        """Two sets of new composites, made of two parts of the source: no single image is in both.

        The fraction or count is one of the source's images, as `stratified_split` takes it; `seed` is of the split.
        """
        per_image = max(round(len(self) / len(self.maker.source)), 1)
        kept, held = self.maker.source.train_val_split(fraction_or_count, seed)
        return self._of(kept, per_image), self._of(held, per_image)

    def to(self, device: torch.device | str) -> Self:
        maker = PairMaker(self.maker.source.to(device), self.maker.max_shift, self.maker.pad)
        return replace(super().to(device), maker=maker)

    def _of(self, source: ImageSet, per_image: int) -> PairSet:
        made = make_pairs(
            source, per_image, self.maker.max_shift, self.maker.pad, seed=self.seed, name=self.name
        )
        return replace(made, images=self._fitted(made.images))

    def _fitted(self, images: Tensor) -> Tensor:
        """At the size and with the channels of the stored composites, which a caller may have changed."""
        return fit_images(images, self.img_size, self.in_chans)

    def _fitted_singles(self, pairs: ImageBatch) -> Tensor:
        assert pairs.singles is not None
        return self._fitted(pairs.singles.flatten(0, 1)).unflatten(0, (-1, 2))


def make_pairs(
    source: ImageSet,
    per_image: int = 1,
    max_shift: int = 4,
    pad: int | None = None,
    *,
    seed: int = 0,
    name: str | None = None,
) -> PairSet:
    """A fixed set of composites: every image of the source with `per_image` different partners of other classes.

    An image keeps one shift in all of its composites, as in the authors' code; each partner has its own. Those of an
    image are next to each other. The same seed, 0 or more, gives the same set on every machine and version.

    `per_image` is from 1 to half of the images of other classes; 1,000 in the paper. For `source`, `max_shift` and
    `pad` see `PairMaker`. The name None is "multi-" and the source's.

    ValueError for more partners than there are.
    """
    maker = PairMaker(source.to("cpu"), max_shift, pad)
    base = torch.arange(len(source))
    others = maker.others(base)
    check_range("per_image", per_image, low=1, high=max(int(others.min()) // 2, 1))
    random = np.random.RandomState(seed)
    ranks = torch.from_numpy(_distinct(random, others.numpy(), per_image)).flatten()
    base = base.repeat_interleave(per_image)
    moves = random.randint(-max_shift, max_shift + 1, (len(source), per_image + 1, 2))
    first = np.repeat(moves[:, :1], per_image, axis=1)
    both = torch.from_numpy(np.stack([first, moves[:, 1:]], axis=2).reshape(-1, 2, 2))
    chosen = torch.stack([base, maker.partner(base, ranks)], dim=1)
    parts = [
        maker.overlay(c, m).images
        for c, m in zip(chosen.split(CHUNK), both.split(CHUNK), strict=True)
    ]
    return PairSet(
        torch.cat(parts),
        maker.source.labels[chosen],
        source.classes,
        name or f"multi-{source.name}",
        maker=maker,
        chosen=chosen,
        moves=both,
        seed=seed,
    )


def _distinct(random: np.random.RandomState, limits: np.ndarray, count: int) -> np.ndarray:
    """`[n, count]`: in each row, `count` different numbers from 0 to its limit - 1."""
    drawn = random.randint(0, limits[:, None], (len(limits), count))
    while True:
        order = np.argsort(drawn, axis=1, kind="stable")
        ordered = np.take_along_axis(drawn, order, axis=1)
        again = np.zeros_like(drawn, dtype=bool)
        np.put_along_axis(again[:, :], order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
        if not again.any():
            return drawn
        drawn[again] = random.randint(0, np.broadcast_to(limits[:, None], drawn.shape)[again])


def _moved(images: Tensor, moves: Tensor, pad: int) -> Tensor:
    """Images `[batch, ...]` on a canvas with `pad` more pixels a side, moved (down, right); zeros come in."""
    reach = int(moves.abs().max()) if len(moves) else 0
    size = [side + 2 * pad for side in images.shape[2:]]
    return windows_at(F.pad(images, (pad + reach,) * 4), size, *(reach - moves).unbind(dim=1))


def _make(source: ImageSet, split: str) -> PairSet:
    # Train and test take their draws from different seeds: both count their images from 0.
    return make_pairs(source, PER_IMAGE[split], SHIFT, seed=0 if split == "train" else 1)


def _masked(source: ImageSet, split: str) -> MaskedSet:
    """The same pairs, each pixel of ink with the class of the brighter of the two."""
    pairs = _make(source, split)
    masks = torch.empty(
        (len(pairs), *pairs.img_size), dtype=torch.uint8
    )  # parts between large blocks split up memory
    for index in torch.arange(len(pairs)).split(CHUNK):
        ink, which = pairs.singles(index).amax(dim=2).max(dim=1)
        found = 1 + pairs.labels[index].gather(1, which.flatten(1)).view_as(which)
        masks[index] = (found * (ink >= INK)).to(torch.uint8)
    return MaskedSet.of(pairs.images, masks, ("background", *source.classes), pairs.name)


_TITLES = (
    "MultiMNIST, made from MNIST",
    "pairs of the package's digits",
    "pairs of Fashion-MNIST's articles",
)
for _base, _title in zip((MNIST, DIGITS, FASHION), _TITLES, strict=True):
    _known = {
        "image_shape": (1, *(side + 2 * SHIFT for side in _base.image_shape[1:])),
        "train": _base.train * PER_IMAGE["train"],
        "test": _base.test * PER_IMAGE["test"],
    }
    _name = f"multi-{_base.name}"
    register_derived(_base, _make, name=_name, title=_title, **_known)
    if _base is not FASHION:
        _known["classes"] = ("background", *_base.classes)
        register_derived(
            _base, _masked, name=f"{_name}-masks", title=f"{_title}, with masks", **_known
        )
