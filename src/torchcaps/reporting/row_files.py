"""Predictions as lines of text, in files that an interrupted command continues, and as Parquet."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np

from torchcaps.data.inputs import batched
from torchcaps.errors import ArgumentError, RunError, check_regular
from torchcaps.training.files import atomic, make_folder

Row = dict[str, Any]
ROW_GROUP = 10_000  # rows that are converted to Parquet at a time
DIGITS = 6  # of a number in a CSV


def columns(row: Row, top_k: int = 1) -> Row:
    """A prediction as a row of a table: its numbers and names, without nested parts.

    Args:
        row: of `Predictor`.
        top_k: number of classes of a classifier. The second class has the columns "label_2",
            "activation_2" and, of a calibrated run, "probability_2"; and so on.
    """
    cells = {name: cell for name, cell in row.items() if not isinstance(cell, dict | list)}
    for rank, label in enumerate(islice(row.get("activations", ()), 1, top_k), start=2):
        cells[f"label_{rank}"] = label
        cells[f"activation_{rank}"] = row["activations"][label]
        if "probabilities" in row:
            cells[f"probability_{rank}"] = row["probabilities"][label]
    return cells


class LineFormat:
    """How predictions are written as lines of text, and read again.

    Attributes:
        start: the first bytes of every file in this format.
    """

    start: ClassVar[bytes]

    def header(self, row: Row) -> str:
        """The text before the first row, with its line break; empty for none."""
        return ""

    def line(self, row: Row) -> str:
        """The text of a row, with its line break."""
        raise NotImplementedError

    def records(self, file: BinaryIO) -> Iterator[tuple[str, int]]:
        """The whole rows of a file, up to its end or to a last row that was cut off.

        Yields:
            Path of a row, and the number of bytes up to its end. The path of the header is "".

        Raises:
            ValueError: a row in the middle is damaged.
        """
        raise NotImplementedError


class JsonLines(LineFormat):
    """A JSON object a line."""

    start = b'{"path": '

    def line(self, row: Row) -> str:
        return json.dumps(row, allow_nan=False) + "\n"

    def records(self, file: BinaryIO) -> Iterator[tuple[str, int]]:
        num_bytes = 0
        for line in file:
            if not line.endswith(b"\n"):
                return
            num_bytes += len(line)
            yield json.loads(line)["path"], num_bytes


class Csv(LineFormat):
    """A table with a header, as `columns` gives it.

    Args:
        top_k: number of classes of a classifier.
    """

    start = b"path,"

    def __init__(self, top_k: int = 1) -> None:
        self.top_k = top_k

    def header(self, row: Row) -> str:
        return _csv_line([*columns(row, self.top_k)])

    def line(self, row: Row) -> str:
        cells = []
        for cell in columns(row, self.top_k).values():
            cells.append(f"{cell:.{DIGITS}g}" if isinstance(cell, float) else cell)
        return _csv_line(cells)

    def records(self, file: BinaryIO) -> Iterator[tuple[str, int]]:
        num_bytes = 0
        is_whole = True

        def lines() -> Iterator[str]:
            nonlocal num_bytes, is_whole
            for line in file:
                num_bytes += len(line)
                is_whole = line.endswith(b"\n")
                yield line.decode(errors="surrogateescape")

        num_columns = 0
        for cells in csv.reader(lines()):  # a name may hold line breaks
            is_header = num_columns == 0
            num_columns = num_columns or len(cells)
            if not is_whole or len(cells) != num_columns:
                if file.read(1):
                    raise ValueError("a row with other columns")
                return
            yield "" if is_header else cells[0], num_bytes


def _csv_line(cells: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


class RowFile:
    """A file that predictions are added to, one by one; each is in it whole or not at all.

    Rows of an earlier start stay, and what was cut off at its end is removed. Use it as a context
    manager. Memory grows by 8 bytes for each row that is there already.

    Args:
        path: of the file; missing folders are made.
        line_format: of its lines.

    Raises:
        RunError: when it is entered, for a file that holds something else.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path, line_format: LineFormat) -> None:
        self.path = path
        self.line_format = line_format
        self.num_rows = 0  # in the file
        self._header: str | None = None
        self._done = np.empty(0, np.uint64)

    def __enter__(self) -> Self:
        make_folder(self.path.parent)
        check_regular(self.path)
        self._file = open(self.path, "ab", buffering=0)
        try:
            self._read_rows()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def is_done(self, name: str) -> bool:
        """Whether the prediction of a path was in the file when it was opened."""
        digest = _digest(name)
        place = int(np.searchsorted(self._done, digest))
        return place < len(self._done) and self._done[place] == digest

    def write(self, row: Row) -> None:
        """Add a prediction.

        Raises:
            RunError: the file has other columns.
            OSError: it cannot be written; it is then as it was.
        """
        header = self.line_format.header(row)
        text = self.line_format.line(row)
        if self._header is None:
            text = header + text
        elif header != self._header:
            raise RunError(
                f"{self.path}: expected the columns {header.strip()}, as these options give them, "
                f"got {self._header.strip()}; name another file"
            )
        line = text.encode(errors="surrogateescape")
        num_bytes = os.fstat(self._file.fileno()).st_size
        if self._file.write(line) != len(line):
            self._file.truncate(num_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._header = header
        self.num_rows += 1

    def _read_rows(self) -> None:
        """Note the rows that are there, and remove what follows the last whole one."""
        end = 0
        with open(self.path, "rb") as file:
            start = file.read(len(self.line_format.start))
            if not self.line_format.start.startswith(start):
                raise RunError(
                    f"{self.path}: holds something else than predictions of this format; "
                    "name another file"
                )
            file.seek(0)
            first_line = file.readline()
            file.seek(0)

            def digests() -> Iterator[np.uint64]:
                nonlocal end
                for name, num_bytes in self.line_format.records(file):
                    end = num_bytes
                    if name:
                        yield _digest(name)

            try:
                self._done = np.fromiter(digests(), np.uint64)
            except (ValueError, KeyError, TypeError, csv.Error) as error:
                raise RunError(f"{self.path}: has a damaged row after byte {end}") from error
        self._done.sort()
        self.num_rows = len(self._done)
        self._file.truncate(end)
        if end:
            is_table = isinstance(self.line_format, Csv)
            self._header = first_line.decode(errors="surrogateescape") if is_table else ""


class ParquetFile(RowFile):
    """A Parquet file of predictions, with the columns of `columns`, in groups of 10,000 rows.

    Parquet cannot be continued. So the rows go to `FILE.partial.jsonl` beside it, which a second
    start continues, and become the Parquet file at the end.

    Args:
        path: of the file; missing folders are made.
        top_k: number of classes of a classifier.

    Raises:
        RunError: there is such a file already.
        ImportError: pyarrow is not installed.
    """

    def __init__(self, path: Path, top_k: int = 1) -> None:
        if find_spec("pyarrow") is None:
            raise ImportError("Parquet needs pyarrow: pip install 'torchcaps[parquet]'")
        if path.exists():
            raise RunError(f"{path}: exists already; remove it, or name another file")
        super().__init__(path.with_name(f"{path.name}.partial.jsonl"), JsonLines())
        self.parquet_path = path
        self.top_k = top_k

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        if kind is None:
            self._convert()
            self.path.unlink()

    def _convert(self) -> None:
        """Write the rows as Parquet, a group at a time."""
        import pyarrow as pa
        from pyarrow import parquet

        with open(self.path, "rb") as lines, atomic(self.parquet_path) as partial:
            rows = (columns(json.loads(line), self.top_k) for line in lines)
            groups = batched(rows, ROW_GROUP)
            table = pa.Table.from_pylist(next(groups, []))
            with parquet.ParquetWriter(partial, table.schema) as writer:
                writer.write_table(table)
                for group in groups:
                    writer.write_table(pa.Table.from_pylist(group, table.schema))


def open_row_file(path: Path, top_k: int = 1) -> RowFile:
    """A file of predictions of the format of its ending.

    Args:
        path: ends in .csv or .jsonl.
        top_k: number of classes of a classifier in a table.

    Raises:
        ArgumentError: for another ending.
    """
    match path.suffix.lower():
        case ".csv":
            return RowFile(path, Csv(top_k))
        case ".jsonl":
            return RowFile(path, JsonLines())
    raise ArgumentError("output_file", f"expected a file ending in .csv or .jsonl, got {path.name}")


def _digest(name: str) -> np.uint64:
    """A path as 64 bits, of which no two of a million paths have the same but by rare chance."""
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8)
    return np.uint64(int.from_bytes(digest.digest(), "little"))
