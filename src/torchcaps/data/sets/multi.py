"""MultiMNIST and its like: pairs of overlapping images, made on reading from the set that they take their images from.

Training: one composite of each image, and new ones in every step through `PairSet.draw`. Testing: two partners for
each image, always the same ones. Shifts of up to 4 pixels, on a canvas that cuts nothing off.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchcaps.data._registry import Passport, dataset_reader, register_dataset
from torchcaps.data.pairs import PairSet, make_pairs
from torchcaps.data.sets.digits import PASSPORT as DIGITS
from torchcaps.data.sets.fashion_mnist import PASSPORT as FASHION
from torchcaps.data.sets.mnist import PASSPORT as MNIST

PER_IMAGE = {"train": 1, "test": 2}
SHIFT = 4


def _register(name: str, title: str, base: Passport) -> None:
    channels, height, width = base.image_shape
    passport = replace(
        base, name=name, title=title, made_from=base.name,
        image_shape=(channels, height + 2 * SHIFT, width + 2 * SHIFT),
        train=base.train * PER_IMAGE["train"], test=base.test * PER_IMAGE["test"],
    )  # fmt: skip

    @register_dataset(passport)
    def read(folder: Path, split: str) -> PairSet | None:
        source = dataset_reader(base.name)(folder, split)
        # Train and test take their draws from different seeds: both count their images from 0.
        seed = 0 if split == "train" else 1
        return None if source is None else make_pairs(source, PER_IMAGE[split], SHIFT, seed=seed, name=name)


_register("multi-mnist", "MultiMNIST, made from MNIST", MNIST)
_register("multi-digits", "pairs of the package's digits", DIGITS)
_register("multi-fashion-mnist", "pairs of Fashion-MNIST's articles", FASHION)
