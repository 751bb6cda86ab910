"""Image files with a class each, before they are decoded: shared by folders, archives and tables.

Classes whose names are paths from coarse to fine, such as `clothing/tops/shirt`, form a label tree.
A set carries its tree in the names of its classes. So do its subsets, its splits, and the models
trained on it.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from torchcaps.data._registry import ReadRequest
from torchcaps.data.budget import MemoryBudget, open_reader
from torchcaps.data.classes import multi_hot, unknown_classes
from torchcaps.data.dataset import Dataset, default_split, first_labels
from torchcaps.data.files import image_files, stays_on_disk
from torchcaps.data.images import ImageSource, decode_image, is_gray, natural_key
from torchcaps.data.notes import damage_notes
from torchcaps.data.pixels import to_channels
from torchcaps.errors import ArgumentError, DamagedImageError, DataError, MissingSplitError
from torchcaps.words import counted

SEPARATOR = "/"  # between the levels of a label tree in the name of a class
GROUP = "object"  # the target of groups that have no name of their own
SPLIT_NAMES = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}


class Entry(NamedTuple):
    """An image file to read.

    Attributes:
        file: a path, or a name in an archive.
        label: name of its class.
        split: "train", "val" or "test"; None where the files state no split.
        group: name of the object that the image shows, such as a track of frames; None where the
            images are independent.
        more_labels: further classes of an image of several.
    """

    file: str
    label: str
    split: str | None = None
    group: str | None = None
    more_labels: tuple[str, ...] = ()


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
        DataError: it is none of `SPLIT_NAMES`; the message begins with `source`.
    """
    if "split" not in row:
        return None
    text = (row["split"] or "").strip().lower()
    if text not in SPLIT_NAMES:
        raise DataError(f"{source}: expected split 'train', 'val' or 'test', got {text!r}")
    return SPLIT_NAMES[text]


def group_finder(pattern: str | None) -> Callable[[str], str | None]:
    """A function from the path of a file to the name of its group, None without a pattern.

    Args:
        pattern: a regular expression whose first group is the name.

    Raises:
        ArgumentError: it is no regular expression with a group, or it is not in a path.
    """
    if pattern is None:
        return lambda _path: None
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise ArgumentError(
            "group_pattern", f"expected a regular expression, got {pattern!r} ({error})"
        ) from None
    if not regex.groups:
        raise ArgumentError(
            "group_pattern",
            f"expected a regular expression with a group in parentheses, got {pattern!r}",
        )

    def find_group(path: str) -> str:
        match = regex.search(path)
        if match is None or match[1] is None:
            raise ArgumentError(
                "group_pattern", f"expected {pattern!r} to match every path, got {path!r}"
            )
        return match[1]

    return find_group


def in_split(
    name: str,
    splits: Sequence[str | None],
    labels: Tensor,
    request: ReadRequest,
    groups: Tensor | None = None,
) -> list[int]:
    """Indices of the images in a split: as stated, or by `default_split` where none is stated.

    Where none is stated, all images are for a model that has seen none of them.

    Args:
        name: name of the set, for errors.
        splits: the split of each image.
        labels: the class of each image, `[n]`.
        request: which split, and for which model.
        groups: the group of each image, `[n]`; no group is in two splits of `default_split`.

    Raises:
        MissingSplitError: no image is in the split.
    """
    split = request.split
    indices: list[int] = []
    if request.classes is not None and not any(splits):
        return [*range(len(labels))]
    if any(splits):
        indices = [index for index, image_split in enumerate(splits) if image_split == split]
    elif split != "val":
        indices = default_split(name, labels, split, groups).tolist()
    if not indices:
        raise MissingSplitError(f"{name}: no image of the {split!r} split in it")
    return indices


@dataclass(frozen=True, eq=False)
class Listing:
    """The image files of one split and what is known of each, before they are decoded.

    Attributes:
        name: name of the set.
        files: paths, or names in an archive, in the order of the images of the set.
        targets: what is known of each image: "label", or "labels" of images of several classes;
            and its group by the name of the column.
        classes: names of the classes.
        all_files: the files of all splits, in the order in which they are best read. A color image
            among them makes the whole set color.
        groups: `[n]` integers, equal for images of one thing; see `Dataset`.
        notes: sentences about what was read and what was left out.
        prefix: text before a file in errors.
    """

    name: str
    files: tuple[str, ...]
    targets: Mapping[str, Tensor]
    classes: tuple[str, ...]
    all_files: tuple[str, ...]
    groups: Int64[Tensor, " n"] | None
    notes: tuple[str, ...]
    prefix: str


def list_entries(
    name: str,
    entries: Sequence[Entry],
    request: ReadRequest,
    prefix: str = "",
    notes: tuple[str, ...] = (),
) -> Listing:
    """The images of one split, in the order of their classes and files.

    Args:
        name: name of the set.
        entries: its files, in the order in which they are best read.
        request: which split.
        prefix: text before a file in errors.
        notes: sentences on files that are not among the entries.

    Raises:
        DataError: a class less than two, or a test class without training images.
    """
    ordered = sorted(entries, key=lambda e: (natural_key(e.label), natural_key(e.file)))
    classes = request.classes or _training_classes(name, ordered)
    labels = _index_labels(name, ordered, classes, is_known=bool(request.classes))

    groups = None if ordered[0].group is None else _number_groups(ordered)
    splits = [entry.split for entry in ordered]
    indices = in_split(name, splits, first_labels(labels), request, groups)

    part = f"{len(indices):,} of them in the {request.split} split"
    if request.classes is not None and not any(splits):
        part = "all of them measured, because it is not divided into train and test"
    num_classes = int(multi_hot(labels, len(classes)).any(dim=0).sum())
    size = f"{counted(len(ordered), 'image')} of {num_classes:,} class{'es' * (num_classes > 1)}"
    summary = [f"{name}: {size}, {part}"]
    targets = {"label" if labels.dim() == 1 else "labels": labels[indices]}
    if groups is not None:
        group_name = request.options.group_column or GROUP
        num_groups = counted(len(groups.unique()), "group")
        summary.append(f"{name}: {num_groups} by {group_name!r}, each on one side of a split")
        groups = groups[indices]
        targets[group_name] = groups
    return Listing(
        name,
        tuple(ordered[index].file for index in indices),
        targets,
        classes,
        tuple(dict.fromkeys(entry.file for entry in entries)),
        groups,
        (*summary, *notes),
        prefix,
    )


def _training_classes(name: str, entries: Iterable[Entry]) -> tuple[str, ...]:
    """The classes of the training images, in natural order. Raises DataError for fewer than two."""
    labels = []
    for entry in entries:
        if entry.split in (None, "train"):
            labels += [entry.label, *entry.more_labels]
    classes = tuple(sorted(dict.fromkeys(labels), key=natural_key))
    if len(classes) < 2:
        raise DataError(
            f"{name}: expected at least two classes to train on, got {', '.join(classes) or 'none'}"
        )
    return classes


def _index_labels(
    name: str, entries: Sequence[Entry], classes: Sequence[str], is_known: bool
) -> Shaped[Tensor, " n *classes"]:
    """The classes of all entries as indices `[n]`; 0 or 1 `[n, classes]` where some have several.

    Args:
        name: name of the set, for errors.
        entries: the image files.
        classes: names of the classes.
        is_known: whether they are those of a model.
    """
    class_index = dict(zip(classes, range(len(classes)), strict=True))
    rows = []
    for entry in entries:
        row = []
        for label in (entry.label, *entry.more_labels):
            if label not in class_index and is_known:
                raise unknown_classes(name, [label], classes)
            if label not in class_index:
                raise DataError(
                    f"{name}: {entry.split} class {label!r} is not among the training classes"
                )
            row.append(class_index[label])
        rows.append(row)
    if max(map(len, rows)) == 1:
        return torch.tensor(rows)[:, 0]
    labels = torch.zeros(len(rows), len(classes), dtype=torch.uint8)
    for image, row in enumerate(rows):
        labels[image, row] = 1
    return labels


def _number_groups(entries: Sequence[Entry]) -> Int64[Tensor, " n"]:
    """The group of each entry as a number, by the order in which they come."""
    names = dict.fromkeys(entry.group for entry in entries)
    numbers = dict(zip(names, range(len(names)), strict=True))
    return torch.tensor([numbers[entry.group] for entry in entries])


def read_entries(
    name: str,
    entries: Sequence[Entry],
    request: ReadRequest,
    open_image: Callable[[str], ImageSource] = str,
    prefix: str = "",
    notes: tuple[str, ...] = (),
    can_seek: bool = True,
) -> Dataset:
    """Read the images of one split, or leave them on disk; see `files.stays_on_disk`.

    Args:
        name: name of the set.
        entries: its files, in the order in which they are best read.
        request: which split, at which size.
        open_image: the image of an entry's file; by default the file is a path.
        prefix: text before a file in errors.
        notes: sentences on files that are not among the entries.
        can_seek: whether `open_image` opens files in any order, also later and in other processes.

    Raises:
        DamagedImageError: files that cannot be read, of any split, unless they are left out.
        DataError: a class less than two, a test class without training images, or mixed sizes.
    """
    listing = list_entries(name, entries, request, prefix, notes)
    if can_seek and stays_on_disk(listing, request, open_image):
        if request.options.skip_damaged:
            problems = find_damaged(listing.all_files, open_image, prefix)
            listing = _without_damaged(listing, problems, skip_damaged=True)
        return image_files(listing, request, open_image)
    listing, decoded, channels = _decode_all(listing, request, open_image)
    check_sizes(name, decoded)
    images = [to_channels(decoded[file].unsqueeze(0), channels) for file in listing.files]
    return Dataset(
        torch.cat(images),
        listing.targets,
        listing.classes,
        name,
        listing.groups,
        listing.notes,
        listing.files,
    )


def _decode_all(
    listing: Listing, request: ReadRequest, open_image: Callable[[str], ImageSource]
) -> tuple[Listing, dict[str, Tensor], int]:
    """The listing without damaged files, its images by file, and the channels of both splits."""
    decoded = dict.fromkeys(listing.files, torch.empty(0))
    problems: dict[str, str] = {}
    channels = request.in_chans or 1
    for file in listing.all_files:
        # One color image decides the channels of all splits: until one is found, every header
        # counts.
        is_undecided = request.in_chans is None and channels == 1
        if not is_undecided and file not in decoded:
            continue
        image, image_name = open_image(file), f"{listing.prefix}{file}"
        try:
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
        except DamagedImageError as error:
            problems[file] = str(error)
            decoded.pop(file, None)
    skip_damaged = request.options.skip_damaged
    if problems and not skip_damaged:  # all are named at once, those of other splits too
        unread = [file for file in listing.all_files if file not in decoded | problems]
        problems |= find_damaged(unread, open_image, listing.prefix)
    return _without_damaged(listing, problems, skip_damaged), decoded, channels


def find_damaged(
    files: Iterable[str], open_image: Callable[[str], ImageSource] = str, prefix: str = ""
) -> dict[str, str]:
    """Decode image files and keep none of them.

    Args:
        files: their names.
        open_image: the image of a file.
        prefix: text before a file in errors.

    Returns:
        What is wrong with those that cannot be decoded, by file.
    """

    def find_problem(file: str) -> str:
        try:
            decode_image(open_image(file), name=f"{prefix}{file}")
        except DamagedImageError as error:
            return str(error)
        return ""

    return {file: problem for file in files if (problem := find_problem(file))}


def _without_damaged(listing: Listing, problems: dict[str, str], skip_damaged: bool) -> Listing:
    """The listing without files that cannot be read.

    Args:
        listing: the images of a split.
        problems: by file, what is wrong with it.
        skip_damaged: whether such files are left out.

    Raises:
        DamagedImageError: there are some, and they are not left out.
    """
    notes = damage_notes(listing.name, problems, len(listing.all_files), skip_damaged)
    if not problems:
        return listing
    kept = [index for index, file in enumerate(listing.files) if file not in problems]
    if not kept:
        raise DamagedImageError(f"{listing.name}: none of its images can be read")
    return replace(
        listing,
        files=tuple(listing.files[index] for index in kept),
        targets={name: rows[kept] for name, rows in listing.targets.items()},
        all_files=tuple(file for file in listing.all_files if file not in problems),
        groups=None if listing.groups is None else listing.groups[kept],
        notes=(*listing.notes, *notes),
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
