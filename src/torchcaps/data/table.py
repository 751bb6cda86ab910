"""A CSV of image files and their labels."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchcaps.data._registry import register_format
from torchcaps.data.budget import MemoryBudget
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import BETWEEN, Entry, checked, csv_rows, read_entries, row_split
from torchcaps.data.masks import read_mask_table
from torchcaps.data.pixels import Size
from torchcaps.errors import DataError

REQUIRED, TREE = ("file", "label"), "image,coarse,fine"


def read_table(
    path: str | Path,
    split: str = "train",
    img_size: Size = None,
    in_chans: int | None = None,
    budget: MemoryBudget | None = None,
) -> ImageSet:
    """Read the images that a CSV with the columns `file` and `label` names.

    With `image` and `mask` in their place it gives a `MaskedSet`, as `read_masks` does; a table of classes may lie
    beside it. With `image`, all other columns but `split` are the levels of a label tree, two or more, coarse to fine.

    Files are relative to the CSV's own folder. A column `split` says "train" or "test" for every row; without it, 20 %
    of each class are the test split, chosen as in `read_folder`. The file is UTF-8, comma-separated, with a header; its
    name without the ending becomes the set's.

    DataError: a missing column, or with its line number a missing file, empty label or unknown split; one class only; a
    label without a parent or with two; an unreadable image; mixed sizes.
    """
    path = Path(path)
    budget = budget or MemoryBudget()
    with csv_rows(path, budget) as rows:
        columns = rows.fieldnames or ()
        if {"image", "mask"} <= {*columns}:
            return read_mask_table(path, rows, split, img_size, in_chans, budget)
        file_column, levels = _columns(path, columns)
        entries = list(_entries(path, rows, file_column, levels))
        if len(levels) > 1:
            entries = list(checked(path, entries))
        return read_entries(path.stem, entries, split, img_size, in_chans, budget)


register_format(
    "a .csv file",
    lambda path: path.suffix.lower() == ".csv" and not path.is_dir(),
    lambda path, r: read_table(path, r.split, r.img_size, r.in_chans, r.budget),
)


def _columns(path: Path, columns: Sequence[str]) -> tuple[str, list[str]]:
    tree = "label" not in columns and {"image", "coarse", "fine"}.intersection(columns)
    wanted, asked = (("image",), TREE) if tree else (REQUIRED, ",".join(REQUIRED))
    found = ",".join(columns) or "an empty file"
    for column in wanted:
        if column not in columns:
            raise DataError(
                f"{path}: no column {column!r}; expected {asked} and optionally split, got {found}"
            )
    levels = (
        [column for column in columns if column not in ("image", "split")] if tree else ["label"]
    )
    if tree and len(levels) < 2:
        raise DataError(
            f"{path}: a column of labels is missing; expected {TREE} or more levels, got {found}"
        )
    return wanted[0], levels


def _entries(
    path: Path, rows: csv.DictReader[str], files: str, levels: list[str]
) -> Iterator[Entry]:
    for row in rows:
        line = f"{path} line {rows.line_num}"
        file, *labels = ((row[column] or "").strip() for column in (files, *levels))
        if not file or not labels[-1]:
            raise DataError(f"{line}: expected a file and a label, got {file!r} and {labels[-1]!r}")
        if not all(labels):
            raise DataError(
                f"{line}: label {labels[-1]!r} has no parent; {levels[labels.index('')]!r} is empty"
            )
        if len(levels) > 1 and any(BETWEEN in label for label in labels):
            raise DataError(
                f"{line}: expected labels without {BETWEEN!r}, which parts the levels, got {labels}"
            )
        place = os.path.join(path.parent, file)
        if not os.path.isfile(place):
            raise DataError(f"{line}: no such file {place}")
        yield Entry(place, BETWEEN.join(labels), row_split(line, row))
