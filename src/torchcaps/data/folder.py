"""Class folders of images, with or without a level train/ and test/ above them: on disk, or in a tar archive.

An archive is read as a stream: nothing is ever extracted to disk.
"""

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from torchcaps.data._registry import register_format
from torchcaps.data.budget import MemoryBudget, Reader, open_reader, read_errors
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import BETWEEN, Entry, checked, read_entries
from torchcaps.data.images import SUFFIXES, is_image_name, natural_key
from torchcaps.data.pixels import Size
from torchcaps.errors import DataError

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
LEVELS = {"train", "test"}
COST = 2048  # bytes that the description of a member takes in memory


def read_folder(
    root: str | Path,
    split: str = "train",
    *,
    img_size: Size = None,
    in_chans: int | None = None,
    budget: MemoryBudget | None = None,
) -> ImageSet:
    """Read `root/<class>/*.png`, or `root/train/<class>/*` and `root/test/<class>/*`; the folder names the set.

    Folders of class folders, all of one depth, make a label tree: the images of `root/clothing/tops/shirt/` are of the
    class "clothing/tops/shirt"; see `label_tree`.

    Classes and files come in natural order ("2" before "10"). Hidden files, and files that are not images by their
    ending, are skipped. Without a level train/ and test/, 20 % of each class are the test split, by `stratified_split`
    with seed 0. See `decode_image` for how pixels are read.

    `img_size` is (height, width) or one side of a square to resize to; None requires all to have one size. `in_chans`
    is 1 or 3; None is 1 when every image of both splits is gray, otherwise 3.

    DataError: no class folders, one class only, an empty class, class folders at several depths or of one name with two
    parents, an unreadable image, or mixed sizes.
    """
    root = Path(root)
    with read_errors(root):
        entries = list(checked(root, _entries(root)))
        return read_entries(
            root.resolve().name, entries, split, img_size, in_chans, budget or MemoryBudget()
        )


def _entries(root: Path) -> Iterator[Entry]:
    levels = {f.name.lower(): f for f in _folders(root) if f.name.lower() in LEVELS and _folders(f)}
    for split, folder in levels.items():
        if len(levels) == 1:
            other = "test" if split == "train" else "train"
            raise DataError(
                f"{root}: {folder.name}/ has no {other}/ beside it; add it, or give {folder} to split that"
            )
        yield from _class_entries(folder, split)
    if not levels:
        yield from _class_entries(root, None)


def _class_entries(folder: Path, split: str | None, above: str = "") -> Iterator[Entry]:
    classes = _folders(folder)
    if not classes:
        raise DataError(f"{folder}: no class folders in it; expected {folder.name}/<class>/<image>")
    for place in classes:
        files = [f for f in place.iterdir() if is_image_name(f.name) and f.is_file()]
        if not files and _folders(place):
            yield from _class_entries(place, split, f"{above}{place.name}{BETWEEN}")
        elif not files:
            raise DataError(
                f"{place}: class {place.name!r} is empty; expected images ({', '.join(sorted(SUFFIXES))})"
            )
        yield from (Entry(str(f), above + place.name, split) for f in files)


def _folders(folder: Path) -> list[Path]:
    with read_errors(folder):
        folders = [f for f in folder.iterdir() if f.is_dir() and not f.name.startswith((".", "__"))]
    return sorted(folders, key=lambda f: natural_key(f.name))


def read_tar(
    path: str | Path,
    split: str = "train",
    img_size: Size = None,
    in_chans: int | None = None,
    budget: MemoryBudget | None = None,
) -> ImageSet:
    """Read `<class>/*.png`, or `train/<class>/*` and `test/<class>/*`, out of an archive, plain or compressed.

    Folders that wrap the whole are passed over; the archive's name without the ending becomes the set's. Everything
    else is as in `read_folder`. DataError: as there; or the archive is damaged or cut short.
    """
    path = Path(path)
    name = path.name.split(".tar")[0].removesuffix(".tgz")
    budget = budget or MemoryBudget()
    with (
        open_reader(path, budget, "damaged or truncated archive") as reader,
        tarfile.open(fileobj=cast(Any, reader), mode="r:") as archive,
    ):
        members = {m.name: m for m in _members(reader, archive) if m.isfile() and _is_image(m.name)}

        def contents(member: str) -> bytes:
            stream = archive.extractfile(members[member])
            return stream.read() if stream else b""

        return read_entries(
            name,
            _member_entries(path, members),
            split,
            img_size,
            in_chans,
            budget,
            contents=contents,
            where=f"{path}:",
        )


register_format(
    f"a file ending in {', '.join(ARCHIVES)}",
    lambda path: path.name.lower().endswith(ARCHIVES) and not path.is_dir(),
    lambda path, r: read_tar(path, r.split, r.img_size, r.in_chans, r.budget),
)


def _members(reader: Reader, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """All members; tarfile itself follows a negative size backwards for ever, and fills the holes of a sparse file."""
    place = -1
    for member in archive:
        reader.reserve(COST)
        if archive.offset <= place or member.size < 0:
            raise DataError(
                f"{reader.path}: damaged archive, the size of {member.name} is negative"
            )
        if member.issparse():
            raise DataError(
                f"{reader.path}: {member.name} is a sparse file, which is not read from an archive"
            )
        place = archive.offset
        yield member


def _is_image(member: str) -> bool:
    *folders, name = member.split("/")
    return is_image_name(name) and not any(f.startswith(".") and f != "." for f in folders)


def _member_entries(path: Path, members: Iterable[str]) -> list[Entry]:
    parts = [[p for p in member.split("/") if p not in ("", ".")] for member in members]
    while (
        parts
        and len({p[0] for p in parts}) == 1
        and min(map(len, parts)) > 2
        and parts[0][0] not in LEVELS
    ):
        parts = [p[1:] for p in parts]
    depths = {len(p) for p in parts}
    if depths == {2} or (depths == {3} and {p[0] for p in parts} <= LEVELS):
        return [
            Entry(m, p[-2], p[0] if len(p) == 3 else None)
            for m, p in zip(members, parts, strict=True)
        ]
    raise DataError(
        f"{path}: expected images as <class>/<image> or as train/ and test/<class>/<image> in the archive"
    )
