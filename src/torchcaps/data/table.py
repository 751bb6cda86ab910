"""A CSV of image files and their labels."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadOptions, ReadRequest, register_format
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import (
    SEPARATOR,
    Entry,
    check_tree,
    csv_rows,
    group_finder,
    read_entries,
    row_split,
)
from torchcaps.data.masks import read_mask_table
from torchcaps.data.notes import damage_notes
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
    with csv_rows(path, request.budget) as rows:
        header = rows.fieldnames or ()
        options = request.options
        is_plain = options == ReadOptions(skip_damaged=options.skip_damaged)
        if {"image", "mask"} <= {*header} and is_plain:
            return read_mask_table(path, rows, request)
        columns = _columns(path, header, options)
        entries, missing = _entries(path, rows, columns, options)
    num_rows = len(entries) + len(missing)
    notes = damage_notes(path.stem, missing, num_rows, options.skip_damaged)
    if options.label_separator and not any(entry.more_labels for entry in entries):
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
    group = options.group_column
    if group is not None and group not in header:
        raise DataError(
            f"{path}: no column {group!r}, which group_column (--group-column) names; "
            f"got {','.join(header)}"
        )
    if options.label_column is not None:
        labels = tuple(name.strip() for name in options.label_column.split(","))
        for column in labels:
            if column not in header:
                raise DataError(
                    f"{path}: no column {column!r}, which label_column (--label-column) names; "
                    f"got {','.join(header)}"
                )
        file = "image" if "image" in header and "file" not in header else "file"
        _check_header(path, header, (file,), (file, *labels))
        return TableColumns(file, labels, group=group)

    is_tree = "label" not in header and not {*TREE_COLUMNS}.isdisjoint(header)
    if not is_tree or options.label_separator:
        _check_header(path, header, FLAT_COLUMNS, FLAT_COLUMNS)
        return TableColumns("file", ("label",), group=group)
    _check_header(path, header, ("image",), TREE_COLUMNS)
    levels = tuple(column for column in header if column not in ("image", "split", group))
    if len(levels) < 2:
        raise DataError(
            f"{path}: a column of labels is missing; "
            f"expected {','.join(TREE_COLUMNS)} or more levels, got {','.join(header)}"
        )
    return TableColumns("image", levels, is_tree=True, group=group)


def _check_header(
    path: Path, header: Sequence[str], required: Sequence[str], expected: Sequence[str]
) -> None:
    """Raise DataError unless all required columns are there."""
    for column in required:
        if column not in header:
            raise DataError(
                f"{path}: no column {column!r}; expected {','.join(expected)} and optionally "
                f"split, got {','.join(header) or 'an empty file'}"
            )


def _entries(
    path: Path,
    rows: csv.DictReader[str],
    columns: TableColumns,
    options: ReadOptions,
) -> tuple[list[Entry], dict[str, str]]:
    """The images of a table, and by file what is wrong with those that do not exist."""
    find_group = group_finder(options.group_pattern)
    entries = []
    missing = {}
    for row in rows:
        line = f"{path} line {rows.line_num}"
        file = (row[columns.file] or "").strip()
        labels = _row_labels(line, row, file, columns, options.label_separator)
        group = find_group(file)
        if columns.group is not None:
            group = (row[columns.group] or "").strip()
            if not group:
                raise DataError(f"{line}: expected a {columns.group!r}, which names a group")
        image_path = os.path.join(path.parent, file)
        if not os.path.isfile(image_path):
            missing[image_path] = f"{line}: no such file {image_path}"
            continue
        entries.append(Entry(image_path, labels[0], row_split(line, row), group, labels[1:]))
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
        return (_join_levels(line, labels, columns.labels),)
    if separator:
        labels = [label.strip() for label in separator.join(labels).split(separator)]
    labels = [*filter(None, labels)]  # an image may have fewer than others
    if not labels:
        raise DataError(f"{line}: expected a label, got {separator!r} alone")
    if len({*labels}) < len(labels):
        raise DataError(f"{line}: expected different labels of an image, got {', '.join(labels)}")
    return tuple(labels)


def _join_levels(line: str, labels: Sequence[str], columns: Sequence[str]) -> str:
    """The class of a row whose labels are the levels of a tree, coarse to fine."""
    if not all(labels):
        empty = columns[labels.index("")]
        raise DataError(f"{line}: label {labels[-1]!r} has no parent; {empty!r} is empty")
    if any(SEPARATOR in label for label in labels):
        raise DataError(
            f"{line}: expected labels without {SEPARATOR!r}, which separates the levels, "
            f"got {[*labels]}"
        )
    return SEPARATOR.join(labels)
