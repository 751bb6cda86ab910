"""What a file may cost in memory, and which errors come out of a reader.

A file may state sizes that it does not hold, expand to a thousand times its own size, or never end. So every size is
counted before it is allocated, streams are decompressed piece by piece, and only regular files are opened. Without
`max_bytes` a set, and each file, may take `FLOOR` bytes, or `RATIO` times what it takes on disk if that is more.
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
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

from torchcaps.errors import DataError, TorchcapsError, check_range, check_regular

FLOOR = 256 << 20
RATIO = 32
BLOCK = 4096  # what the smallest file takes on disk
CHUNK = 1 << 20  # bytes decompressed, and characters of a line read, at a time
LINE_COST = 512  # bytes of memory that is made of a line of text
PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Budget:
    """What files take on disk, and the memory that has been asked for to hold them, in bytes."""

    max_bytes: int | None = None
    stored: int = 0
    spent: int = 0

    def spend(self, what: str, count: int) -> None:
        """Count bytes of memory; DataError where they are too much for what is stored."""
        self.spent += count
        most = max(FLOOR, RATIO * self.stored) if self.max_bytes is None else self.max_bytes
        if self.spent > most:
            allowed = f"{most / 2**20:,.0f} MiB of memory allowed for {self.stored / 2**20:,.2f} MiB on disk"
            how = "give max_bytes (--max-bytes in training) to allow more"
            raise DataError(f"{what} asks for more than the {allowed}; {how}")


# Readers are called through registered functions of two arguments; the budget of a set reaches them by its context.
_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def reading(
    where: Path | str,
    max_bytes: int | None = None,
    wrong: str = "cannot be read",
    *,
    fresh: bool = False,
) -> Iterator[None]:
    """Count all that is read inside in one budget, and turn any exception into a DataError of one line.

    The error names `where` and says that it is `wrong`; the exception is kept as the cause. `max_bytes` is the memory
    that all of it may take, None derives it from the size on disk; `fresh` starts a new budget inside another one.
    """
    if max_bytes is not None:
        check_range("max_bytes", max_bytes, low=1)
    new = fresh or max_bytes is not None or _current.get() is None
    token = _current.set(Budget(max_bytes)) if new else None
    try:
        yield
    except TorchcapsError:
        raise
    except MemoryError as error:
        raise DataError(f"{where}: {wrong} (it does not fit into memory)") from error
    except OSError as error:
        raise DataError(f"{where}: {wrong} ({error.strerror or error})") from error
    except Exception as error:  # parsers raise anything on damaged bytes
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise DataError(f"{where}: {wrong} ({kind}{error})") from error
    finally:
        if token is not None:
            _current.reset(token)


def door(reader: Callable[P, T]) -> Callable[P, T]:
    """A reader whose first argument is a path, inside `reading` of that path."""
    parameters = signature(reader)

    @wraps(reader)
    def read(*args: P.args, **kwargs: P.kwargs) -> T:
        first, *_ = parameters.bind(
            *args, **kwargs
        ).arguments.values()  # a wrong call is no damaged file
        with reading(first):
            return reader(*args, **kwargs)

    return read


def spend(what: str, count: int, path: Path | str | None = None) -> None:
    """Count bytes to be kept for the set being read, and the file that they come from; DataError where too many."""
    budget = _current.get()
    if budget is not None:
        budget.stored += 0 if path is None else _on_disk(os.stat(path))
        budget.spend(what, count)


class Source(io.BufferedIOBase):
    """A regular file, decompressed while it is read if it begins as gzip, bzip2 or xz do (`packed`); used in `reading`.

    `file` is the file itself, not decompressed, and `size` its length in bytes. OSError where it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_regular(path)
        self.file = path.open("rb")
        about = os.fstat(self.file.fileno())
        self.size, self._reached = about.st_size, 0
        total = _current.get() or Budget()
        total.stored += _on_disk(about)
        self._budgets = Budget(total.max_bytes, _on_disk(about)), total
        start = self.file.peek(8)
        unpack = next((kind for magic, kind in PACKED.items() if start.startswith(magic)), None)
        self.packed = unpack is not None
        self._stream: IO[bytes] = unpack(self.file) if unpack is not None else self.file

    def close(self) -> None:
        if hasattr(self, "file"):  # Python closes what could not be opened too
            self.file.close()
        super().close()

    def claim(self, count: int) -> None:
        """Count bytes of memory that are about to be allocated; DataError where file or set takes too much."""
        for budget in self._budgets:
            budget.spend(f"{self.path}: it", count)

    def take(self, count: int) -> bytearray:
        """The next `count` bytes, fewer where it ends before; DataError as for `claim` and for a damaged stream."""
        self.claim(count if self.packed else min(count, self.size))
        return drained(self._piece, count)

    def exactly(self, count: int, asked: str) -> bytearray:
        """The next `count` bytes, after which it must end; `asked` says in the error who asks for them."""
        left = count if self.packed else self.size - self.file.tell()
        data = self.take(count) if left == count else bytearray()
        found = len(data) if left == count else left
        more = found == count and self._piece(1)
        if found != count or more:
            what = "truncated" if found < count else "too long"
            got = "more" if more else found
            raise DataError(
                f"{self.path}: {what}, {asked} asks for {count} bytes of data, got {got}"
            )
        return data

    def pieces(self) -> Iterator[bytes]:
        """All that follows, piece by piece."""
        while piece := self._piece(CHUNK):
            self.claim(len(piece))
            yield piece

    def rest(self) -> bytearray:
        """All that follows."""
        data = bytearray()
        for piece in self.pieces():
            data += piece
        return data

    def _piece(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except EOFError:
            raise DataError(
                f"{self.path}: truncated gzip file, it ends before its data does"
            ) from None
        except (zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise DataError(f"{self.path}: damaged gzip file ({error})") from None

    # tarfile uses the methods below. Every byte that it passes over in a compressed file is counted once.

    def read(self, count: int | None = -1) -> bytes:
        if count is None or count < 0:
            raise DataError(f"{self.path}: damaged, a size in it is negative")
        self._reach(self.tell() + count)
        return self._stream.read(count)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        self._reach(place)
        return self._stream.seek(place, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def _reach(self, place: int) -> None:
        if self.packed and place > self._reached:
            self.claim(place - self._reached)
            self._reached = place


def drained(read: Callable[[int], bytes], count: int) -> bytearray:
    """The next `count` bytes that `read` gives, fewer where it ends before; room is made as they come."""
    data = bytearray()
    while len(data) < count and (piece := read(min(CHUNK, count - len(data)))):
        data += piece
    return data


def _on_disk(about: os.stat_result) -> int:
    """Bytes that a file takes on disk; holes of a sparse file do not count, where the system reports them."""
    blocks = getattr(about, "st_blocks", 0) * 512
    return max(BLOCK, min(about.st_size, blocks) if blocks else about.st_size)


@door
def read_bytes(path: Path) -> bytearray:
    """The bytes of a file, decompressed where it begins as gzip does; DataError where it is damaged or too large."""
    with Source(path) as source:
        return source.rest()


@door
def sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file, decompressed, as hexadecimal digits; DataError as for `read_bytes`."""
    digest = hashlib.sha256()
    with Source(path) as source:
        for piece in source.pieces():
            digest.update(piece)
    return digest.hexdigest()


def fault(path: Path, digest: str | None) -> str:
    """What is wrong with a file: "" when it is there and has this SHA-256 (decompressed; None accepts any bytes)."""
    if not path.is_file():
        return "missing"
    try:
        right = digest is None or sha256(path) == digest
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return "" if right else "the bytes are not the published ones (SHA-256 differs)"


def text_lines(source: Source) -> Iterator[str]:
    """The lines of a text file in UTF-8, shorter than `CHUNK`; each counts as `LINE_COST` bytes of memory."""
    with io.TextIOWrapper(source.file, encoding="utf-8-sig", newline="") as text:
        while line := text.readline(CHUNK):
            if len(line) == CHUNK:
                raise DataError(f"{source.path}: a line has {CHUNK:,} characters or more")
            source.claim(LINE_COST)
            yield line
