"""Class folders of images, with or without train/ and test/ above them: on disk, or in an archive.

A folder that holds images is a class, with all images beneath it. A folder that holds only folders
is a level of a label tree. An archive is read as a stream: nothing is ever extracted to disk.
"""

import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadRequest, register_format
from torchcaps.data.budget import open_reader, read_errors
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import (
    SEPARATOR,
    SPLIT_NAMES,
    Entry,
    check_tree,
    group_finder,
    read_entries,
)
from torchcaps.data.images import (
    SIGNATURE_BYTES,
    SUFFIXES,
    has_signature,
    is_image_file,
    is_image_name,
    natural_key,
)
from torchcaps.data.notes import Omissions
from torchcaps.data.tar_members import archive_members, locate, read_member
from torchcaps.errors import DataError

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
OPTIONS = ("group_pattern", "skip_damaged")  # of `ReadOptions`, with a meaning here

Parts = tuple[str, ...]
"""A path below the folder that is read, as the names of its folders and its own."""


class Scan(NamedTuple):
    """What lies below a folder.

    Attributes:
        images: the image files, and how they are opened: a path, or a name in an archive.
        folders: the visible folders.
        omissions: what is left out.
    """

    images: dict[Parts, str]
    folders: list[Parts]
    omissions: Omissions


def read_folder(root: str | Path, request: ReadRequest) -> Dataset:
    """Read `root/<class>/*.png`, or `root/train/<class>/*` and `root/test/<class>/*`.

    The folder names the set. A folder that holds images is a class, with all images beneath it at
    any depth. Folders that hold only folders, all of one depth, make a label tree: the images of
    `root/clothing/tops/shirt/` are of the class "clothing/tops/shirt"; see `label_tree`.

    Classes and files come in natural order ("2" before "10"). Files without an ending are images if
    they begin as such. Hidden files are skipped; what else is left out is in the notes of the set.
    Beside train/ and test/ there may be val/ (or valid/, validation/), the official validation
    split; where val/ is beside train/ alone, it is the test split. Without such folders, 20 % of
    each class are the test split, by `stratified_split` with seed 0. See `decode_image` for how
    pixels are read.

    Args:
        root: the folder.
        request: without a size, all images must have one size. Without channels, they are 1 when
            every image of all splits is gray, otherwise 3.

    Returns:
        The images of the split that is requested.

    Raises:
        DataError: no class folders, one class only, an empty class, class folders at several depths
            or of one name with two parents, an unreadable image, or mixed sizes.
    """
    root = Path(root)
    with read_errors(root):
        scan = scan_folder(root)
        entries = label_files(root, scan, request)
        check_tree(root, entries)
        name = root.resolve().name
        return read_entries(name, entries, request, notes=scan.omissions.notes(name))


def scan_folder(root: Path) -> Scan:
    """Search a folder at every depth.

    Raises:
        DataError: a folder cannot be read, or is a link to one above it.
    """
    scan = Scan({}, [], Omissions())
    _scan(root, (), scan, set())
    return scan


def _scan(folder: Path, parts: Parts, scan: Scan, above: set[tuple[int, int]]) -> None:
    """Add what lies in a folder; `above` has the (device, inode) of the folders above it."""
    with read_errors(folder):
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            raise DataError(f"{folder}: a link to a folder above it, which would never end")
        items = sorted(os.scandir(folder), key=lambda item: natural_key(item.name))
        for item in items:
            inner = (*parts, item.name)
            if item.name.startswith("."):
                continue
            if item.is_dir():
                if not item.name.startswith("__"):
                    scan.folders.append(inner)
                    _scan(folder / item.name, inner, scan, above | {identity})
            elif reason := _omission(item):
                scan.omissions.add(reason, "/".join(inner))
            else:
                scan.images[inner] = item.path


def _omission(item: os.DirEntry[str]) -> str:
    """Why a file is left out; empty for an image."""
    if item.is_file():
        return "" if is_image_file(item.path) else "non-image file"
    if not os.path.exists(item.path):
        return "broken link"
    mode = os.stat(item.path).st_mode
    if stat.S_ISFIFO(mode):
        return "pipe"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def label_files(root: Path, scan: Scan, request: ReadRequest) -> list[Entry]:
    """The images below a folder with their classes, splits and groups.

    Args:
        root: the folder, or an archive.
        scan: what lies below it; unused files are added to its omissions.
        request: has the pattern of groups.

    Raises:
        DataError: there is no class folder, a class is empty, or a split is missing.
    """
    with_images = {image[:-1] for image in scan.images}
    splits = _find_splits(root, scan.images, with_images)
    find_group = group_finder(request.options.group_pattern)
    entries = []
    start = 1 if splits else 0
    for image, file in scan.images.items():
        class_folder = _class_folder(image[:-1], with_images, start)
        if splits and image[0] not in splits:
            scan.omissions.add("unused file", "/".join(image))
        elif not class_folder:
            scan.omissions.add("unlabeled image", "/".join(image))
        else:
            label = SEPARATOR.join(class_folder[start:])
            group = find_group("/".join(image))
            entries.append(Entry(file, label, splits.get(image[0]), group))
    if root.is_dir():
        _check_folders(root, scan, splits, with_images)
    return entries


def _find_splits(root: Path, images: Iterable[Parts], with_images: set[Parts]) -> dict[str, str]:
    """The split of each top folder that is named after one.

    A folder with images of its own may be a class called "train": it is no split unless train/ and
    test/ are both there.
    """
    tops = sorted({image[0] for image in images if len(image) > 2}, key=natural_key)
    present = {SPLIT_NAMES.get(top.lower()) for top in tops}
    if not {"train", "test"} <= present:
        tops = [top for top in tops if (top,) not in with_images]
    return top_splits(root, tops)


def _class_folder(folder: Parts, with_images: set[Parts], start: int) -> Parts:
    """The topmost folder with images on the way to a folder, below the first `start` names."""
    for end in range(start + 1, len(folder) + 1):
        if folder[:end] in with_images:
            return folder[:end]
    return ()


def _check_folders(root: Path, scan: Scan, splits: dict[str, str], with_images: set[Parts]) -> None:
    """Check that there are class folders, and images in each of them."""
    start = 1 if splits else 0
    roots: list[Parts] = [(top,) for top in splits] or [()]
    for parts in roots:
        below = [folder for folder in scan.folders if folder[: len(parts)] == parts != folder]
        if not below:
            path = root.joinpath(*parts)
            raise DataError(
                f"{path}: no class folders in it; expected {path.name}/<class>/<image>{_table_hint(path)}"
            )
        parents = {folder[:-1] for folder in below}
        for folder in below:
            is_leaf = folder not in parents
            if is_leaf and not _class_folder(folder, with_images, start):
                raise DataError(
                    f"{root.joinpath(*folder)}: class {folder[-1]!r} is empty; "
                    f"expected images ({', '.join(sorted(SUFFIXES))})"
                )


def _table_hint(folder: Path) -> str:
    """How to read a folder whose labels are in a table."""
    tables = sorted(folder.glob("*.csv"))
    return f", or give the table {tables[0]}" if tables else ""


def top_splits(root: Path, names: Iterable[str]) -> dict[str, str]:
    """The split of each folder that is named after one; empty where there are no splits.

    Where val/ is beside train/ alone, it is the test split.

    Args:
        root: the folder that holds them, for errors.
        names: of folders that could be splits.

    Raises:
        DataError: only one of train/ and test/ is there.
    """
    splits = {name: SPLIT_NAMES[name.lower()] for name in names if name.lower() in SPLIT_NAMES}
    present = set(splits.values())
    if present == {"train", "val"}:
        return {name: "train" if split == "train" else "test" for name, split in splits.items()}
    if present and not {"train", "test"} <= present:
        folder = next(iter(splits))
        missing = "train" if "train" not in present else "test"
        raise DataError(
            f"{root}: {folder}/ has no {missing}/ beside it; "
            f"add it, or give {root / folder} to split that"
        )
    return splits


def split_folders(root: Path, holds: Callable[[Path], object]) -> list[tuple[Path, str | None]]:
    """The folders with images, each with its split: train/ and test/, or the folder itself.

    Args:
        root: the folder.
        holds: whether a folder holds images; train/ and test/ without are no splits.

    Raises:
        DataError: only one of the two is there.
    """
    with read_errors(root):
        folders = [path for path in root.iterdir() if path.is_dir() and holds(path)]
    names = sorted((folder.name for folder in folders), key=natural_key)
    splits = top_splits(root, names)
    return [(root / name, split) for name, split in splits.items()] or [(root, None)]


def read_tar(path: str | Path, request: ReadRequest) -> Dataset:
    """Read `<class>/*.png`, or `train/<class>/*` and `test/<class>/*`, out of an archive.

    The archive is plain or compressed. Folders that wrap all of it are skipped. Its name without
    the ending becomes the set's. Everything else is as in `read_folder`.

    Args:
        path: of the archive.
        request: without a size, all images must have one size. Without channels, they are 1 when
            every image is gray, otherwise 3.

    Returns:
        The images of the split that is requested.

    Raises:
        DataError: as `read_folder`, or the archive is damaged or cut short.
    """
    path = Path(path)
    name = path.name.split(".tar")[0].removesuffix(".tgz")
    with (
        open_reader(path, request.budget, "damaged or truncated archive") as reader,
        tarfile.open(fileobj=cast(Any, reader), mode="r:") as archive,
    ):
        members = {member.name: member for member in archive_members(reader, archive)}

        def read_next(file: str) -> bytes:
            stream = archive.extractfile(members[file])
            return stream.read() if stream else b""

        scan = _scan_members(archive, members)
        entries = label_files(path, scan, request)
        if not entries:
            raise DataError(
                f"{path}: expected images as <class>/<image> or as train/ and "
                "test/<class>/<image> in the archive"
            )
        check_tree(path, entries)
        notes = scan.omissions.notes(name)
        if request.storage == "memory" or reader.is_packed:
            prefix = f"{path}:"
            return read_entries(name, entries, request, read_next, prefix, notes, can_seek=False)
        located = [entry._replace(file=locate(path, members[entry.file])) for entry in entries]
        return read_entries(name, located, request, read_member, notes=notes)


register_format(
    f"a file ending in {', '.join(ARCHIVES)}",
    lambda path: path.name.lower().endswith(ARCHIVES) and not path.is_dir(),
    read_tar,
    splits=SPLITS_WITH_VAL,
    options=OPTIONS,
)


def _scan_members(archive: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo]) -> Scan:
    """What lies in an archive, without the folders that wrap all of it."""
    scan = Scan({}, [], Omissions())
    for name, member in members.items():
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if member.isdir() or any(part.startswith(".") for part in parts):
            continue
        if not member.isfile():
            scan.omissions.add("link or device", name)
        elif is_image_name(parts[-1]) or _begins_as_image(archive, member):
            scan.images[parts] = name
        else:
            scan.omissions.add("non-image file", name)

    images = scan.images
    while (
        images
        and len({parts[0] for parts in images}) == 1
        and min(map(len, images)) > 2
        and next(iter(images))[0].lower() not in SPLIT_NAMES
    ):
        images = {parts[1:]: name for parts, name in images.items()}
    return scan._replace(images=images)


def _begins_as_image(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    """Whether a member without an ending is an image."""
    if PurePosixPath(member.name).suffix:
        return False
    stream = archive.extractfile(member)
    return stream is not None and has_signature(stream.read(SIGNATURE_BYTES))
