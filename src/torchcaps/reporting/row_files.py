"""Predictions as lines of text, and as files: CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from torchcaps.errors import ArgumentError, RunError
from torchcaps.reporting.prediction import Row, columns
from torchcaps.training.files import atomic, make_folder

Writer = Callable[[Row], None]
ROW_GROUP = 10_000  # rows of a Parquet file that are in memory at a time
DIGITS = 6  # of a number in a CSV


def json_lines(stream: TextIO) -> Writer:
    """A function that writes a prediction as a JSON object on a line of its own."""

    def write(row: Row) -> None:
        stream.write(json.dumps(row, allow_nan=False) + "\n")

    return write


def csv_lines(stream: TextIO, top_k: int = 1) -> Writer:
    """A function that writes a prediction as a line of a CSV, the first one after a header.

    Args:
        stream: open for text, without conversion of line breaks.
        top_k: number of classes of a classifier.
    """
    writer: csv.DictWriter[str] | None = None

    def write(row: Row) -> None:
        nonlocal writer
        cells = columns(row, top_k)
        for name, cell in cells.items():
            if isinstance(cell, float):
                cells[name] = f"{cell:.{DIGITS}g}"
        if writer is None:
            writer = csv.DictWriter(stream, list(cells), lineterminator="\n")
            writer.writeheader()
        writer.writerow(cells)

    return write


@contextmanager
def open_row_file(path: Path, top_k: int = 1) -> Iterator[Writer]:
    """A context with a function that writes predictions to a file, which is there when all of them are.

    Args:
        path: ends in .csv, .jsonl or .parquet, which has the columns of a CSV; missing folders are
            made.
        top_k: number of classes of a classifier in a table.

    Raises:
        ArgumentError: for another ending.
        ImportError: Parquet without pyarrow.
        RunError: there is such a file already, or its folder cannot be made.
        TrainingError: when it is left, if the file cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in (".csv", ".jsonl", ".parquet"):
        raise ArgumentError(
            "output_file", f"expected a file ending in .csv, .jsonl or .parquet, got {path.name}"
        )
    if ending == ".parquet" and find_spec("pyarrow") is None:
        raise ImportError("Parquet needs pyarrow: pip install 'torchcaps[parquet]'")
    if path.exists():
        raise RunError(f"{path}: exists already; remove it, or name another file")
    make_folder(path.parent)
    with atomic(path) as partial:
        if ending == ".parquet":
            with _parquet_rows(partial, top_k) as write:
                yield write
            return
        with open(partial, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            yield csv_lines(stream, top_k) if ending == ".csv" else json_lines(stream)


@contextmanager
def _parquet_rows(path: Path, top_k: int) -> Iterator[Writer]:
    """A function that writes predictions to a Parquet file, in groups of `ROW_GROUP`."""
    import pyarrow as pa
    from pyarrow import parquet

    rows: list[Row] = []
    writer: Any = None

    def flush() -> None:
        nonlocal writer
        table = pa.Table.from_pylist(rows, writer and writer.schema)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
        rows.clear()

    def write(row: Row) -> None:
        rows.append(columns(row, top_k))
        if len(rows) == ROW_GROUP:
            flush()

    try:
        yield write
        if rows or writer is None:
            flush()
    finally:
        if writer is not None:
            writer.close()
