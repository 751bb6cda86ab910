"""Digits on 40 × 40: placed at random, and affNIST's recipe applied to them (not affNIST itself, which is `affnist`).

The experiment of arXiv 1710.09829, section 5.2: train on placed digits, stop at an accuracy on placed digits that were
held out, then test on transformed ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchcaps.data._registry import Passport, dataset_reader, register_dataset
from torchcaps.data.dataset import ImageSet
from torchcaps.data.place import affine_copies, placed
from torchcaps.data.sets.digits import PASSPORT as DIGITS
from torchcaps.data.sets.mnist import PASSPORT as MNIST

SIDE = 40
COPIES = 4


def _register(name: str, title: str, base: Passport, copies: int) -> None:
    """A set of placed digits; `copies` transformed ones of each are its test images where that is above 0."""
    passport = replace(
        base, name=name, title=title, made_from=base.name, image_shape=(1, SIDE, SIDE), test=base.test * max(copies, 1)
    )

    @register_dataset(passport)
    def read(folder: Path, split: str) -> ImageSet | None:
        source = dataset_reader(base.name)(folder, split)
        if source is None:
            return None
        if split == "test" and copies:
            return affine_copies(source, copies, SIDE, seed=1, name=name)
        return placed(source, SIDE, seed=0 if split == "train" else 1, name=name)


_register("placed-mnist", "MNIST at random places of 40 × 40", MNIST, copies=0)
_register("placed-digits", "the package's digits at random places of 40 × 40", DIGITS, copies=0)
_register("affine-mnist", "trained on placed MNIST, tested by affNIST's recipe", MNIST, COPIES)
_register("affine-digits", "trained on placed digits of the package, tested by affNIST's recipe", DIGITS, COPIES)
