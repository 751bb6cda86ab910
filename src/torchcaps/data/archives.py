"""Files within tar archives, read at their place without extracting anything.

A *location* is the name of such a file with its place: "own.tar:cat/1.png@1536+20480" are the
20,480 bytes from byte 1536 of `own.tar`. It is all that a process needs to read the file.
"""

import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from torchcaps.data.reading import check_memory, open_file
from torchcaps.errors import DataError

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MEMBER_BYTES = 2048  # memory that the description of a member takes
LOCATION = re.compile(r"(.*?\.(?:tar(?:\.\w+)?|tgz)):.*@(\d+)\+(\d+)", re.DOTALL | re.IGNORECASE)


@contextmanager
def open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar archive, plain or compressed; its members are `archive_members`."""
    with (
        open_file(path, "damaged or truncated archive") as file,
        tarfile.open(fileobj=file, mode="r:") as archive,
    ):
        yield archive


def archive_members(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """The members of an archive at `path` in their order; DataError for a hostile one."""
    # tarfile itself follows a negative size backwards forever, and fills the holes of a sparse
    # file.
    offset = -1
    for number, member in enumerate(archive):
        check_memory(path, MEMBER_BYTES * number)
        end = cast(int, archive.offset)
        if end <= offset or member.size < 0:
            raise DataError(f"{path}: damaged archive, the size of {member.name} is negative")
        if member.issparse():
            raise DataError(
                f"{path}: {member.name} is a sparse file, which is not read from an archive"
            )
        offset = end
        yield member


def locate(archive: Path, member: tarfile.TarInfo) -> str:
    """The location of a member of an archive."""
    return f"{archive}:{member.name}@{member.offset_data}+{member.size}"


def read_member(location: str) -> bytes:
    """The bytes at a location in a plain archive.

    Raises:
        DataError: the archive is gone, or shorter than it was.
    """
    match = LOCATION.fullmatch(location)
    if match is None:
        raise DataError(f"{location}: expected the location of a file in a .tar archive")
    path, offset, size = match.groups()
    with open_file(path) as file:
        file.seek(int(offset))
        content = file.read(int(size))
    if len(content) < int(size):
        raise DataError(f"{location}: truncated archive, it ends before this file does")
    return content
