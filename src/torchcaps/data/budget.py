"""The door that every reader goes through: what a file may cost, and which errors come out.

A file may claim sizes that it does not hold, expand to a thousand times its own size, or never end. So every size is
counted here before it is allocated, streams are decompressed piece by piece, and only regular files are opened.
Without `max_bytes` a set may take `FLOOR` bytes of memory, or `RATIO` times what its files take on disk, whichever is
more; so may each file that expands.
"""

from __future__ import annotations

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
from functools import wraps
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ParamSpec, Self, TypeVar

from torchcaps.errors import DataError, TorchcapsError, check_range, check_regular

FLOOR = 256 << 20
RATIO = 32
BLOCK = 4096  # what the smallest file takes on disk
CHUNK = 1 << 20  # bytes decompressed at a time
PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}

P = ParamSpec("P")
T = TypeVar("T")


class Budget:
    """What the files of one set take on disk, and what has been asked for to hold them."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes, self.stored, self.spent = max_bytes, 0, 0

    def most(self, stored: int) -> int:
        """The bytes of memory that `stored` bytes on disk may expand to."""
        return max(FLOOR, RATIO * stored) if self.max_bytes is None else self.max_bytes

    def check(self, what: str, spent: int, stored: int) -> None:
        """Refuse `spent` bytes of memory for `stored` bytes on disk where that is too much.

        Raises:
            DataError: it is.
        """
        most = self.most(stored)
        if spent > most:
            raise DataError(
                f"{what} asks for more than the {most / 2**20:,.0f} MiB of memory allowed for {stored / 2**20:,.2f} "
                "MiB on disk; give max_bytes (--max-bytes in training) to allow more"
            )


# Readers are called through registered functions of two arguments; the budget of a set reaches them by its context.
_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def reading(
    where: Path | str, max_bytes: int | None = None, wrong: str = "cannot be read", *, fresh: bool = False
) -> Iterator[None]:
    """Everything read inside belongs to one budget; whatever goes wrong comes out as a DataError of one line.

    Args:
        where: what the error names.
        max_bytes: memory that all of it may take, at least 1; None is by its size on disk (see above).
        wrong: what the error says of it.
        fresh: begin a budget of its own, even inside another.

    Raises:
        DataError: for any exception inside that is none of the library's, with that one as its cause.
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
        first, *_ = parameters.bind(*args, **kwargs).arguments.values()  # a wrong call is no damaged file
        with reading(first):
            return reader(*args, **kwargs)

    return read


def spend(what: str, count: int, path: Path | str | None = None) -> None:
    """Count bytes that are about to be kept in memory for the set being read, and the file `path` that they come from.

    Raises:
        DataError: they are more than the set may take.
    """
    budget = _current.get()
    if budget is not None:
        budget.stored += 0 if path is None else _on_disk(os.stat(path))
        budget.spent += count
        budget.check(what, budget.spent, budget.stored)


class Source:
    """A regular file, decompressed on the way where it begins as gzip, bzip2 or xz do.

    Attributes:
        packed: whether it is decompressed.
        file: the file itself, not decompressed.
        size: its length in bytes.

    Raises:
        DataError: it cannot be opened, or is a folder, a FIFO or a device.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._it, self._budget = path, f"{path}: it", _current.get() or Budget()
        try:
            check_regular(path)
            self.file = path.open("rb")
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
        about = os.fstat(self.file.fileno())
        self.size, self._stored, self._spent, self._reached = about.st_size, _on_disk(about), 0, 0
        self._budget.stored += self._stored
        start = self.file.peek(8)
        unpack = next((kind for magic, kind in PACKED.items() if start.startswith(magic)), None)
        self.packed = unpack is not None
        self._stream: IO[bytes] = unpack(self.file) if unpack is not None else self.file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def claim(self, count: int) -> None:
        """Count bytes of memory that are about to be allocated for what is in this file.

        Raises:
            DataError: they are more than the file, or the set, may take.
        """
        self._spent += count
        self._budget.spent += count
        self._budget.check(self._it, self._spent, self._stored)
        self._budget.check(self._it, self._budget.spent, self._budget.stored)

    def take(self, count: int) -> bytearray:
        """The next `count` bytes, fewer where it ends before.

        Raises:
            DataError: its stream is damaged or cut short, or that is more than the file may take.
        """
        self.claim(count if self.packed else min(count, self.size))
        data = bytearray()
        while len(data) < count and (piece := self._piece(min(CHUNK, count - len(data)))):
            data += piece
        return data

    def exactly(self, count: int, asked: str) -> bytearray:
        """The next `count` bytes, behind which it ends; `asked` says in the error who asks for them.

        Raises:
            DataError: as `take`; or they are not there, or not all.
        """
        left = count if self.packed else self.size - self.file.tell()
        data = self.take(count) if left == count else bytearray()
        found: int | str = len(data) if left == count else left
        if found == count and self._piece(1):
            found = "more"
        if found != count:
            what = "truncated" if isinstance(found, int) and found < count else "too long"
            raise DataError(f"{self.path}: {what}, {asked} asks for {count} bytes of data, got {found}")
        return data

    def pieces(self) -> Iterator[bytes]:
        """All that follows, piece by piece.

        Raises:
            DataError: as `take`.
        """
        while piece := self._piece(CHUNK):
            self.claim(len(piece))
            yield piece

    def _piece(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except EOFError:
            raise DataError(f"{self.path}: truncated gzip file, it ends before its data does") from None
        except (zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise DataError(f"{self.path}: damaged gzip file ({error})") from None
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    # What follows is what tarfile asks of a file: every byte that it goes over is counted once.

    def read(self, count: int) -> bytes:
        """`count` bytes of the stream."""
        if count < 0:
            raise DataError(f"{self.path}: damaged, a size in it is negative")
        self._reach(self.tell() + count)
        return self._stream.read(count)

    def seek(self, place: int) -> int:
        """Go to a place of the stream."""
        self._reach(place)
        return self._stream.seek(place)

    def tell(self) -> int:
        """The place of the stream."""
        return self._stream.tell()

    def _reach(self, place: int) -> None:
        if self.packed and place > self._reached:
            self.claim(place - self._reached)
            self._reached = place


def _on_disk(about: os.stat_result) -> int:
    """What a file takes on disk; holes of a sparse file count nothing, where the system says so."""
    blocks = getattr(about, "st_blocks", 0) * 512
    return max(BLOCK, min(about.st_size, blocks) if blocks else about.st_size)


def read_bytes(path: Path) -> bytearray:
    """The bytes of a file, decompressed when they begin as gzip does.

    Raises:
        DataError: it cannot be read, expands to too much, or its stream is damaged or cut short.
    """
    data = bytearray()
    with Source(path) as source:
        for piece in source.pieces():
            data += piece
    return data


def sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file, decompressed, as hexadecimal digits.

    Raises:
        DataError: as `read_bytes`.
    """
    digest = hashlib.sha256()
    with Source(path) as source:
        for piece in source.pieces():
            digest.update(piece)
    return digest.hexdigest()


def text_lines(source: Source, longest: int = CHUNK, cost: int = 512) -> Iterator[str]:
    """The lines of a text file in UTF-8, each counted for what is made of it.

    Args:
        source: the file.
        longest: characters of a line.
        cost: bytes of memory that a line takes.

    Raises:
        DataError: a longer line, or more lines than the file may take.
    """
    with io.TextIOWrapper(source.file, encoding="utf-8-sig", newline="") as text:
        while line := text.readline(longest):
            if len(line) == longest:
                raise DataError(f"{source.path}: a line has {longest:,} characters or more")
            source.claim(cost)
            yield line
