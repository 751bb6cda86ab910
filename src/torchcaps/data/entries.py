"""Files with a class each, before they are read: what folders, archives and tables have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import ImageSet
from torchcaps.data.images import decode_image, is_grey
from torchcaps.data.split import default_split
from torchcaps.errors import DataError

MOST_DIGITS = 300


@dataclass(frozen=True)
class Entry:
    """One image to read: its file (a path, or a name inside an archive), its class, its split where one is given."""

    file: str
    label: str
    split: str | None = None


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sorting key by which `img2` comes before `img10`."""
    parts = re.split(r"(\d+)", text)
    # Python turns no more than 4,300 digits into a number; so long a name sorts as text.
    numbers = (part.isdecimal() and len(part) <= MOST_DIGITS for part in parts)
    return [
        (0, int(part), part) if number else (1, 0, part) for part, number in zip(parts, numbers, strict=True) if part
    ]


def select(name: str, entries: Sequence[Entry], split: str) -> tuple[list[Entry], tuple[str, ...], Tensor]:
    """The entries of one split, in natural order of class and file.

    Where entries carry no split of their own, 20 % of each class (at least one image of two or more) are the test
    split, chosen by `holdout` with seed 0 from the files in natural order.

    Args:
        name: the set's name or path, for errors.
        entries: all images of the set, either all with a split or all without.
        split: "train" or "test".

    Returns:
        (entries of the split, names of all classes, labels `[n]` int64).

    Raises:
        DataError: fewer than two classes, a test class that training lacks, or nothing in this split.
    """
    ordered = sorted(entries, key=lambda e: (natural(e.label), natural(e.file)))
    training = [e for e in ordered if e.split in (None, "train")]
    classes = tuple(dict.fromkeys(e.label for e in training))
    if len(classes) < 2:
        raise DataError(f"{name}: expected at least two classes to train on, got {', '.join(classes) or 'none'}")
    index = {label: i for i, label in enumerate(classes)}
    strange = next((e for e in ordered if e.label not in index), None)
    if strange is not None:
        raise DataError(f"{name}: test class {strange.label!r} is not among the training classes")
    if any(e.split for e in ordered):
        chosen = [e for e in ordered if e.split == split]
    else:
        labels = torch.tensor([index[e.label] for e in ordered])
        chosen = [ordered[i] for i in default_split(name, labels, split)]
    if not chosen:
        raise DataError(f"{name}: no image of the {split!r} split in it")
    return chosen, classes, torch.tensor([index[e.label] for e in chosen])


def read_entries(
    name: str, entries: Sequence[Entry], split: str, img_size: int | tuple[int, int] | None, in_chans: int | None
) -> ImageSet:
    """Read the images of one split from disk.

    Args:
        name: the set's name.
        entries: all images of the set; their files are paths.
        split: "train" or "test".
        img_size: (height, width) or one side of a square; None demands that all images have one size.
        in_chans: 1 or 3; None is 1 when every image of both splits is grey, otherwise 3.

    Raises:
        DataError: as `select` and `decode_image`; or sizes differ and no `img_size` is given.
    """
    chosen, classes, labels = select(name, entries, split)
    if in_chans is None:
        in_chans = 1 if all(is_grey(e.file) for e in entries) else 3
    pixels = [decode_image(e.file, img_size, in_chans) for e in chosen]
    return ImageSet(stack_images(name, chosen, pixels), labels, classes, name)


def stack_images(name: str, entries: Sequence[Entry], pixels: Sequence[Tensor]) -> Tensor:
    """Images `[channels, height, width]` of one size as one tensor `[n, channels, height, width]`.

    Raises:
        DataError: two images differ in size; the message names one of each and says what to do.
    """
    first = pixels[0].shape[1:]
    for entry, image in zip(entries, pixels, strict=True):
        if image.shape[1:] != first:
            raise DataError(
                f"{name}: images differ in size ({Path(entries[0].file).name} is {first[0]} × {first[1]}, "
                f"{entry.file} is {image.shape[1]} × {image.shape[2]}); give img_size (--img-size) to resize them all"
            )
    return torch.stack(list(pixels))
