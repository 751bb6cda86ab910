"""MultiMNIST and its like: pairs of overlapping images, made on reading from the set of single images.

The sets with masks are the same pairs, which then stay the same in training.
"""

import torch

from torchcaps.data._registry import register_made
from torchcaps.data.dataset import ImageSet
from torchcaps.data.masks import MaskedSet
from torchcaps.data.pairs import PairSet, make_pairs
from torchcaps.data.sets.fashion_mnist import INFO as FASHION
from torchcaps.data.sets.mnist import DIGITS
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


for _base, _title in (
    (MNIST, "MultiMNIST, made from MNIST"),
    (DIGITS, "pairs of the package's digits"),
    (FASHION, "pairs of Fashion-MNIST's articles"),
):
    _known = {
        "image_shape": (1, *(side + 2 * SHIFT for side in _base.image_shape[1:])),
        "train": _base.train * PER_IMAGE["train"], "test": _base.test * PER_IMAGE["test"],
    }  # fmt: skip
    _name = f"multi-{_base.name}"
    register_made(_base, _make, name=_name, title=_title, **_known)
    if _base is not FASHION:
        _known["classes"] = ("background", *_base.classes)
        register_made(_base, _masked, name=f"{_name}-masks", title=f"{_title}, with masks", **_known)
