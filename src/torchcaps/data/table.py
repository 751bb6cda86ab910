"""A CSV of image files and their labels."""

import os
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path

import torch

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadOptions, ReadRequest, register_format
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
from torchcaps.errors import ArgumentError, DataError
from torchcaps.types import Json, Names, StrPath


def read_table(path: StrPath, request: ReadRequest) -> Dataset:
    """Read the images that a CSV with the columns `file` and `label` names.

    With the columns `image` and `mask` instead it gives images with masks, as `read_masks` does; a
    table of classes may lie beside it. Labels such as "clothing/tops/shirt" make a label tree.

    The option `label_column` names the column of labels instead; the files are then in `file` or
    `image`. If it names several, or `label_separator` divides what is in a column ("cat|dog"), an
    image has one or more classes, the target "labels". The option `value_column` names one or more
    columns of numbers instead, the target "value". The option `group_column` names the
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
        ArgumentError: columns of labels and of values.
        DataError: a missing column, or with its line number a missing file, empty label, value that
            is no number, or unknown split; one class only; a label without a parent or with two; an
            unreadable image; mixed sizes.
    """
    path = Path(path)
    options = request.options
    if options.value_column and options.label_column:
        raise ArgumentError("value_column", "expected no label_column beside it, got both")
    names = options.value_column or options.label_column or "label"
    columns = tuple(map(str.strip, names.split(",")))
    entries = []
    values = []
    missing = {}
    with csv_rows(path) as rows:
        header = rows.fieldnames or ()
        is_plain = options == ReadOptions(skip_damaged=options.skip_damaged)
        if {"image", "mask"} <= set(header) and is_plain:
            return read_mask_table(path, rows, request)
        file = "image" if "image" in header and "file" not in header else "file"
        for column in filter(None, (file, *columns, options.group_column)):
            if column not in header:
                raise DataError(
                    f"{path}: no column {column!r}; expected file,label or what label_column "
                    "(--label-column), value_column (--value-column) and group_column "
                    "(--group-column) name, and optionally split, got "
                    f"{','.join(header) or 'an empty file'}"
                )
        for row in rows:
            line = f"{path} line {rows.line_num}"
            name = row[file].strip()
            cells = [row[column].strip() for column in columns]
            labels: Names = ()
            numbers = []
            if options.value_column:
                numbers = [_read_number(line, cell) for cell in cells]
            else:
                labels = _read_labels(line, name, cells, options.label_separator)
            group = find_group(options.group_pattern, name)
            if options.group_column:
                group = row[options.group_column].strip()
                if not group:
                    raise DataError(f"{line}: expected a group in {options.group_column!r}")
            image = os.path.join(path.parent, name)
            if not os.path.isfile(image):
                missing[image] = f"{line}: no such file {image}"
                continue
            values.append(numbers)
            entries.append(Entry(image, labels, row_split(line, row), group))
    num_images = len(entries) + len(missing)
    notes = damage_notes(path.stem, missing, num_images, options.skip_damaged)
    extras: Json = {}
    if options.value_column:
        extras = {"classes": columns, "targets": {"value": torch.tensor(values)}}
    return read_entries(path.stem, entries, request, notes=notes, **extras)


def _read_labels(line: str, name: str, cells: Sequence[str], separator: str | None) -> Names:
    """The labels of an image of this name. Raises DataError for none, or equal ones."""
    if separator:
        cells = [label.strip() for label in separator.join(cells).split(separator)]
    labels = tuple(filter(None, cells))  # an image may have fewer than others
    if not labels or len(set(labels)) < len(labels):
        raise DataError(
            f"{line}: expected a label, or different ones, for {name}, got {list(labels)}"
        )
    return labels


def _read_number(line: str, text: str) -> float:
    """The number in a column of values. Raises DataError for another text, NaN and infinity."""
    with suppress(ValueError):
        number = float(text)
        if isfinite(number):
            return number
    raise DataError(f"{line}: expected a number, got {text!r}")


register_format(
    "a .csv file",
    lambda path: path.suffix.lower() == ".csv" and not path.is_dir(),
    read_table,
    splits=SPLITS_WITH_VAL,
    options=tuple(vars(ReadOptions())),
)
