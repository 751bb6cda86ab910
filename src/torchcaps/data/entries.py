"""Image files with a class each, before they are decoded: shared by folders, archives and tables.

Classes whose names are paths from coarse to fine, such as `clothing/tops/shirt`, form a label tree.
A set carries its tree in the names of its classes. So do its subsets, its splits, and the models
trained on it.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.data._registry import ReadRequest
from torchcaps.data.budget import MemoryBudget, open_reader
from torchcaps.data.dataset import ImageSet, default_split
from torchcaps.data.files import image_files, stays_on_disk
from torchcaps.data.images import ImageSource, decode_image, is_gray, natural_key
from torchcaps.data.pixels import to_channels
from torchcaps.errors import DataError

SEPARATOR = "/"  # between the levels of a label tree in the name of a class


class Entry(NamedTuple):
    """An image file to read.

    Attributes:
        file: a path, or a name in an archive.
        label: name of its class.
        split: "train" or "test"; None where the files state no split.
        group: name of the object that the image shows, such as a track of frames; None where the
            images are independent.
    """

    file: str
    label: str
    split: str | None = None
    group: str | None = None


def plain_or_packed(folder: Path, pattern: str) -> Path | None:
    """The first file in a folder that matches a `glob` pattern, or the pattern and `.gz`."""
    for suffix in ("", ".gz"):
        for file in sorted(folder.glob(pattern + suffix)):
            return file
    return None


@contextmanager
def csv_rows(
    path: Path,
    budget: MemoryBudget | None = None,
    delimiter: str = ",",
    problem: str = "cannot be read as a CSV",
) -> Iterator["csv.DictReader[str]"]:
    """Open a table in UTF-8 with a header.

    Args:
        path: the file.
        budget: memory of the set that it is read for.
        delimiter: character between two columns.
        problem: what an error inside the block says about the file.
    """
    with open_reader(path, budget, problem) as reader:
        yield csv.DictReader(reader.lines(), delimiter=delimiter)


def row_split(source: str, row: Mapping[str, str | None]) -> str | None:
    """The split in the column `split` of a row; None where there is no such column.

    Raises:
        DataError: it is neither "train" nor "test"; the message begins with `source`.
    """
    if "split" not in row:
        return None
    split = (row["split"] or "").strip().lower()
    if split not in ("train", "test"):
        raise DataError(f"{source}: expected split 'train' or 'test', got {split!r}")
    return split


def in_split(name: str, splits: Sequence[str | None], labels: Tensor, split: str) -> list[int]:
    """Indices of the images in a split: as stated, or by `default_split` where none is stated.

    Args:
        name: name of the set, for errors.
        splits: the split of each image.
        labels: the class of each image, `[n]`.
        split: "train" or "test".

    Raises:
        DataError: no image is in the split.
    """
    if any(splits):
        indices = [index for index, image_split in enumerate(splits) if image_split == split]
    else:
        indices = default_split(name, labels, split).tolist()
    if not indices:
        raise DataError(f"{name}: no image of the {split!r} split in it")
    return indices


@dataclass(frozen=True, eq=False)
class Listing:
    """The image files of one split and what is known of each, before they are decoded.

    Attributes:
        name: name of the set.
        files: paths, or names in an archive, in the order of the images of the set.
        labels: indices into `classes`, `[n]`.
        classes: names of the classes.
        all_files: the files of all splits, in the order in which they are best read. A color image
            among them makes the whole set color.
        factors: what else is known of each image, by name.
        group: a factor; images with equal values stay together in a split.
        notes: sentences about what was read and what was left out.
        prefix: text before a file in errors.
    """

    name: str
    files: tuple[str, ...]
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    all_files: tuple[str, ...]
    factors: Mapping[str, Int64[Tensor, " n"]]
    group: str | None
    notes: tuple[str, ...]
    prefix: str


def list_entries(
    name: str, entries: Sequence[Entry], request: ReadRequest, prefix: str = ""
) -> Listing:
    """The images of one split, in the order of their classes and files.

    Args:
        name: name of the set.
        entries: its files, in the order in which they are best read.
        request: which split.
        prefix: text before a file in errors.

    Raises:
        DataError: a class less than two, or a test class without training images.
    """
    ordered = sorted(entries, key=lambda e: (natural_key(e.label), natural_key(e.file)))
    classes = tuple(dict.fromkeys(e.label for e in ordered if e.split != "test"))
    if len(classes) < 2:
        raise DataError(
            f"{name}: expected at least two classes to train on, got {', '.join(classes) or 'none'}"
        )
    class_index = dict(zip(classes, range(len(classes)), strict=True))
    for entry in ordered:
        if entry.label not in class_index:
            raise DataError(f"{name}: test class {entry.label!r} is not among the training classes")
    labels = torch.tensor([class_index[entry.label] for entry in ordered])
    indices = in_split(name, [entry.split for entry in ordered], labels, request.split)
    return Listing(
        name,
        tuple(ordered[index].file for index in indices),
        labels[indices],
        classes,
        tuple(dict.fromkeys(entry.file for entry in entries)),
        factors={},
        group=None,
        notes=(),
        prefix=prefix,
    )


def read_entries(
    name: str,
    entries: Sequence[Entry],
    request: ReadRequest,
    open_image: Callable[[str], ImageSource] = str,
    prefix: str = "",
    can_seek: bool = True,
) -> ImageSet:
    """Read the images of one split, or leave them on disk; see `files.stays_on_disk`.

    Args:
        name: name of the set.
        entries: its files, in the order in which they are best read.
        request: which split, at which size.
        open_image: the image of an entry's file; by default the file is a path.
        prefix: text before a file in errors.
        can_seek: whether `open_image` opens files in any order, also later and in other processes.

    Raises:
        DataError: a class less than two, a test class without training images, an unreadable image,
            or mixed sizes.
    """
    listing = list_entries(name, entries, request, prefix)
    if can_seek and stays_on_disk(listing, request, open_image):
        return image_files(listing, request, open_image)
    decoded = dict.fromkeys(listing.files, torch.empty(0))
    channels = request.in_chans or 1
    for file in listing.all_files:
        # One color image decides the channels of both splits: until one is found, every header
        # counts.
        is_undecided = request.in_chans is None and channels == 1
        if not is_undecided and file not in decoded:
            continue
        image, image_name = open_image(file), f"{prefix}{file}"
        if is_undecided and not is_gray(image, image_name):
            channels = 3
        if file in decoded:
            decoded[file] = decode_image(
                image,
                request.img_size,
                request.in_chans,
                name=image_name,
                budget=request.budget,
            )
    check_sizes(name, decoded)
    images = [to_channels(decoded[file].unsqueeze(0), channels) for file in listing.files]
    return ImageSet(
        torch.cat(images),
        listing.labels,
        listing.classes,
        name,
        listing.factors,
        listing.group,
        listing.notes,
    )


def check_sizes(name: str, images: Mapping[str, Tensor]) -> None:
    """Check that all images `[channels, height, width]`, by their files, have one size.

    Raises:
        DataError: an image differs in size from the first one.
    """
    first = next(iter(images))
    height, width = images[first].shape[1:]
    for file, image in images.items():
        if image.shape[1:] != (height, width):
            raise DataError(
                f"{name}: images differ in size ({Path(first).name} is {height} × {width}, "
                f"{file} is {image.shape[1]} × {image.shape[2]}); "
                "give img_size (--img-size) to resize them all"
            )


class LabelTree(NamedTuple):
    """The levels of a label tree, two or more.

    Attributes:
        levels: the paths of the classes of each level, coarse to fine. The last level has the
            classes of the set.
        parents: of each level but the first, the indices of its classes' parents in the level
            above.
    """

    levels: tuple[tuple[str, ...], ...]
    parents: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each level."""
        return tuple(map(len, self.levels))

    @property
    def ancestors(self) -> list[list[int]]:
        """The index of each class in every level, coarse to fine: `[classes][levels]`."""
        paths = []
        for index in range(self.sizes[-1]):
            path = [index]
            for parents in reversed(self.parents):
                path.insert(0, parents[path[0]])
            paths.append(path)
        return paths


def label_tree(classes: Sequence[str]) -> LabelTree | None:
    """The tree in the names of classes, such as "clothing/tops/shirt".

    Args:
        classes: names of the classes.

    Returns:
        The tree; None unless all names are paths of one depth of at least 2.
    """
    depths = {name.count(SEPARATOR) for name in classes}
    if len(depths) != 1 or depths == {0}:
        return None
    levels = [tuple(classes)]
    parents: list[tuple[int, ...]] = []
    for _ in range(depths.pop()):
        parent_names = [name.rpartition(SEPARATOR)[0] for name in levels[0]]
        level = tuple(dict.fromkeys(parent_names))
        index = dict(zip(level, range(len(level)), strict=True))
        levels.insert(0, level)
        parents.insert(0, tuple(map(index.__getitem__, parent_names)))
    return LabelTree(tuple(levels), tuple(parents))


def check_tree(source: object, entries: Iterable[Entry]) -> list[Entry]:
    """Check that all labels have one depth and that each has one parent; returns the entries.

    Raises:
        DataError: they have not; the message begins with `source`.
    """
    checked: list[Entry] = []
    parents: dict[tuple[int, str], str] = {}
    for entry in entries:
        checked.append(entry)
        first = checked[0]
        if entry.label.count(SEPARATOR) != first.label.count(SEPARATOR):
            raise DataError(
                f"{source}: expected every image at one depth, "
                f"got {first.file} in {first.label!r} and {entry.file} in {entry.label!r}"
            )
        parts = entry.label.split(SEPARATOR)
        for depth, name in enumerate(parts):
            parent = SEPARATOR.join(parts[:depth])
            first_parent = parents.setdefault((depth, name), parent)
            if first_parent != parent:
                raise DataError(
                    f"{source}: label {name!r} has two parents, {first_parent!r} and {parent!r}; "
                    "a label needs one, so give the two different names"
                )
    return checked
