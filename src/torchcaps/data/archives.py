"""Tar archives, plain or compressed, of which nothing is ever extracted to disk.

A *location* is the name of a file in a plain archive with its place:
"own.tar:cat/1.png@1536+20480" are the 20,480 bytes from byte 1536 of `own.tar`. It is all that a
process needs to read the file.
"""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from torchcaps.data.reading import Unpacked, open_file, read_errors
from torchcaps.errors import DataError

LOCATION = re.compile(r"(.*?\.(?:tar(?:\.\w+)?|tgz)):.*@(\d+)\+(\d+)", re.DOTALL | re.IGNORECASE)


class Member(NamedTuple):
    """A file in an archive.

    Attributes:
        parts: names of its folders, and its own.
        location: where it is.
        file: its contents, until the next member is asked for; None of a link or device.
        is_packed: whether the archive is compressed, so that there is no going back to it.
    """

    parts: tuple[str, ...]
    location: str
    file: IO[bytes] | None
    is_packed: bool


def archive_members(path: Path) -> Iterator[Member]:
    """The visible files in an archive, in their order.

    Raises:
        DataError: it is damaged, cut short, or has a member that would never end.
    """
    with (
        open_file(path, "damaged or truncated archive") as stream,
        tarfile.open(fileobj=stream, mode="r:") as archive,
    ):
        for member in archive:
            # tarfile follows a negative size backwards forever, and fills the holes of a sparse file.
            if member.issparse() or member.size < 0:
                raise DataError(f"{path}: {member.name} is a sparse file, which is not read")
            parts = tuple(part for part in member.name.split("/") if part not in ("", "."))
            if not member.isdir() and not any(part.startswith(".") for part in parts):
                file = archive.extractfile(member) if member.isfile() else None
                location = f"{path}:{member.name}@{member.offset_data}+{member.size}"
                yield Member(parts, location, file, isinstance(stream, Unpacked))
            cast(Any, archive).members.clear()  # tarfile keeps a description of each
        # tarfile ends in silence where a header is cut.
        stream.seek(archive.offset)
        if 0 < len(stream.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise DataError(f"{path}: truncated archive, it ends within a header")


def read_member(location: str) -> bytes:
    """The bytes at a location in a plain archive.

    Raises:
        DataError: the archive is gone, or shorter than it was.
    """
    match = LOCATION.fullmatch(location)
    if match is None:
        raise DataError(f"{location}: expected the location of a file in a .tar archive")
    path, offset, size = match.groups()
    with read_errors(path), open(path, "rb", buffering=0) as file:
        file.seek(int(offset))
        content = file.read(int(size))
    if len(content) < int(size):
        raise DataError(f"{location}: truncated archive, it ends before this file does")
    return content
