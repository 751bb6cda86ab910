"""Files opened safely: regular ones only, decompressed up to a limit, every error one sentence.

A file may state sizes that it does not hold, expand to a thousand times its own size, or never end.
So what is made of a file is compared with the file's size on disk before it is allocated.
"""

import bz2
import csv
import gzip
import io
import lzma
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from torchcaps.errors import DataError, TorchcapsError, check_regular
from torchcaps.types import StrPath

FLOOR = 256 << 20  # bytes of memory that any file may take
RATIO = 32  # and times its size on disk, where that is more
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DECOMPRESSORS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}


@contextmanager
def read_errors(name: StrPath, problem: str = "cannot be read") -> Iterator[None]:
    """Turn any exception inside into a DataError of one line, "`name`: `problem` (...)".

    The exception is its cause.
    """
    try:
        yield
    except TorchcapsError:
        raise
    except MemoryError as error:
        raise DataError(f"{name}: {problem} (it does not fit into memory)") from error
    except EOFError as error:
        raise DataError(f"{name}: truncated, it ends before its data does") from error
    except OSError as error:
        raise DataError(f"{name}: {problem} ({error.strerror or error})") from error
    except Exception as error:  # parsers raise anything on damaged bytes
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise DataError(f"{name}: {problem} ({kind}{error})") from error


def memory_limit(path: Path) -> int:
    """Bytes of memory that a file may take. Holes of a sparse file do not count."""
    status = path.stat()
    on_disk = min(status.st_size, 512 * getattr(status, "st_blocks", status.st_size))
    return max(FLOOR, RATIO * on_disk)


def check_memory(path: Path, num_bytes: int) -> None:
    """Check the memory that a file asks for.

    Raises:
        DataError: it is far larger than the file is on disk.
    """
    if num_bytes > memory_limit(path):
        raise DataError(
            f"{path}: it asks for {num_bytes / 2**20:,.0f} MiB of memory, more than {RATIO} times "
            "its size on disk; if that is right, save it without compression"
        )


@dataclass(eq=False)
class Unpacked(io.RawIOBase):
    """A file that is decompressed while it is read, no further than `check_memory` allows."""

    path: Path
    stream: Any

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes; all that are left for a negative size."""
        check_memory(self.path, self.tell() + size)  # before a buffer of this size is made
        return super().read(size)

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes, and return their number."""
        check_memory(self.path, self.tell() + len(buffer))
        return self.stream.readinto(buffer)

    def seek(self, position: int, whence: int = 0) -> int:
        check_memory(self.path, position)
        return self.stream.seek(position, whence)

    def tell(self) -> int:
        return self.stream.tell()


@contextmanager
def open_file(path: StrPath, problem: str = "cannot be read") -> Iterator[Any]:
    """Open a regular file of bytes, decompressed if it begins as gzip, bzip2 or xz do.

    Args:
        path: the file.
        problem: what an error inside the block says about the file, as in `read_errors`.
    """
    path = Path(path)
    with read_errors(path, problem):
        check_regular(path)
        with path.open("rb") as file:
            check_memory(path, path.stat().st_size)
            for magic, unpack in DECOMPRESSORS.items():
                if file.peek(8).startswith(magic):
                    yield Unpacked(path, unpack(file))
                    return
            yield file


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, decompressed where it is packed."""
    with open_file(path) as file:
        return file.read()


def to_array(
    path: StrPath, contents: bytes, start: int, shape: Sequence[int], dtype: np.dtype[Any]
) -> np.ndarray:
    """The numbers that follow a header, which states their shape.

    Args:
        path: of the file, for errors.
        contents: of the file.
        start: bytes of the header.
        shape: as it says.
        dtype: of the numbers.

    Raises:
        DataError: the file is shorter or longer than that, or the shape empty.
    """
    expected = start + math.prod(shape) * dtype.itemsize
    if min(shape) < 1 or len(contents) != expected:
        raise DataError(
            f"{path}: truncated or damaged, its header {list(shape)} asks for a file of "
            f"{expected:,} bytes, got {len(contents):,}"
        )
    return np.frombuffer(contents, dtype, offset=start).reshape(shape).copy()


@contextmanager
def open_arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of an `.npz`, each read when it is asked for, or of an `.npy` and its labels."""
    is_npz = path.suffix.lower() != ".npy"
    problem = f"cannot be read as an {'.npz' if is_npz else '.npy'} of plain arrays"
    with open_file(path, problem) as file:
        if is_npz:
            with np.load(file) as arrays:
                members = arrays.zip.infolist()
                # numpy writes no other method, and some grow without a bound.
                if any(member.compress_type not in METHODS for member in members):
                    raise ValueError("compressed by a method that is not read here")
                check_memory(path, sum(member.file_size for member in members))
                yield arrays
            return
        labels = path.with_name(f"{path.stem}_labels.npy")
        if not labels.exists():
            raise DataError(
                f"{path}: expected its labels in {labels.name} beside it, which is not there"
            )
        images = np.load(file)
        with open_file(labels, problem) as labels_file:
            yield {"images": images, "labels": np.load(labels_file)}


@contextmanager
def csv_rows(
    path: Path, delimiter: str = ",", problem: str = "cannot be read as a CSV"
) -> Iterator["csv.DictReader[str]"]:
    """Open a table in UTF-8 with a header. Cells that a short line lacks are empty.

    Args:
        path: the file.
        delimiter: character between two columns.
        problem: what an error inside the block says about the file.
    """
    with open_file(path, problem) as file:
        text = io.TextIOWrapper(file, "utf-8-sig", newline="")
        yield csv.DictReader(text, delimiter=delimiter, restval="")


def plain_or_packed(folder: Path, pattern: str) -> Path | None:
    """The first file in a folder that matches a `glob` pattern, or the pattern and `.gz`."""
    files = [*sorted(folder.glob(pattern)), *sorted(folder.glob(f"{pattern}.gz"))]
    return files[0] if files else None
