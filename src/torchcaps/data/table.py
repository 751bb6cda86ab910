"""A CSV of image files and their labels."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

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
from torchcaps.errors import DataError


def read_table(path: str | Path, request: ReadRequest) -> Dataset:
    """Read the images that a CSV with the columns `file` and `label` names.

    With the columns `image` and `mask` instead it gives images with masks, as `read_masks` does; a
    table of classes may lie beside it. Labels such as "clothing/tops/shirt" make a label tree.

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
    columns = tuple(map(str.strip, (options.label_column or "label").split(",")))
    entries = []
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
                    "(--label-column) and group_column (--group-column) name, and optionally "
                    f"split, got {','.join(header) or 'an empty file'}"
                )
        for row in rows:
            line = f"{path} line {rows.line_num}"
            name = (row[file] or "").strip()
            labels = [(row[column] or "").strip() for column in columns]
            if options.label_separator:
                joined = options.label_separator.join(labels)
                labels = [label.strip() for label in joined.split(options.label_separator)]
            labels = list(filter(None, labels))  # an image may have fewer than others
            if not labels or len(set(labels)) < len(labels):
                raise DataError(
                    f"{line}: expected a label, or different ones, for {name}, got {labels}"
                )
            group = find_group(options.group_pattern, name)
            if options.group_column is not None:
                group = (row[options.group_column] or "").strip()
                if not group:
                    raise DataError(
                        f"{line}: expected a {options.group_column!r}, which names a group"
                    )
            image = os.path.join(path.parent, name)
            entries.append(Entry(image, tuple(labels), row_split(line, row), group))
            if not os.path.isfile(image):
                missing[image] = f"{line}: no such file {image}"
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
