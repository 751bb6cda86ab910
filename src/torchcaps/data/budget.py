"""The memory that a file may take, and the errors of a reader.

A file may state sizes that it does not hold, expand to a thousand times its own size, or never end.
So every size is counted before it is allocated, streams are decompressed piece by piece, and only
regular files are opened. Without `max_bytes` a set, and each file, may take `FLOOR` bytes, or
`RATIO` times what it takes on disk if that is more.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from torchcaps.errors import (
    DataError,
    TorchcapsError,
    check_range,
    check_regular,
)

FLOOR = 256 << 20
RATIO = 32
BLOCK = 4096  # bytes that the smallest file takes on disk
CHUNK = 1 << 20  # bytes decompressed, and characters of a line read, at a time
LINE_COST = 512  # bytes of memory that is made of a line of text
DECOMPRESSORS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}


class MemoryBudget:
    """Bytes of memory that a data set may take, given what its files take on disk.

    Args:
        max_bytes: the limit, at least 1; None derives it from the files' sizes.
        parent: a budget in which everything counts too, as that of a file counts in that of its
            set.
    """

    def __init__(self, max_bytes: int | None = None, parent: "MemoryBudget | None" = None) -> None:
        if max_bytes is not None:
            check_range("max_bytes", max_bytes, low=1)
        self.max_bytes = max_bytes
        self.parent = parent
        self.stored = 0
        self.reserved = 0

    @property
    def limit(self) -> int:
        """Bytes allowed by now."""
        return self.max_bytes or max(FLOOR, RATIO * self.stored)

    def add_file(self, stat: os.stat_result) -> None:
        """Count a file on disk. Holes of a sparse file do not count, where the system tells.

        Args:
            stat: of the file, from `os.stat`.
        """
        num_bytes = stat.st_size
        if getattr(stat, "st_blocks", 0):
            num_bytes = min(num_bytes, 512 * stat.st_blocks)
        self.stored += max(BLOCK, num_bytes)
        if self.parent is not None:
            self.parent.add_file(stat)

    def reserve(self, name: str, num_bytes: int) -> None:
        """Count bytes of memory before they are allocated.

        Args:
            name: of what is allocated, in the message.
            num_bytes: 0 or more.

        Raises:
            DataError: there are too many; the message begins with `name`.
        """
        self.reserved += num_bytes
        if self.reserved > self.limit:
            raise DataError(
                f"{name} asks for more than the {self.limit / 2**20:,.0f} MiB of memory allowed "
                f"for {self.stored / 2**20:,.2f} MiB on disk; "
                "give max_bytes (--max-bytes in training) to allow more"
            )
        if self.parent is not None:
            self.parent.reserve(name, num_bytes)


@contextmanager
def read_errors(name: Path | str, problem: str = "cannot be read") -> Iterator[None]:
    """Turn any exception inside into a DataError of one line, "`name`: `problem` (...)".

    The exception is its cause.
    """
    try:
        yield
    except TorchcapsError:
        raise
    except MemoryError as error:
        raise DataError(f"{name}: {problem} (it does not fit into memory)") from error
    except OSError as error:
        raise DataError(f"{name}: {problem} ({error.strerror or error})") from error
    except Exception as error:  # parsers raise anything on damaged bytes
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise DataError(f"{name}: {problem} ({kind}{error})") from error


class Reader:
    """A regular file, decompressed while it is read if it begins as gzip, bzip2 or xz do.

    Made by `open_reader`. `read`, `seek` and `tell` are what tarfile asks of a file. Every byte
    that is passed over in a compressed one is counted once.

    Attributes:
        path: the file's path.
        file: the file itself, not decompressed.
        budget: memory of this file, which also counts in that of its set.
        is_packed: whether it is decompressed.
    """

    def __init__(self, path: Path, file: io.BufferedReader, budget: MemoryBudget | None) -> None:
        self.path = path
        self.file = file
        stat = os.fstat(file.fileno())
        self.budget = MemoryBudget(None if budget is None else budget.max_bytes, budget)
        self.budget.add_file(stat)
        self._size = stat.st_size
        self._farthest = 0
        self._stream: IO[bytes] = file
        self.is_packed = False
        start = file.peek(8)
        for magic, unpack in DECOMPRESSORS.items():
            if start.startswith(magic):
                self._stream = unpack(file)
                self.is_packed = True

    def reserve(self, num_bytes: int) -> None:
        """Count bytes of memory before they are allocated; DataError for too many."""
        self.budget.reserve(f"{self.path}: it", num_bytes)

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer where the file ends before."""
        if count < 0:
            raise DataError(f"{self.path}: damaged, a size in it is negative")
        self._pass(self.tell() + count)
        return self._take(count)

    def _take(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except EOFError:
            raise DataError(
                f"{self.path}: truncated gzip file, it ends before its data does"
            ) from None
        except (zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise DataError(f"{self.path}: damaged gzip file ({error})") from None

    def seek(self, position: int) -> int:
        """Go to a position, counted from the start."""
        self._pass(position)
        return self._stream.seek(position)

    def tell(self) -> int:
        """The position of the next byte."""
        return self._stream.tell()

    def _pass(self, position: int) -> None:
        if self.is_packed and position > self._farthest:
            self.reserve(position - self._farthest)
            self._farthest = position

    def chunks(self) -> Iterator[bytes]:
        """All that follows, piece by piece."""
        while chunk := self._take(CHUNK):
            self.reserve(len(chunk))
            yield chunk

    def read_exact(self, count: int, reason: str) -> bytearray:
        """The next `count` bytes, after which the file must end.

        Args:
            count: number of bytes.
            reason: what asks for them, for errors.

        Raises:
            DataError: fewer bytes follow, or more.
        """
        contents = bytearray()
        num_bytes = count if self.is_packed else self._size - self.tell()
        if num_bytes == count:
            self.reserve(count)
            while piece := self._take(min(CHUNK, count - len(contents))):
                contents += piece
            num_bytes = len(contents)
        is_longer = num_bytes == count and self._take(1)
        if num_bytes != count or is_longer:
            problem = "truncated" if num_bytes < count else "too long"
            raise DataError(
                f"{self.path}: {problem}, {reason} asks for {count} bytes of data, "
                f"got {'more' if is_longer else num_bytes}"
            )
        return contents

    def lines(self) -> Iterator[str]:
        """The lines of a text file in UTF-8, shorter than `CHUNK`; each counts `LINE_COST` bytes."""
        with io.TextIOWrapper(self.file, encoding="utf-8-sig", newline="") as text:
            while line := text.readline(CHUNK):
                if len(line) == CHUNK:
                    raise DataError(f"{self.path}: a line has {CHUNK:,} characters or more")
                self.reserve(LINE_COST)
                yield line


@contextmanager
def open_reader(
    path: Path | str, budget: MemoryBudget | None = None, problem: str = "cannot be read"
) -> Iterator[Reader]:
    """Open a file as a `Reader`.

    Args:
        path: the file.
        budget: memory of the set that it is read for.
        problem: what an error inside the block says about the file, as in `read_errors`.
    """
    with read_errors(path, problem):
        check_regular(Path(path))
        with open(path, "rb") as file:
            yield Reader(Path(path), file, budget)


def read_bytes(path: Path, budget: MemoryBudget | None = None) -> bytearray:
    """The bytes of a file, decompressed where it is packed.

    Raises:
        DataError: it is damaged or too large.
    """
    with open_reader(path, budget) as reader:
        return bytearray().join(reader.chunks())


def sha256(path: Path, budget: MemoryBudget | None = None) -> str:
    """SHA-256 of the bytes that `read_bytes` returns, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open_reader(path, budget) as reader:
        for chunk in reader.chunks():
            digest.update(chunk)
    return digest.hexdigest()


def file_fault(path: Path, digest: str | None) -> str:
    """What is wrong with a file, "" for nothing.

    Args:
        path: the file.
        digest: SHA-256 of its decompressed bytes; None accepts any bytes.
    """
    if not path.is_file():
        return "missing"
    try:
        if digest is None or sha256(path) == digest:
            return ""
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return "the bytes are not the published ones (SHA-256 differs)"
