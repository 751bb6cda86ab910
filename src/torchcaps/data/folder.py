"""Class folders of images, with or without train/ and test/ above them.

A folder that holds images is a class, with all images beneath it. A folder that holds only folders
is a level of a label tree.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from torchcaps.data._registry import ReadRequest
from torchcaps.data.classes import SEPARATOR
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import SPLIT_NAMES, Entry, check_tree, find_group, read_entries
from torchcaps.data.images import SUFFIXES, is_image_file, natural_key
from torchcaps.data.notes import Omissions
from torchcaps.data.reading import read_errors
from torchcaps.errors import DataError

Parts = tuple[str, ...]
"""A path below the folder that is read, as the names of its folders and its own."""


class Scan(NamedTuple):
    """What lies below a folder.

    Attributes:
        images: the image files, and how they are opened: a path, or a location in an archive.
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
        scan = Scan({}, [], Omissions())
        _scan_folder(root, (), scan, set())
        splits = find_splits(root, scan)
        entries = label_files(scan, splits, request)
        _check_folders(root, scan, splits)
        check_tree(root, entries)
        name = root.resolve().name
        return read_entries(name, entries, request, notes=scan.omissions.notes(name))


def _scan_folder(folder: Path, parts: Parts, scan: Scan, above: set[tuple[int, int]]) -> None:
    """Add what lies in a folder; `above` has the (device, inode) of the folders above it."""
    with read_errors(folder):
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            raise DataError(f"{folder}: a link to a folder above it, which would never end")
        for item in sorted(os.scandir(folder), key=lambda item: natural_key(item.name)):
            inner = (*parts, item.name)
            if item.name.startswith("."):
                continue
            if item.is_dir():
                if not item.name.startswith("__"):
                    scan.folders.append(inner)
                    _scan_folder(folder / item.name, inner, scan, above | {identity})
            elif item.is_file() and is_image_file(item.path):
                scan.images[inner] = item.path
            else:
                reason = "non-image file" if item.is_file() else "special file"
                is_there = os.path.exists(item.path)
                scan.omissions.add(reason if is_there else "broken link", SEPARATOR.join(inner))


def find_splits(root: Path, scan: Scan) -> dict[str, str]:
    """The split of each top folder that is named after one.

    A folder with images of its own may be a class called "train": it is no split unless train/ and
    test/ are both there.
    """
    tops = sorted({image[0] for image in scan.images if len(image) > 2}, key=natural_key)
    if not {"train", "test"} <= {SPLIT_NAMES.get(top.lower()) for top in tops}:
        classes = {image[0] for image in scan.images if len(image) == 2}
        tops = [top for top in tops if top not in classes]
    return top_splits(root, tops)


def label_files(scan: Scan, splits: dict[str, str], request: ReadRequest) -> list[Entry]:
    """The images of a scan with their classes, splits and groups; others join its omissions."""
    with_images = {image[:-1] for image in scan.images}
    start = 1 if splits else 0
    entries = []
    for image, file in scan.images.items():
        path = SEPARATOR.join(image)
        class_folder = _class_folder(image[:-1], with_images, start)
        if splits and image[0] not in splits:
            scan.omissions.add("unused file", path)
        elif not class_folder:
            scan.omissions.add("unlabeled image", path)
        else:
            label = SEPARATOR.join(class_folder[start:])
            group = find_group(request.options.group_pattern, path)
            entries.append(Entry(file, (label,), splits.get(image[0]), group))
    return entries


def _class_folder(folder: Parts, with_images: set[Parts], start: int) -> Parts:
    """The topmost folder with images on the way to a folder, below the first `start` names."""
    paths = (folder[:end] for end in range(start + 1, len(folder) + 1))
    return next((path for path in paths if path in with_images), ())


def _check_folders(root: Path, scan: Scan, splits: dict[str, str]) -> None:
    """Check that there are class folders, and images in each of them."""
    with_images = {image[:-1] for image in scan.images}
    parents = {folder[:-1] for folder in scan.folders}
    roots: list[Parts] = [(top,) for top in splits] or [()]
    for parts in roots:
        below = [folder for folder in scan.folders if folder[: len(parts)] == parts != folder]
        if not below:
            path = root.joinpath(*parts)
            raise DataError(
                f"{path}: no class folders in it; expected {path.name}/<class>/<image>, "
                "or the path of a .csv"
            )
        for folder in below:
            if folder not in parents and not _class_folder(folder, with_images, len(parts)):
                raise DataError(
                    f"{root.joinpath(*folder)}: class {folder[-1]!r} is empty; "
                    f"expected images ({', '.join(sorted(SUFFIXES))})"
                )


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
        names = [path.name for path in root.iterdir() if path.is_dir() and holds(path)]
    splits = top_splits(root, sorted(names, key=natural_key))
    return [(root / name, split) for name, split in splits.items()] or [(root, None)]
