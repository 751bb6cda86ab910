"""Files within plain .tar archives, read at their place without extracting or scanning again.

A *location* is the name of such a file with its place: "own.tar:cat/1.png@1536+20480" are the
20,480 bytes from byte 1536 of `own.tar`. It is all that a process needs to read the file.
"""

import os
import re
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

from torchcaps.data.budget import Reader
from torchcaps.errors import DataError

MEMBER_BYTES = 2048  # memory that the description of a member takes
MAX_OPEN = 64  # archives that a thread holds open
LOCATION = re.compile(r"(.*?\.(?:tar(?:\.\w+)?|tgz)):.*@(\d+)\+(\d+)", re.DOTALL | re.IGNORECASE)


def archive_members(reader: Reader, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive in their order; DataError for one that is hostile."""
    # tarfile itself follows a negative size backwards forever, and fills the holes of a sparse
    # file.
    offset = -1
    for member in archive:
        reader.reserve(MEMBER_BYTES)
        if archive.offset <= offset or member.size < 0:
            raise DataError(
                f"{reader.path}: damaged archive, the size of {member.name} is negative"
            )
        if member.issparse():
            raise DataError(
                f"{reader.path}: {member.name} is a sparse file, which is not read from an archive"
            )
        offset = archive.offset
        yield member


def locate(archive: Path, member: tarfile.TarInfo) -> str:
    """The location of a member of a plain archive."""
    return f"{archive}:{member.name}@{member.offset_data}+{member.size}"


def read_member(location: str) -> bytes:
    """The bytes at a location.

    Raises:
        DataError: the archive is gone, or shorter than it was.
    """
    match = LOCATION.fullmatch(location)
    if match is None:
        raise DataError(f"{location}: expected the location of a file in a .tar archive")
    archive, offset, size = match.groups()
    try:
        content = _archives.read(archive, int(offset), int(size))
    except OSError as error:
        raise DataError(f"{archive}: cannot be read ({error.strerror})") from error
    if len(content) < int(size):
        raise DataError(f"{location}: truncated archive, it ends before this file does")
    return content


class _OpenArchives(threading.local):
    """The archives that a thread holds open; those opened first are closed for others."""

    def __init__(self) -> None:
        self.descriptors: dict[str, int] = {}

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on."""
        if path not in self.descriptors:
            if len(self.descriptors) == MAX_OPEN:
                os.close(self.descriptors.pop(next(iter(self.descriptors))))
            self.descriptors[path] = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        descriptor = self.descriptors[path]
        if hasattr(os, "pread"):  # a forked process shares the position of a file with its parent
            return os.pread(descriptor, size, offset)
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


_archives = _OpenArchives()
