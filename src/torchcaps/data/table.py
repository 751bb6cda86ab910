"""A CSV of image files and their labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadOptions, ReadRequest, register_format
from torchcaps.data.classes import SEPARATOR
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import (
    Entry,
    damage_notes,
    find_group,
    read_entries,
    row_split,
)
from torchcaps.data.masks import read_mask_table
from torchcaps.data.reading import csv_rows
from torchcaps.errors import DataError

FLAT_COLUMNS = ("file", "label")
TREE_COLUMNS = ("image", "coarse", "fine")


def read_table(path: str | Path, request: ReadRequest) -> Dataset:
    """Read the images that a CSV with the columns `file` and `label` names.

    With the columns `image` and `mask` instead it gives images with masks, as `read_masks` does; a
    table of classes may lie beside it. With the column `image`, all other columns but `split` are
    the levels of a label tree, two or more, coarse to fine.

    The option `label_column` names the column of labels instead; the files are then in `file` or
    `image`. If it names several, or `label_separator` divides what is in a column ("cat|dog"), an
    image has one or more classes, the target "labels". The option `group_column` names the
    column of the objects that must not be on two sides of a split.

    Files are relative to the CSV's own folder. A column `split` says "train", "val" or "test" for
    every row; without it, 20 % of each class are the test split, chosen as in `read_folder`. The
    file is UTF-8, comma-separated, with a header. Its name without the ending becomes the set's.

    Args:
        path: of the `.csv` file.
        request: without a size, all images must have one size. Without channels, they are 1 when
            every image is gray, otherwise 3.

    Returns:
        The images of the split that is requested.

    Raises:
        DataError: a missing column, or with its line number a missing file, empty label or unknown
            split; one class only; a label without a parent or with two; an unreadable image; mixed
            sizes.
    """
    path = Path(path)
    options = request.options
    with csv_rows(path) as rows:
        header = rows.fieldnames or ()
        is_plain = options == ReadOptions(skip_damaged=options.skip_damaged)
        if {"image", "mask"} <= set(header) and is_plain:
            return read_mask_table(path, rows, request)
        columns = _columns(path, header, options)
        entries = []
        missing = {}
        for row in rows:
            line = f"{path} line {rows.line_num}"
            entry = _read_row(line, path.parent, row, columns, options)
            entries.append(entry)
            if not os.path.isfile(entry.file):
                missing[entry.file] = f"{line}: no such file {entry.file}"
    notes = damage_notes(path.stem, missing, len(entries), options.skip_damaged)
    entries = [entry for entry in entries if entry.file not in missing]
    return read_entries(path.stem, entries, request, notes=notes)


register_format(
    "a .csv file",
    lambda path: path.suffix.lower() == ".csv" and not path.is_dir(),
    read_table,
    splits=SPLITS_WITH_VAL,
    options=tuple(field.name for field in fields(ReadOptions)),
)


class TableColumns(NamedTuple):
    """The columns of a table that are read.

    Attributes:
        file: column of the image file.
        labels: columns of labels: one; the levels of a tree, coarse to fine; or several classes.
        is_tree: whether the labels of a row are the levels of a tree.
    """

    file: str
    labels: tuple[str, ...]
    is_tree: bool


def _columns(path: Path, header: Sequence[str], options: ReadOptions) -> TableColumns:
    """The columns that are read of a table with this header."""
    labels = tuple(name.strip() for name in (options.label_column or "").split(",") if name)
    has_levels = not set(TREE_COLUMNS).isdisjoint(header)
    is_tree = has_levels and not (labels or options.label_separator or "label" in header)
    file = "image" if is_tree or (labels and "file" not in header) else "file"
    expected = TREE_COLUMNS if is_tree else (file, *(labels or FLAT_COLUMNS[1:]))
    if is_tree:
        labels = tuple(c for c in header if c not in (file, "split", options.group_column))
    labels = labels or FLAT_COLUMNS[1:]
    needed = [file, options.group_column or file]
    needed += labels
    missing = [column for column in needed if column not in header]
    if missing or (is_tree and len(labels) < 2):
        raise DataError(
            f"{path}: no column {missing[0] if missing else 'of labels'!r}; expected "
            f"{','.join(expected)} or what label_column (--label-column) and group_column "
            f"(--group-column) name, and optionally split, "
            f"got {','.join(header) or 'an empty file'}"
        )
    return TableColumns(file, labels, is_tree)


def _read_row(
    line: str,
    folder: Path,
    row: Mapping[str, str | None],
    columns: TableColumns,
    options: ReadOptions,
) -> Entry:
    """The image of a row; `line` names it in errors, and files are relative to `folder`."""
    file = (row[columns.file] or "").strip()
    labels = [(row[column] or "").strip() for column in columns.labels]
    if columns.is_tree:
        if not all(labels) or any(SEPARATOR in label for label in labels):
            raise DataError(
                f"{line}: expected a label without {SEPARATOR!r}, which separates the levels, in "
                f"each of {', '.join(columns.labels)}, got {labels}"
            )
        labels = [SEPARATOR.join(labels)]
    elif options.label_separator:
        joined = options.label_separator.join(labels)
        labels = [label.strip() for label in joined.split(options.label_separator)]
    labels = list(filter(None, labels))  # an image may have fewer than others
    if not file or len(set(labels)) < max(len(labels), 1):
        raise DataError(f"{line}: expected a file and different labels, got {file!r} and {labels}")
    group = find_group(options.group_pattern, file)
    if options.group_column is not None:
        group = (row[options.group_column] or "").strip()
        if not group:
            raise DataError(f"{line}: expected a {options.group_column!r}, which names a group")
    return Entry(os.path.join(folder, file), tuple(labels), row_split(line, row), group)
