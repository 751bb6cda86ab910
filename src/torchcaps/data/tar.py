"""A tar archive of class folders of images, read as a stream: nothing is ever extracted to disk."""

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchcaps.data._registry import register_format
from torchcaps.data.budget import Source, door, reading
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import Entry, read_entries
from torchcaps.data.images import is_image_name
from torchcaps.data.pixels import Size
from torchcaps.errors import DataError

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
LEVELS = {"train", "test"}
COST = 2048  # bytes that the description of a member takes in memory


@door
def read_tar(path: str | Path, split: str = "train", img_size: Size = None, in_chans: int | None = None) -> ImageSet:
    """Read `<class>/*.png`, or `train/<class>/*` and `test/<class>/*`, out of an archive, plain or compressed.

    Folders that wrap the whole are passed over; the archive's name without the ending becomes the set's. Everything
    else is as in `read_folder`. DataError: as there; or the archive is damaged or cut short.
    """
    path = Path(path)
    name = path.name.split(".tar")[0].removesuffix(".tgz")
    with (
        Source(path) as source,
        reading(path, wrong="damaged or truncated archive"),
        tarfile.open(fileobj=source, mode="r:") as archive,
    ):
        members = {m.name: m for m in _members(source, archive) if m.isfile() and _is_image(m.name)}

        def contents(member: str) -> bytes:
            stream = archive.extractfile(members[member])
            return stream.read() if stream else b""

        return read_entries(name, _entries(path, members), split, img_size, in_chans, contents, f"{path}:")


register_format(
    f"a file ending in {', '.join(SUFFIXES)}",
    lambda path: path.name.lower().endswith(SUFFIXES) and not path.is_dir(),
    read_tar,
)


def _members(source: Source, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """All members; tarfile itself follows a negative size backwards for ever, and fills the holes of a sparse file."""
    place = -1
    for member in archive:
        source.claim(COST)
        if archive.offset <= place or member.size < 0:
            raise DataError(f"{source.path}: damaged archive, the size of {member.name} is negative")
        if member.issparse():
            raise DataError(f"{source.path}: {member.name} is a sparse file, which is not read from an archive")
        place = archive.offset
        yield member


def _is_image(member: str) -> bool:
    *folders, name = member.split("/")
    return is_image_name(name) and not any(f.startswith(".") and f != "." for f in folders)


def _entries(path: Path, members: Iterable[str]) -> list[Entry]:
    parts = [[p for p in member.split("/") if p not in ("", ".")] for member in members]
    while parts and len({p[0] for p in parts}) == 1 and min(map(len, parts)) > 2 and parts[0][0] not in LEVELS:
        parts = [p[1:] for p in parts]
    depths = {len(p) for p in parts}
    if depths == {2} or (depths == {3} and {p[0] for p in parts} <= LEVELS):
        return [Entry(m, p[-2], p[0] if len(p) == 3 else None) for m, p in zip(members, parts, strict=True)]
    raise DataError(f"{path}: expected images as <class>/<image> or as train/ and test/<class>/<image> in the archive")
