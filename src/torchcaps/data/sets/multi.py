"""MultiMNIST and its like: pairs of overlapping images, made on reading from the set that they take their images from.

Training: one composite of each image, and new ones in every step through `PairSet.draw`. Testing: two partners for
each image, always the same ones. Shifts of up to 4 pixels, on a canvas that cuts nothing off.

The sets with masks are the same pairs, which then stay the same in training; where digits overlap, a pixel belongs to
the brighter one.
"""

import torch

from torchcaps.data._registry import register_made
from torchcaps.data.dataset import ImageSet
from torchcaps.data.masks import MaskedSet
from torchcaps.data.pairs import PairSet, make_pairs
from torchcaps.data.sets.digits import INFO as DIGITS
from torchcaps.data.sets.fashion_mnist import INFO as FASHION
from torchcaps.data.sets.mnist import INFO as MNIST

PER_IMAGE = {"train": 1, "test": 2}
SHIFT = 4
INK = 128  # of 255: from here on a pixel belongs to a digit
CHUNK = 4096


def _make(source: ImageSet, split: str) -> PairSet:
    # Train and test take their draws from different seeds: both count their images from 0.
    return make_pairs(source, PER_IMAGE[split], SHIFT, seed=0 if split == "train" else 1)


def _masked(source: ImageSet, split: str) -> MaskedSet:
    """The same pairs, each pixel of ink with the class of the brighter of the two."""
    pairs, masks = _make(source, split), []
    for index in torch.arange(len(pairs)).split(CHUNK):
        ink, which = pairs.singles(index).amax(dim=2).max(dim=1)
        first, second = pairs.labels[index].view(-1, 2, 1, 1).unbind(dim=1)
        found = 1 + torch.where(which == 0, first, second)
        masks.append((found * (ink >= INK)).to(torch.uint8))
    return MaskedSet.of(pairs.images, torch.cat(masks), ("background", *source.classes), pairs.name)


for _base, _name, _title in (  # and, of digits, with masks
    (MNIST, "multi-mnist", "MultiMNIST, made from MNIST"),
    (DIGITS, "multi-digits", "pairs of the package's digits"),
    (FASHION, "multi-fashion-mnist", "pairs of Fashion-MNIST's articles"),
):
    _channels, _height, _width = _base.image_shape
    register_made(
        _base, _make, name=_name, title=_title, image_shape=(_channels, _height + 2 * SHIFT, _width + 2 * SHIFT),
        train=_base.train * PER_IMAGE["train"], test=_base.test * PER_IMAGE["test"],
    )  # fmt: skip
    if _base is not FASHION:
        register_made(
            _base, _masked, name=f"{_name}-masks", title=f"{_title}, with masks",
            image_shape=(_channels, _height + 2 * SHIFT, _width + 2 * SHIFT), train=_base.train * PER_IMAGE["train"],
            test=_base.test * PER_IMAGE["test"], classes=("background", *_base.classes),
        )  # fmt: skip
