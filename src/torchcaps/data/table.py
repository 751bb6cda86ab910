"""A CSV of image files and their labels."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

from torchcaps.data._registry import register_format
from torchcaps.data.budget import Source, door, reading, text_lines
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import Entry, read_entries
from torchcaps.data.masks import read_mask_table
from torchcaps.data.pixels import Size
from torchcaps.errors import DataError

REQUIRED = ("file", "label")


@door
def read_table(path: str | Path, split: str = "train", img_size: Size = None, in_chans: int | None = None) -> ImageSet:
    """Read the images that a CSV with the columns `file` and `label` names.

    Files are relative to the CSV's own folder; a label is the name of a class. A column `split` says "train" or
    "test" for every row; without it, 20 % of each class are the test split, chosen as in `read_folder`. The file is
    UTF-8, comma-separated, with a header; its name without the ending becomes the set's. With the columns `image` and
    `mask` in place of these it gives a `MaskedSet`, as `read_masks` does; a table of classes may lie beside it.

    Raises:
        DataError: a missing column, or with its line number a missing file, empty label or unknown split; one class
            only; an unreadable image; mixed sizes.
    """
    path = Path(path)
    with reading(path, wrong="cannot be read as a CSV"), Source(path) as source:
        rows = csv.DictReader(text_lines(source))
        if {"image", "mask"} <= {*(rows.fieldnames or ())}:
            return read_mask_table(path, rows, split, img_size, in_chans)
        entries = list(_entries(path, rows))
    return read_entries(path.stem, entries, split, img_size, in_chans)


register_format("a .csv file", lambda path: path.suffix.lower() == ".csv" and not path.is_dir(), read_table)


def _entries(path: Path, rows: csv.DictReader[str]) -> Iterator[Entry]:
    columns = rows.fieldnames or ()
    for column in REQUIRED:
        if column not in columns:
            found = ",".join(columns) or "an empty file"
            raise DataError(f"{path}: no column {column!r}; expected file,label and optionally split, got {found}")
    folder = str(path.parent)
    for row in rows:
        file, label = ((row[column] or "").strip() for column in REQUIRED)
        if not file or not label:
            raise DataError(f"{path} line {rows.line_num}: expected a file and a label, got {file!r} and {label!r}")
        place = os.path.join(folder, file)
        if not os.path.isfile(place):
            raise DataError(f"{path} line {rows.line_num}: no such file {place}")
        split = (row["split"] or "").strip().lower() if "split" in columns else None
        if split not in (None, "train", "test"):
            raise DataError(f"{path} line {rows.line_num}: expected split 'train' or 'test', got {split!r}")
        yield Entry(place, label, split)
