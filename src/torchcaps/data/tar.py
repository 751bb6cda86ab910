"""A tar archive of class folders of images, read as a stream: nothing is ever extracted to disk."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from torchcaps.data.budget import Source, door
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import Entry, select, stack_images
from torchcaps.data.images import decode_image, is_grey, is_image_name
from torchcaps.data.pixels import to_channels
from torchcaps.errors import DataError

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
LEVELS = {"train", "test"}
COST = 2048  # bytes that the description of a member takes in memory


@door
def read_tar(
    path: str | Path,
    split: str = "train",
    *,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int | None = None,
) -> ImageSet:
    """Read `<class>/*.png`, or `train/<class>/*` and `test/<class>/*`, out of an archive, plain or compressed.

    Folders that wrap the whole are passed over. Everything else is as `read_folder` has it.

    Args:
        path: the archive; its name without the ending becomes the set's.
        split: "train" or "test".
        img_size: (height, width) or one side of a square to resize to; None demands that all have one size.
        in_chans: 1 or 3; None is 1 when every image of both splits is grey, otherwise 3.

    Returns:
        uint8 images `[n, channels, height, width]`.

    Raises:
        DataError: as `read_folder`; or the archive is damaged or cut short.
    """
    path = Path(path)
    name = path.name.split(".tar")[0].removesuffix(".tgz")
    with _errors_naming(path), Source(path) as source, tarfile.open(fileobj=source, mode="r:") as archive:  # type: ignore[call-overload]
        members = [member for member in _members(source, archive) if member.isfile() and _is_image(member.name)]
        chosen, classes, labels = select(name, _entries(path, [m.name for m in members]), split)
        wanted = {entry.file for entry in chosen}
        decoded: dict[str, Tensor] = {}
        channels = in_chans or 1
        for member in members:  # in the archive's order, so that a compressed one is read through once
            # One colour image decides the channels of both splits: until it is met, every header counts.
            undecided = in_chans is None and channels == 1
            if member.name in wanted or undecided:
                data, label = _contents(archive, member), f"{path}:{member.name}"
                channels = 3 if undecided and not is_grey(data, label) else channels
                if member.name in wanted:
                    decoded[member.name] = decode_image(data, img_size, in_chans, name=label)
    pixels = [to_channels(decoded[entry.file].unsqueeze(0), channels)[0] for entry in chosen]
    return ImageSet(stack_images(name, chosen, pixels), labels, classes, name)


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


def _contents(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    return stream.read() if stream else b""


def _entries(path: Path, members: list[str]) -> list[Entry]:
    parts = [[p for p in member.split("/") if p not in ("", ".")] for member in members]
    while parts and len({p[0] for p in parts}) == 1 and min(map(len, parts)) > 2 and parts[0][0] not in LEVELS:
        parts = [p[1:] for p in parts]
    depths = {len(p) for p in parts}
    if depths == {3} and {p[0] for p in parts} <= LEVELS:
        return [Entry(m, p[1], p[0]) for m, p in zip(members, parts, strict=True)]
    if depths == {2}:
        return [Entry(m, p[0]) for m, p in zip(members, parts, strict=True)]
    raise DataError(f"{path}: expected images as <class>/<image> or as train/ and test/<class>/<image> in the archive")


@contextmanager
def _errors_naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: damaged or truncated archive ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
