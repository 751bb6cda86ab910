"""Class folders of images, with or without train/ and test/ above them: on disk, or in an archive.

An archive is read as a stream: nothing is ever extracted to disk.
"""

import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from torchcaps.data._registry import ReadRequest, register_format
from torchcaps.data.budget import open_reader, read_errors
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import SEPARATOR, Entry, check_tree, read_entries
from torchcaps.data.images import SUFFIXES, image_files, is_image_name, natural_key
from torchcaps.data.tar_members import archive_members, locate, read_member
from torchcaps.errors import DataError

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
SPLIT_FOLDERS = {"train", "test"}


def read_folder(root: str | Path, request: ReadRequest) -> ImageSet:
    """Read `root/<class>/*.png`, or `root/train/<class>/*` and `root/test/<class>/*`.

    The folder names the set. Folders of class folders, all of one depth, make a label tree: the
    images of `root/clothing/tops/shirt/` are of the class "clothing/tops/shirt"; see `label_tree`.

    Classes and files come in natural order ("2" before "10"). Hidden files, and files that are no
    images by their ending, are skipped. Without train/ and test/, 20 % of each class are the test
    split, by `stratified_split` with seed 0. See `decode_image` for how pixels are read.

    Args:
        root: the folder.
        request: without a size, all images must have one size. Without channels, they are 1 when
            every image of both splits is gray, otherwise 3.

    Returns:
        The images of the split that is requested.

    Raises:
        DataError: no class folders, one class only, an empty class, class folders at several depths
            or of one name with two parents, an unreadable image, or mixed sizes.
    """
    root = Path(root)
    with read_errors(root):
        entries: list[Entry] = []
        for folder, split in split_folders(root, _subfolders):
            entries += _class_entries(folder, split)
        return read_entries(root.resolve().name, check_tree(root, entries), request)


def split_folders(root: Path, holds: Callable[[Path], object]) -> list[tuple[Path, str | None]]:
    """The folders with images, each with its split: train/ and test/, or the folder itself.

    Args:
        root: the folder.
        holds: whether a folder holds images; train/ and test/ without are no splits.

    Raises:
        DataError: only one of the two is there.
    """
    folders: list[tuple[Path, str | None]] = []
    for folder in _subfolders(root):
        split = folder.name.lower()
        if split in SPLIT_FOLDERS and holds(folder):
            folders.append((folder, split))
    if len(folders) == 1:
        folder, present = folders[0]
        missing = "test" if present == "train" else "train"
        raise DataError(
            f"{root}: {folder.name}/ has no {missing}/ beside it; "
            f"add it, or give {folder} to split that"
        )
    return folders or [(root, None)]


def _class_entries(folder: Path, split: str | None, parents: str = "") -> Iterator[Entry]:
    class_folders = _subfolders(folder)
    if not class_folders:
        raise DataError(f"{folder}: no class folders in it; expected {folder.name}/<class>/<image>")
    for class_folder in class_folders:
        label = parents + class_folder.name
        files = image_files(class_folder)
        for file in files:
            yield Entry(str(file), label, split)
        if files:
            continue
        if _subfolders(class_folder):
            yield from _class_entries(class_folder, split, label + SEPARATOR)
        else:
            raise DataError(
                f"{class_folder}: class {class_folder.name!r} is empty; "
                f"expected images ({', '.join(sorted(SUFFIXES))})"
            )


def _subfolders(folder: Path) -> list[Path]:
    folders = []
    with read_errors(folder):
        for path in folder.iterdir():
            if path.is_dir() and not path.name.startswith((".", "__")):
                folders.append(path)
    return sorted(folders, key=lambda path: natural_key(path.name))


def read_tar(path: str | Path, request: ReadRequest) -> ImageSet:
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
        members = {}
        for member in archive_members(reader, archive):
            if member.isfile() and _is_image(member.name):
                members[member.name] = member

        def read_next(file: str) -> bytes:
            stream = archive.extractfile(members[file])
            return stream.read() if stream else b""

        entries = _member_entries(path, members)
        if request.storage == "memory" or reader.is_packed:
            prefix = f"{path}:"
            return read_entries(name, entries, request, read_next, prefix, can_seek=False)
        located = [entry._replace(file=locate(path, members[entry.file])) for entry in entries]
        return read_entries(name, located, request, read_member)


register_format(
    f"a file ending in {', '.join(ARCHIVES)}",
    lambda path: path.name.lower().endswith(ARCHIVES) and not path.is_dir(),
    read_tar,
)


def _is_image(member: str) -> bool:
    *folders, name = member.split("/")
    is_hidden = any(folder.startswith(".") and folder != "." for folder in folders)
    return is_image_name(name) and not is_hidden


def _member_entries(path: Path, members: Iterable[str]) -> list[Entry]:
    parts = [[part for part in member.split("/") if part not in ("", ".")] for member in members]
    # Folders that wrap the whole archive.
    while (
        len({member[0] for member in parts}) == 1
        and min(map(len, parts)) > 2
        and parts[0][0] not in SPLIT_FOLDERS
    ):
        for member in parts:
            del member[0]

    depths = set(map(len, parts))
    has_splits = depths == {3} and all(member[0] in SPLIT_FOLDERS for member in parts)
    if depths != {2} and not has_splits:
        raise DataError(
            f"{path}: expected images as <class>/<image> or as train/ and test/<class>/<image> "
            "in the archive"
        )
    entries = []
    for file, member in zip(members, parts, strict=True):
        split = member[0] if has_splits else None
        entries.append(Entry(file, member[-2], split))
    return entries
