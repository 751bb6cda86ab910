"""A CSV of image files and their labels."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchcaps.data._registry import ReadRequest, register_format
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import SEPARATOR, Entry, check_tree, csv_rows, read_entries, row_split
from torchcaps.data.masks import read_mask_table
from torchcaps.errors import DataError

FLAT_COLUMNS = ("file", "label")
TREE_COLUMNS = ("image", "coarse", "fine")


def read_table(path: str | Path, request: ReadRequest) -> ImageSet:
    """Read the images that a CSV with the columns `file` and `label` names.

    With the columns `image` and `mask` instead it gives a `MaskedSet`, as `read_masks` does; a
    table of classes may lie beside it. With the column `image`, all other columns but `split` are
    the levels of a label tree, two or more, coarse to fine.

    Files are relative to the CSV's own folder. A column `split` says "train" or "test" for every
    row; without it, 20 % of each class are the test split, chosen as in `read_folder`. The file is
    UTF-8, comma-separated, with a header. Its name without the ending becomes the set's.

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
        columns = rows.fieldnames or ()
        if {"image", "mask"} <= {*columns}:
            return read_mask_table(path, rows, request)
        file_column, *levels = _columns(path, columns)
        entries = list(_entries(path, rows, file_column, levels))
        if len(levels) > 1:
            check_tree(path, entries)
        return read_entries(path.stem, entries, request)


register_format(
    "a .csv file", lambda path: path.suffix.lower() == ".csv" and not path.is_dir(), read_table
)


def _columns(path: Path, columns: Sequence[str]) -> Sequence[str]:
    """The column of files, then those of labels, coarse to fine."""
    header = ",".join(columns) or "an empty file"
    is_tree = "label" not in columns and not {*TREE_COLUMNS}.isdisjoint(columns)
    expected = TREE_COLUMNS if is_tree else FLAT_COLUMNS
    for column in ("image",) if is_tree else FLAT_COLUMNS:
        if column not in columns:
            raise DataError(
                f"{path}: no column {column!r}; "
                f"expected {','.join(expected)} and optionally split, got {header}"
            )
    if not is_tree:
        return FLAT_COLUMNS
    levels = [column for column in columns if column not in ("image", "split")]
    if len(levels) < 2:
        raise DataError(
            f"{path}: a column of labels is missing; "
            f"expected {','.join(expected)} or more levels, got {header}"
        )
    return "image", *levels


def _entries(
    path: Path,
    rows: csv.DictReader[str],
    file_column: str,
    levels: list[str],
) -> Iterator[Entry]:
    for row in rows:
        line = f"{path} line {rows.line_num}"
        file, *labels = [(row[column] or "").strip() for column in (file_column, *levels)]
        if not file or not labels[-1]:
            raise DataError(f"{line}: expected a file and a label, got {file!r} and {labels[-1]!r}")
        if not all(labels):
            empty = levels[labels.index("")]
            raise DataError(f"{line}: label {labels[-1]!r} has no parent; {empty!r} is empty")
        if len(levels) > 1 and any(SEPARATOR in label for label in labels):
            raise DataError(
                f"{line}: expected labels without {SEPARATOR!r}, which separates the levels, "
                f"got {labels}"
            )
        image_path = os.path.join(path.parent, file)
        if not os.path.isfile(image_path):
            raise DataError(f"{line}: no such file {image_path}")
        yield Entry(image_path, SEPARATOR.join(labels), row_split(line, row))
