"""Image files with their classes, splits and groups: listed by readers, decoded here.

A reader of folders, tables, archives or shards lists its files as `Entry`; `read_entries` makes a
`Dataset` of them, or a `DiskDataset`.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data._registry import ReadRequest
from torchcaps.data.classes import TEST_FRACTION, group_strata, stratified_split, unknown_classes
from torchcaps.data.dataset import Dataset
from torchcaps.data.files import DiskDataset, EncodedImages
from torchcaps.data.images import OpenImage, decode_image, is_gray, natural_key
from torchcaps.data.reading import FLOOR, RATIO
from torchcaps.errors import ArgumentError, DamagedImageError, DataError, MissingSplitError
from torchcaps.types import Names, Tensors

NAMED_DAMAGED = 20  # damaged files that an error or a note names
GROUP = "object"  # the target of groups that have no name of their own
# Of images that are kept in memory by default; at most a quarter of what the machine has, too.
MAX_DECODED_BYTES = 1 << 30
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
        file: a path, or the location of a file in an archive.
        labels: names of its classes, one or more; none of an image with values.
        split: "train", "val" or "test"; None where the files state no split.
        group: name of the object that the image shows, such as a track of frames; None where the
            images are independent.
    """

    file: str
    labels: Names
    split: str | None = None
    group: str | None = None


def row_split(source: str, row: Mapping[str, str]) -> str | None:
    """The split in the column `split` of a row; None where there is no such column.

    Raises:
        DataError: it is none of `SPLIT_NAMES`; the message begins with `source`.
    """
    if "split" not in row:
        return None
    text = row["split"].strip().lower()
    if text not in SPLIT_NAMES:
        raise DataError(f"{source}: expected split 'train', 'val' or 'test', got {text!r}")
    return SPLIT_NAMES[text]


def find_group(pattern: str | None, path: str) -> str | None:
    """The name of the group of a file, None without a pattern.

    Args:
        pattern: a regular expression whose first group is the name.
        path: of the file.

    Raises:
        ArgumentError: it is no regular expression with a group, or it is not in a path.
    """
    if pattern is None:
        return None
    try:
        match = re.search(pattern, path)
        group = match and match[1]
    except (re.error, IndexError) as error:
        raise ArgumentError(
            "group_pattern",
            f"expected a regular expression with a group in parentheses, got {pattern!r} ({error})",
        ) from None
    if group is None:
        raise ArgumentError(
            "group_pattern", f"expected {pattern!r} to match every path, got {path!r}"
        )
    return group


def in_split(
    name: str,
    labels: Tensor,
    request: ReadRequest,
    splits: Sequence[str | None] = (),
    groups: Tensor | None = None,
) -> list[int]:
    """Indices of the images in a split: as stated, or 80 : 20 by seed 0 where none is stated.

    Where none is stated, all images are for a model that has seen none of them.

    Args:
        name: name of the set, for errors.
        labels: the class of each image, `[n]`.
        request: which split, and for which model.
        splits: the split of each image; empty where none is stated.
        groups: the group of each image, `[n]`; no group is on both sides of 80 : 20.

    Raises:
        DataError: no class has two images, or groups.
        MissingSplitError: no image is in the split.
    """
    split = request.split
    indices: list[int] = []
    if any(splits):
        indices = [index for index, image_split in enumerate(splits) if image_split == split]
    elif request.classes is not None:
        indices = list(range(len(labels)))
    elif split != "val":
        strata = group_strata(labels, groups)
        try:
            train, test = stratified_split(strata, TEST_FRACTION, groups=groups)
        except DataError:
            raise DataError(
                f"{name}: no class has two {'images' if groups is None else 'groups'}, so that none "
                "can be held out to test on"
            ) from None
        indices = (test if split == "test" else train).tolist()
    if not indices:
        raise MissingSplitError(f"{name}: no image of the {split!r} split in it")
    return indices


def read_entries(
    name: str,
    entries: Sequence[Entry],
    request: ReadRequest,
    open_image: OpenImage = str,
    notes: Sequence[str] = (),
    *,
    can_stay: bool = True,
    classes: Names | None = None,
    targets: Mapping[str, Tensor] | None = None,
) -> Dataset:
    """Read the images of one split.

    Args:
        name: name of the set.
        entries: its files, of all splits.
        request: which split, at which size, in memory or on disk.
        open_image: the image of an entry's file; by default the file is a path. For images on disk
            a function that can be pickled.
        notes: sentences on files that are not among the entries.
        can_stay: whether images can stay on disk.
        classes: names of the classes, with which images keep the order of the entries. None for
            those of the training images; images then come in the order of classes and files.
        targets: what else is known of each entry.

    Raises:
        DamagedImageError: files that cannot be read, of any split, unless they are left out.
        DataError: a class less than two, a test class without training images, mixed sizes, or
            images that do not fit into memory.
    """
    if classes is None:
        entries = sorted(entries, key=lambda e: (natural_key(e.labels[0]), natural_key(e.file)))
        classes = request.classes or _training_classes(name, entries)
    labels, columns = _index_labels(name, entries, classes, request)
    columns |= targets or {}
    groups = None
    if entries[0].group is not None:
        numbers: dict[str | None, int] = {}
        groups = torch.tensor([numbers.setdefault(e.group, len(numbers)) for e in entries])
        columns[request.options.group_column or GROUP] = groups
    indices = in_split(name, labels, request, [entry.split for entry in entries], groups)
    notes = [*_summary(name, entries, len(indices), request), *notes]

    files = list(dict.fromkeys(entry.file for entry in entries))
    readable = files
    if request.options.skip_damaged:
        problems = find_damaged(files, open_image)
        notes += damage_notes(name, problems, len(files), skip_damaged=True)
        readable = [file for file in files if file not in problems]
        indices = [index for index in indices if entries[index].file not in problems]
        if not indices:
            raise DamagedImageError(f"{name}: none of its images can be read")
    split_files = tuple(entries[index].file for index in indices)
    try:
        images = _encode_images(split_files, readable, request, open_image)
        num_bytes = images.shape.numel()
        is_large = num_bytes > (request.max_bytes or _default_memory())
        stays = can_stay and (request.storage == "disk" or (request.storage == "auto" and is_large))
        if not stays:
            check_fits(name, num_bytes, split_files, request)
        inputs: Any = images if stays else images.decode()
    except DamagedImageError:  # all are named at once, those of other splits too
        damage_notes(name, find_damaged(files, open_image), len(files), skip_damaged=False)
        raise
    columns = {target: column[indices] for target, column in columns.items()}
    if groups is not None:
        groups = groups[indices]
    form: Any = partial(Dataset, files=split_files)
    if stays:
        notes.append(
            f"{name}: {len(images):,} images stay on disk and are decoded when they are needed; in "
            f"memory (--storage memory) they would take {num_bytes / 1e6:,.0f} MB"
        )
        form = partial(DiskDataset, workers=request.workers)
    return form(inputs, columns, classes, name, groups, tuple(notes))


def _training_classes(name: str, entries: Iterable[Entry]) -> Names:
    """The classes of the training images, in natural order. Raises DataError for fewer than two."""
    labels = {
        label for entry in entries if entry.split in (None, "train") for label in entry.labels
    }
    if len(labels) < 2:
        raise DataError(
            f"{name}: expected at least two classes to train on, got {', '.join(labels) or 'none'}"
        )
    return tuple(sorted(labels, key=natural_key))


def _index_labels(
    name: str, entries: Sequence[Entry], classes: Sequence[str], request: ReadRequest
) -> tuple[Tensor, Tensors]:
    """The first class of each entry `[n]`; and the target "label", or "labels" of several."""
    if not any(entry.labels for entry in entries):  # of values
        return torch.zeros(len(entries), dtype=torch.int64), {}
    class_index = {label: index for index, label in enumerate(classes)}
    for entry in entries:
        for label in entry.labels:
            if label not in class_index:
                if request.classes:
                    raise unknown_classes(name, [label], classes)
                raise DataError(
                    f"{name}: {entry.split} class {label!r} is not among the training classes"
                )
    labels = torch.tensor([class_index[entry.labels[0]] for entry in entries])
    if all(len(entry.labels) == 1 for entry in entries):
        return labels, {"label": labels}
    hot = torch.zeros(len(entries), len(classes), dtype=torch.uint8)
    for row, entry in enumerate(entries):
        hot[row, [class_index[label] for label in entry.labels]] = 1
    return labels, {"labels": hot}


def _summary(
    name: str,
    entries: Sequence[Entry],
    num_images: int,
    request: ReadRequest,
) -> list[str]:
    """Sentences on the number of images, classes and groups."""
    part = f"{num_images:,} of them in the {request.split} split"
    if request.classes is not None and not any(entry.split for entry in entries):
        part = "all of them measured, because it is not divided into train and test"
    num_classes = len({label for entry in entries for label in entry.labels})
    known = f"of {num_classes:,} classes" if num_classes else "with values"
    notes = [f"{name}: {len(entries):,} images {known}, {part}"]
    groups = {entry.group for entry in entries}
    if None not in groups:
        notes.append(
            f"{name}: {len(groups):,} groups by {request.options.group_column or GROUP!r}, each on "
            "one side of a split"
        )
    return notes


def _encode_images(
    files: Sequence[str],
    all_files: Sequence[str],
    request: ReadRequest,
    open_image: OpenImage,
) -> EncodedImages:
    """Images of a split as they lie in files; one color image of any split makes all color."""
    in_chans = request.in_chans
    if in_chans is None:
        in_chans = 1 if all(is_gray(open_image(file), file) for file in all_files) else 3
    first = decode_image(open_image(files[0]), request.img_size, in_chans, name=files[0])
    return EncodedImages(
        np.array([os.fsencode(file) for file in files]),
        in_chans,
        (first.shape[1], first.shape[2]),
        is_resized=request.img_size is not None,
        open_image=open_image,
    )


def _default_memory() -> int:
    """Bytes of decoded images that are kept in memory unless a run says otherwise."""
    if not hasattr(os, "sysconf"):
        return MAX_DECODED_BYTES
    return min(MAX_DECODED_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


def check_fits(name: str, num_bytes: int, files: Iterable[str], request: ReadRequest) -> None:
    """Check the memory that decoded images take together.

    Args:
        name: of the set, for errors.
        num_bytes: that they take.
        files: paths, or locations of files in archives, which end with a size.
        request: may have a limit.

    Raises:
        DataError: it is more than `max_bytes`, or far more than the files have.
    """
    limit = request.max_bytes or FLOOR
    if num_bytes > limit and not request.max_bytes:
        sizes = (
            os.path.getsize(file) if os.path.exists(file) else int(file.rpartition("+")[2])
            for file in files
        )
        limit = max(FLOOR, RATIO * sum(sizes))
    if num_bytes > limit:
        raise DataError(
            f"{name}: its images ask for {num_bytes / 2**20:,.0f} MiB of memory, more than "
            f"{RATIO} times their size on disk, or than max_bytes; give max_bytes (--max-bytes "
            "in training) to allow more, or leave them on disk (--storage disk)"
        )


def find_damaged(files: Iterable[str], open_image: OpenImage) -> dict[str, str]:
    """Decode image files and keep none of them.

    Args:
        files: their names.
        open_image: the image of a file.

    Returns:
        What is wrong with those that cannot be decoded, by file.
    """
    problems = {}
    for file in files:
        try:
            decode_image(open_image(file), name=file)
        except DamagedImageError as error:
            problems[file] = str(error)
    return problems


def damage_notes(
    name: str, problems: Mapping[str, str], num_images: int, skip_damaged: bool
) -> Names:
    """A sentence on files that cannot be read; none where there are none.

    Args:
        name: of the set.
        problems: by file, what is wrong with it, a text that begins with its path.
        num_images: number of files of the set.
        skip_damaged: whether they are left out.

    Raises:
        DamagedImageError: there are such files, and they are not left out. It names up to 20.
    """
    if not problems:
        return ()
    texts = list(problems.values())
    share = f"{len(texts):,} of {num_images:,} images"
    listed = "; ".join(texts[:NAMED_DAMAGED])
    if len(texts) > NAMED_DAMAGED:
        listed = f"{listed}; and {len(texts) - NAMED_DAMAGED:,} more"
    if skip_damaged:
        return (f"{name}: left out {share} that cannot be read: {listed}",)
    raise DamagedImageError(
        f"{name}: {share} cannot be read; repair or delete them, or leave such files out with "
        f"skip_damaged (--skip-damaged): {listed}"
    )
