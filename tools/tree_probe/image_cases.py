"""Data sets that come with the package or are rendered, and the images that trainings take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from adapter import labels_of, masks_of, with_parts

import torchcaps as tc
from records import Record, checksum

EMBEDDED = (
    "digits",
    "multi-digits",
    "multi-digits-masks",
    "placed-digits",
    "affine-digits",
    "planes",
)
TREE_DIGITS = tuple(
    f"{'even' if digit % 2 == 0 else 'odd'}/{'small' if digit < 5 else 'large'} {digit % 2}/{digit}"
    for digit in range(10)
)


def dataset_cases(_steps: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    for name in EMBEDDED:
        yield f"data/{name}", partial(probe_dataset, name)
    for name in IMAGES:
        yield f"data/for training: {name}", partial(probe_training_images, name)


def probe_dataset(name: str) -> Record:
    record = Record()
    for split in ("train", "test"):
        images = tc.data.load_dataset(name, split)
        record.add(f"{split} images, all", checksum(images.images))
        record.add(f"{split} images", images.images[::50])
        record.add(f"{split} labels", labels_of(images))
    return record


def probe_training_images(name: str) -> Record:
    record = Record()
    for split in ("train", "test"):
        images = IMAGES[name](split)
        record.add(f"{split} images", images.images)
        if "value" in getattr(images, "targets", {}):
            record.add(f"{split} values", images.targets["value"])
        else:
            record.add(f"{split} labels", labels_of(images))
        record.add(f"{split} masks", masks_of(images))
    return record


@cache
def digits(split: str) -> Any:
    """240 digits to train with, 50 to test with, of 20 x 20 pixels."""
    full_set = tc.data.load_dataset("digits", split, img_size=20)
    count = 240 if split == "train" else 50
    return full_set.subset(torch.arange(0, len(full_set), len(full_set) // count)[:count])


@cache
def three_digits(split: str) -> Any:
    """The digits 0, 1 and 2."""
    full_set = digits(split)
    selection = full_set.subset((full_set.labels < 3).nonzero().flatten())
    return with_parts(selection, classes=full_set.classes[:3])


@cache
def tree_digits(split: str) -> Any:
    """Digits whose classes are paths of a label tree."""
    full_set = digits(split)
    order = sorted(range(10), key=TREE_DIGITS.__getitem__)
    place = torch.tensor([order.index(digit) for digit in range(10)])
    classes = tuple(TREE_DIGITS[digit] for digit in order)
    return with_parts(full_set, labels=place[full_set.labels], classes=classes)


@cache
def digit_pairs(split: str) -> Any:
    """Two digits laid over each other, on 24 x 24 pixels."""
    return tc.data.make_pairs(digits(split), 1, max_shift=2, seed=int(split == "test"))


@cache
def digit_values(split: str) -> Any:
    """Digits with two real numbers each: the mean of their pixels, and the spread."""
    images = digits(split).images
    pixels = images.flatten(1).double()
    values = torch.stack([pixels.mean(dim=1), pixels.std(dim=1)], dim=1).float()
    return tc.data.Dataset(images, {"value": values}, ("mean", "spread"), "digit values")


@cache
def placed_digits(split: str) -> Any:
    """Digits at random places, which a training draws anew."""
    return tc.data.placed(digits(split), 22, seed=int(split == "test"))


@cache
def color_digits(split: str) -> Any:
    """Digits in three colours, as float images."""
    full_set = digits(split)
    scale = torch.tensor([1.0, 0.7, 0.4]).view(1, 3, 1, 1)
    return with_parts(full_set, images=full_set.float_images() * scale)


@cache
def shapes(split: str) -> Any:
    """Shapes with masks."""
    count = 60 if split == "train" else 16
    return tc.data.render_shapes(count, 16, seed=int(split == "test"))


@cache
def planes(split: str) -> Any:
    """Sets of 32 points of the plane."""
    count = 60 if split == "train" else 16
    return tc.data.make_planes(count, 32, seed=int(split == "test"))


IMAGES: dict[str, Callable[[str], Any]] = {
    "digits": digits,
    "three digits": three_digits,
    "tree digits": tree_digits,
    "digit pairs": digit_pairs,
    "digit values": digit_values,
    "placed digits": placed_digits,
    "color digits": color_digits,
    "shapes": shapes,
    "planes": planes,
}
