"""A CSV of image files and their labels."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadOptions, ReadRequest, register_format
from torchcaps.data.classes import SEPARATOR
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import Entry, check_tree, find_group, read_entries, row_split
from torchcaps.data.mask_files import read_mask_table
from torchcaps.data.notes import damage_notes
from torchcaps.data.reading import csv_rows
from torchcaps.errors import DataError

FLAT_COLUMNS = ("file", "label")
TREE_COLUMNS = ("image", "coarse", "fine")


class TableColumns(NamedTuple):
    """The columns of a table that are read.

    Attributes:
        file: column of the image file.
        labels: columns of labels: one; the levels of a tree, coarse to fine; or several classes.
        is_tree: whether the labels of a row are the levels of a tree.
        group: column of the object that an image shows.
    """

    file: str
    labels: tuple[str, ...]
    is_tree: bool = False
    group: str | None = None


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
        entries, missing = _entries(path, rows, columns, options)
    num_rows = len(entries) + len(missing)
    notes = damage_notes(path.stem, missing, num_rows, options.skip_damaged)
    if options.label_separator and all(len(entry.labels) == 1 for entry in entries):
        raise DataError(
            f"{path}: expected {options.label_separator!r}, the label_separator "
            f"(--label-separator), between labels in {', '.join(columns.labels)}, and it is in none"
        )
    if columns.is_tree:
        check_tree(path, entries)
    return read_entries(path.stem, entries, request, notes=notes)


register_format(
    "a .csv file",
    lambda path: path.suffix.lower() == ".csv" and not path.is_dir(),
    read_table,
    splits=SPLITS_WITH_VAL,
    options=tuple(field.name for field in fields(ReadOptions)),
)


def _columns(path: Path, header: Sequence[str], options: ReadOptions) -> TableColumns:
    """The columns that are read of a table with this header."""
    labels = tuple(name.strip() for name in (options.label_column or "").split(",") if name)
    is_tree = not (labels or options.label_separator or "label" in header)
    is_tree = is_tree and not set(TREE_COLUMNS).isdisjoint(header)
    file = "image" if labels and "image" in header and "file" not in header else FLAT_COLUMNS[0]
    labels = labels or FLAT_COLUMNS[1:]
    expected: Sequence[str] = (file, *labels)
    if is_tree:
        file, expected = "image", TREE_COLUMNS
        labels = tuple(c for c in header if c not in (file, "split", options.group_column))
    group = [options.group_column] if options.group_column else []
    missing = [column for column in (file, *labels, *group) if column not in header]
    if missing or (is_tree and len(labels) < 2):
        raise DataError(
            f"{path}: no column {missing[0] if missing else 'of labels'!r}; expected "
            f"{','.join(expected)} or what label_column (--label-column) and group_column "
            f"(--group-column) name, and optionally split, "
            f"got {','.join(header) or 'an empty file'}"
        )
    return TableColumns(file, labels, is_tree, options.group_column)


def _entries(
    path: Path,
    rows: csv.DictReader[str],
    columns: TableColumns,
    options: ReadOptions,
) -> tuple[list[Entry], dict[str, str]]:
    """The images of a table, and by file what is wrong with those that do not exist."""
    entries = []
    missing = {}
    for row in rows:
        line = f"{path} line {rows.line_num}"
        file = (row[columns.file] or "").strip()
        labels = _row_labels(line, row, file, columns, options.label_separator)
        group = find_group(options.group_pattern, file)
        if columns.group is not None:
            group = (row[columns.group] or "").strip()
            if not group:
                raise DataError(f"{line}: expected a {columns.group!r}, which names a group")
        image_path = os.path.join(path.parent, file)
        if not os.path.isfile(image_path):
            missing[image_path] = f"{line}: no such file {image_path}"
            continue
        entries.append(Entry(image_path, labels, row_split(line, row), group))
    return entries, missing


def _row_labels(
    line: str,
    row: Mapping[str, str | None],
    file: str,
    columns: TableColumns,
    separator: str | None,
) -> tuple[str, ...]:
    """The classes of a row: one, unless the table has several classes for each image."""
    labels = [(row[column] or "").strip() for column in columns.labels]
    is_labeled = bool(labels[-1]) if columns.is_tree else any(labels)
    if not file or not is_labeled:
        raise DataError(f"{line}: expected a file and a label, got {file!r} and {labels[-1]!r}")
    if columns.is_tree:
        if not all(labels):
            empty = columns.labels[labels.index("")]
            raise DataError(f"{line}: label {labels[-1]!r} has no parent; {empty!r} is empty")
        if any(SEPARATOR in label for label in labels):
            raise DataError(
                f"{line}: expected labels without {SEPARATOR!r}, which separates the levels, "
                f"got {labels}"
            )
        return (SEPARATOR.join(labels),)
    if separator:
        labels = [label.strip() for label in separator.join(labels).split(separator)]
    labels = list(filter(None, labels))  # an image may have fewer than others
    if not labels:
        raise DataError(f"{line}: expected a label, got {separator!r} alone")
    if len(set(labels)) < len(labels):
        raise DataError(f"{line}: expected different labels of an image, got {', '.join(labels)}")
    return tuple(labels)
