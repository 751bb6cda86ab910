"""Files with a class each, before they are read: what folders, archives and tables have in common.

Classes whose names are paths, coarse to fine, such as `clothing/tops/shirt`, are a label tree. A set carries its tree
in the names of its classes, and so do its subsets, its splits, and models trained on it.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.data.budget import MemoryBudget, open_reader
from torchcaps.data.dataset import ImageSet, default_split
from torchcaps.data.images import ImageSource, decode_image, is_gray, natural_key
from torchcaps.data.pixels import Size, to_channels
from torchcaps.errors import DataError

BETWEEN = "/"  # levels of a label tree in the name of a class


@dataclass(frozen=True)
class Entry:
    """An image to read: its file (a path, or a name in an archive), its class, its split where one is given."""

    file: str
    label: str
    split: str | None = None


def plain_or_packed(folder: Path, pattern: str) -> Path | None:
    """The first file in a folder of this name, a pattern of `glob`, or else of this name and `.gz`; None without."""
    return next((file for end in ("", ".gz") for file in sorted(folder.glob(pattern + end))), None)


@contextmanager
def csv_rows(
    path: Path,
    budget: MemoryBudget | None = None,
    delimiter: str = ",",
    problem: str = "cannot be read as a CSV",
) -> Iterator["csv.DictReader[str]"]:
    """The rows of a table in UTF-8 that has a header; an error inside tells the `problem`."""
    with open_reader(path, budget, problem) as reader:
        yield csv.DictReader(reader.lines(), delimiter=delimiter)


def row_split(where: str, row: Mapping[str, str | None]) -> str | None:
    """What the column `split` of a row says, "train" or "test"; None where there is no such column."""
    if "split" not in row:
        return None
    split = (row["split"] or "").strip().lower()
    if split not in ("train", "test"):
        raise DataError(f"{where}: expected split 'train' or 'test', got {split!r}")
    return split


def in_split(name: str, given: Sequence[str | None], labels: Tensor, split: str) -> list[int]:
    """Which images are in a split: as given, or by `default_split` where nothing is; DataError where none is."""
    if any(given):
        chosen = [i for i, part in enumerate(given) if part == split]
    else:
        chosen = default_split(name, labels, split).tolist()
    if not chosen:
        raise DataError(f"{name}: no image of the {split!r} split in it")
    return chosen


def read_entries(
    name: str,
    entries: Sequence[Entry],
    split: str,
    img_size: Size,
    in_chans: int | None,
    budget: MemoryBudget | None = None,
    *,
    contents: Callable[[str], ImageSource] = str,
    where: str = "",
) -> ImageSet:
    """Read the images of one split as `read_folder` does, of `entries` in the order in which they are best read.

    `contents` is what an entry's file holds, by default the file is a path; `where` stands before a file in errors.
    """
    ordered = sorted(entries, key=lambda e: (natural_key(e.label), natural_key(e.file)))
    classes = tuple(dict.fromkeys(e.label for e in ordered if e.split in (None, "train")))
    if len(classes) < 2:
        raise DataError(
            f"{name}: expected at least two classes to train on, got {', '.join(classes) or 'none'}"
        )
    index = {label: i for i, label in enumerate(classes)}
    for entry in ordered:
        if entry.label not in index:
            raise DataError(f"{name}: test class {entry.label!r} is not among the training classes")
    all_labels = torch.tensor([index[e.label] for e in ordered])
    places = in_split(name, [e.split for e in ordered], all_labels, split)
    chosen = [ordered[i] for i in places]
    chosen_files = {entry.file for entry in chosen}
    channels = in_chans or 1
    decoded: dict[str, Tensor] = {}
    for file in dict.fromkeys(entry.file for entry in entries):
        # One color image decides the channels of both splits: until one is found, every header counts.
        is_undecided = in_chans is None and channels == 1
        if file in chosen_files or is_undecided:
            data, label = contents(file), f"{where}{file}"
            if is_undecided and not is_gray(data, label):
                channels = 3
            if file in chosen_files:
                decoded[file] = decode_image(data, img_size, in_chans, name=label, budget=budget)
    check_sizes(name, chosen[0].file, decoded)
    images = [to_channels(decoded[entry.file].unsqueeze(0), channels)[0] for entry in chosen]
    return ImageSet(torch.stack(images), all_labels[places], classes, name)


def check_sizes(name: str, first: str, images: Mapping[str, Tensor]) -> None:
    """Raise DataError unless all images `[channels, height, width]` by their files have the size of the first one."""
    height, width = images[first].shape[1:]
    for file, image in images.items():
        if image.shape[1:] != (height, width):
            both = f"{Path(first).name} is {height} × {width}, {file} is {image.shape[1]} × {image.shape[2]}"
            raise DataError(
                f"{name}: images differ in size ({both}); give img_size (--img-size) to resize them all"
            )


class LabelTree(NamedTuple):
    """The levels of a label tree, two or more."""

    levels: tuple[
        tuple[str, ...], ...
    ]  # coarse to fine, the paths of their classes; the last are those of the set
    parents: tuple[
        tuple[int, ...], ...
    ]  # of each level but the first, the places of its classes' parents above

    @property
    def sizes(self) -> tuple[int, ...]:
        """Classes of each level."""
        return tuple(map(len, self.levels))

    @property
    def ancestors(self) -> list[list[int]]:
        """Of each class of the set, its place in every level, coarse to fine: `[classes][levels]`."""
        found = [[k] for k in range(self.sizes[-1])]
        for parents in reversed(self.parents):
            found = [[parents[path[0]], *path] for path in found]
        return found


def label_tree(classes: Sequence[str]) -> LabelTree | None:
    """The tree that the names of classes tell of; None unless all are paths of one depth, at least 2."""
    depths = {len(name.split(BETWEEN)) for name in classes}
    if len(depths) != 1 or depths == {1}:
        return None
    levels, parents = [tuple(classes)], list[tuple[int, ...]]()
    for _ in range(depths.pop() - 1):
        above = [name.rpartition(BETWEEN)[0] for name in levels[0]]
        levels.insert(0, tuple(dict.fromkeys(above)))
        place = {name: index for index, name in enumerate(levels[0])}
        parents.insert(0, tuple(place[name] for name in above))
    return LabelTree(tuple(levels), tuple(parents))


def checked(where: object, entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same entries; DataError, naming `where`, unless their labels are of one depth, each with one parent."""
    first: Entry | None = None
    known: dict[tuple[int, str], str] = {}
    for entry in entries:
        first, parts = first or entry, entry.label.split(BETWEEN)
        if entry.label.count(BETWEEN) != first.label.count(BETWEEN):
            found = f"{first.file} in {first.label!r} and {entry.file} in {entry.label!r}"
            raise DataError(f"{where}: expected every image at one depth, got {found}")
        for depth, name in enumerate(parts):
            above = BETWEEN.join(parts[:depth])
            before = known.setdefault((depth, name), above)
            if before != above:
                parents = f"two parents, {before!r} and {above!r}; a label needs one"
                raise DataError(
                    f"{where}: label {name!r} has {parents}, so give the two different names"
                )
        yield entry
