"""What a file may cost in memory, and which errors come out of a reader.

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

from torchcaps.errors import DataError, TorchcapsError, check_range, check_regular

FLOOR = 256 << 20
RATIO = 32
BLOCK = 4096  # what the smallest file takes on disk
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
        parent: a budget that everything counts in too, as a file's in that of its set.
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
        return max(FLOOR, RATIO * self.stored) if self.max_bytes is None else self.max_bytes

    def add_file(self, about: os.stat_result) -> None:
        """Count a file on disk. Holes of a sparse file do not count, where the system tells."""
        blocks = getattr(about, "st_blocks", 0) * 512
        self.stored += max(BLOCK, min(about.st_size, blocks) if blocks else about.st_size)
        if self.parent is not None:
            self.parent.add_file(about)

    def reserve(self, name: str, num_bytes: int) -> None:
        """Count bytes of memory before they are allocated; DataError, naming `name`, where there are too many."""
        self.reserved += num_bytes
        if self.reserved > self.limit:
            allowed = f"{self.limit / 2**20:,.0f} MiB of memory allowed for {self.stored / 2**20:,.2f} MiB on disk"
            remedy = "give max_bytes (--max-bytes in training) to allow more"
            raise DataError(f"{name} asks for more than the {allowed}; {remedy}")
        if self.parent is not None:
            self.parent.reserve(name, num_bytes)


@contextmanager
def read_errors(name: Path | str, problem: str = "cannot be read") -> Iterator[None]:
    """Turn any exception inside into a DataError of one line, "`name`: `problem` (...)", with its cause kept."""
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
    """A regular file, decompressed while it is read if it begins as gzip, bzip2 or xz do (`is_packed`).

    `file` is the file itself, not decompressed, and `size` its length in bytes. Made by `open_reader`.
    """

    def __init__(self, path: Path, file: io.BufferedReader, budget: MemoryBudget | None) -> None:
        self.path = path
        self.file = file
        about = os.fstat(file.fileno())
        self.size = about.st_size
        self.budget = MemoryBudget(None if budget is None else budget.max_bytes, budget)
        self.budget.add_file(about)
        self._farthest = 0
        start = file.peek(8)
        unpack = next((f for magic, f in DECOMPRESSORS.items() if start.startswith(magic)), None)
        self.is_packed = unpack is not None
        self._stream: IO[bytes] = file if unpack is None else unpack(file)

    def reserve(self, num_bytes: int) -> None:
        """Count bytes of memory that are about to be allocated; DataError where they are too many."""
        self.budget.reserve(f"{self.path}: it", num_bytes)

    # `read`, `seek` and `tell` are what tarfile asks of a file. Every byte that is passed over in a
    # compressed one is counted once.

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer where it ends before."""
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

    def seek(self, place: int) -> int:
        """Go to a place, counted from the start."""
        self._pass(place)
        return self._stream.seek(place)

    def tell(self) -> int:
        """The place of the next byte."""
        return self._stream.tell()

    def _pass(self, place: int) -> None:
        if self.is_packed and place > self._farthest:
            self.reserve(place - self._farthest)
            self._farthest = place

    def chunks(self) -> Iterator[bytes]:
        """All that follows, piece by piece."""
        while chunk := self._take(CHUNK):
            self.reserve(len(chunk))
            yield chunk

    def read_exact(self, count: int, asked: str) -> bytearray:
        """The next `count` bytes, after which it must end; `asked` says in the error who asks for them."""
        left = count if self.is_packed else self.size - self.tell()
        data = bytearray()
        if left == count:
            self.reserve(count)
            data = read_up_to(self._take, count)
            left = len(data)
        is_longer = left == count and self._take(1)
        if left != count or is_longer:
            problem = "truncated" if left < count else "too long"
            got = "more" if is_longer else left
            raise DataError(
                f"{self.path}: {problem}, {asked} asks for {count} bytes of data, got {got}"
            )
        return data

    def lines(self) -> Iterator[str]:
        """The lines of a text file in UTF-8, shorter than `CHUNK`; each counts as `LINE_COST` bytes."""
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
    """Open a file as a `Reader`; DataError for what goes wrong inside, as `read_errors` has it.

    What is read counts in a budget of the file's own, and in the one that is given.
    """
    with read_errors(path, problem):
        check_regular(Path(path))
        with open(path, "rb") as file:
            yield Reader(Path(path), file, budget)


def read_up_to(read: Callable[[int], bytes], count: int) -> bytearray:
    """The next `count` bytes that `read` gives, fewer where it ends before; room is made as they come."""
    data = bytearray()
    while len(data) < count and (piece := read(min(CHUNK, count - len(data)))):
        data += piece
    return data


def read_bytes(path: Path, budget: MemoryBudget | None = None) -> bytearray:
    """The bytes of a file, decompressed where it begins as gzip does; DataError where it is damaged or too large."""
    with open_reader(path, budget) as reader:
        data = bytearray()
        for chunk in reader.chunks():
            data += chunk
        return data


def sha256(path: Path, budget: MemoryBudget | None = None) -> str:
    """SHA-256 of the bytes of a file, decompressed, as hexadecimal digits; DataError as for `read_bytes`."""
    digest = hashlib.sha256()
    with open_reader(path, budget) as reader:
        for chunk in reader.chunks():
            digest.update(chunk)
    return digest.hexdigest()


def file_fault(path: Path, digest: str | None) -> str:
    """What is wrong with a file: "" when it is there and has this SHA-256 (decompressed; None accepts any bytes)."""
    if not path.is_file():
        return "missing"
    try:
        is_right = digest is None or sha256(path) == digest
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return "" if is_right else "the bytes are not the published ones (SHA-256 differs)"
