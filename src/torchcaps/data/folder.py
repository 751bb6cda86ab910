"""Class folders of images, in a folder or a tar archive; and shards with labels beside the images.

A folder that holds images is a class, with all images beneath it. A folder that holds only folders
is a level of a label tree. A sample of a shard, as webdataset has it, is what shares a key, the name
up to its first dot: `0001.jpg` with `0001.cls`, which holds the label as text, or `0001.json`, which
holds it as "label", "cls" or "class".

Nothing of an archive is ever extracted to disk. A *location* is the name of a file in a plain
archive with its place: "own.tar:cat/1.png@1536+20480" are the 20,480 bytes from byte 1536 of
`own.tar`. It is all that a process needs to read the file.

Source: https://github.com/webdataset/webdataset
"""

import json
import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from torchcaps.data._registry import OPTIONS, SPLITS_WITH_VAL, Format, ReadRequest
from torchcaps.data.classes import SEPARATOR
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import SPLIT_NAMES, Entry, find_group, read_entries
from torchcaps.data.images import (
    ARCHIVES,
    SIGNATURE,
    SIGNATURE_BYTES,
    SUFFIXES,
    OpenImage,
    contents_note,
    is_image_file,
    natural_key,
)
from torchcaps.data.reading import Unpacked, open_file, read_errors
from torchcaps.errors import DataError, counted
from torchcaps.types import Names, StrPath
from torchcaps.words import join_names

LOCATION = re.compile(r"(.*?\.(?:tar(?:\.\w+)?|tgz)):.*@(\d+)\+(\d+)", re.DOTALL | re.IGNORECASE)
LABEL_SUFFIXES = (".cls", ".json")
LABEL_KEYS = ("label", "cls", "class")  # of a .json file
MAX_LABEL_BYTES = 1 << 16  # of a .cls or .json file
NAMED_FILES = 3  # that a note names of each reason


class Scan:
    """What lies in a folder or an archive.

    Attributes:
        path: of the folder or archive.
        images: the image files, by the names of their folders and their own, and how they are
            opened: a path, or a location in an archive.
        labels: endings and texts of the .cls and .json files in an archive, by key.
        contents: the images of a compressed archive, by location.
        omissions: what is left out, by the reason in one or two words ("broken link").
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images: dict[Names, str] = {}
        self.labels: dict[str, tuple[str, bytes]] = {}
        self.contents: dict[str, bytes] = {}
        self.omissions: dict[str, list[str]] = defaultdict(list)
        if path.is_dir():
            self._add_folder(path, (), set())
        else:
            for member in archive_members(path):
                name = SEPARATOR.join(member.parts)
                key, ending = _split_name(name)
                suffix = Path(name).suffix.lower()
                if not member.file:
                    self.omissions["link or device"].append(name)
                    continue
                if ending in LABEL_SUFFIXES:
                    self.labels[key] = ending, member.file.read(MAX_LABEL_BYTES + 1)
                start = b"" if suffix else member.file.read(SIGNATURE_BYTES)
                if suffix not in SUFFIXES and not SIGNATURE.match(start):
                    self.omissions["non-image file"].append(name)
                    continue
                self.images[member.parts] = member.location
                if member.is_packed:
                    self.contents[member.location] = start + member.file.read()

    def _add_folder(self, folder: Path, parts: Names, above: set[Path]) -> None:
        """Add what lies in a folder; `above` has the folders above it without links."""
        with read_errors(folder):
            real_folder = folder.resolve()
            if real_folder in above:
                raise DataError(f"{folder}: a link to a folder above it, which would never end")
            items = sorted(os.scandir(folder), key=lambda item: natural_key(item.name))
            if not items:
                self.omissions["empty folder"].append(SEPARATOR.join(parts))
            for item in items:
                inner = (*parts, item.name)
                if item.name.startswith("."):
                    continue
                if item.is_dir():
                    if not item.name.startswith("__"):
                        self._add_folder(folder / item.name, inner, above | {real_folder})
                elif item.is_file() and is_image_file(item.path):
                    self.images[inner] = item.path
                else:
                    reason = "non-image file" if item.is_file() else "special file"
                    if not os.path.exists(item.path):
                        reason = "broken link"
                    self.omissions[reason].append(SEPARATOR.join(inner))


def read_folder(path: StrPath, request: ReadRequest) -> Dataset:
    """Read `<class>/*.png`, or `train/<class>/*` and `test/<class>/*`, in a folder or tar archive.

    The folder or archive names the set. A folder that holds images is a class, with all images
    beneath it at any depth. Folders that hold only folders, all of one depth, make a label tree:
    the images of `root/clothing/tops/shirt/` are of the class "clothing/tops/shirt"; see
    `label_tree`. Folders that wrap all of the images are skipped.

    Classes and files come in natural order ("2" before "10"). Files without an ending are images if
    they begin as such. Hidden files are skipped; what else is left out is in the notes of the set.
    Beside train/ and test/ there may be val/ (or valid/, validation/), the official validation
    split; where val/ is beside train/ alone, it is the test split. Without such folders, 20 % of
    each class are the test split, by `stratified_split` with seed 0. See `decode_image` for how
    pixels are read.

    An archive whose first image has its label beside it is a shard in webdataset's layout. A folder
    of `.tar` files, or of train/ and test/ with such, is read as all of them.

    Args:
        path: of the folder or archive.
        request: without a size, all images must have one size. Without channels, they are 1 when
            every image of all splits is gray, otherwise 3.

    Returns:
        The images of the split that is requested.

    Raises:
        DataError: no class folders, one class only, class folders at several depths, an image of a
            shard without a label, a damaged archive, an unreadable image, or mixed sizes.
    """
    path = Path(path)
    is_folder = path.is_dir()
    name = path.resolve().name if is_folder else path.name.split(".tar")[0].removesuffix(".tgz")
    folders = split_folders(path, _shards_in) if is_folder else []
    places = [(shard, split) for folder, split in folders for shard in _shards_in(folder)]
    entries: list[Entry] = []
    notes: list[str] = []
    contents: dict[str, bytes] = {}
    for place, split in places or [(path, None)]:
        scan = Scan(place)
        first = _split_name(SEPARATOR.join(next(iter(scan.images), ("",))))[0]
        if first in scan.labels:
            entries += _label_samples(scan, split, request)
        else:
            entries += _label_files(scan, request)
            omissions = [
                f"{counted(len(files), reason)} ({join_names(files, NAMED_FILES)})"
                for reason, files in scan.omissions.items()
            ]
            if omissions:
                notes.append(f"{name}: left out {', '.join(omissions)}")
        contents |= scan.contents
    open_image: OpenImage = str
    if places or not is_folder:
        open_image = contents.__getitem__ if contents else read_member
    return read_entries(name, entries, request, open_image, notes, can_stay=not contents)


def _shards_in(folder: Path) -> list[Path]:
    """The .tar archives in a folder that has no folders."""
    has_folders = any(map(Path.is_dir, folder.iterdir()))
    return [] if has_folders else sorted(folder.glob("*.tar"), key=natural_key)


def _label_files(scan: Scan, request: ReadRequest) -> list[Entry]:
    """The images of class folders with their classes, splits and groups; others are omitted."""
    images = scan.images
    # Folders that wrap all images are skipped.
    while len({image[0] for image in images}) == 1 and min(map(len, images)) > 2:
        images = {image[1:]: file for image, file in images.items()}
    splits = _name_splits({image[0] for image in images if len(image) > 2})
    start = 1 if splits else 0
    with_images = {image[:-1] for image in images}
    entries = []
    for image, file in images.items():
        path = SEPARATOR.join(image)
        # The topmost folder with images on the way to the file is its class.
        folders = (image[:end] for end in range(start + 1, len(image)))
        class_folder = next((folder for folder in folders if folder in with_images), ())
        if splits and image[0] not in splits:
            scan.omissions["unused file"].append(path)
        elif not class_folder:
            scan.omissions["unlabeled image"].append(path)
        else:
            label = SEPARATOR.join(class_folder[start:])
            group = find_group(request.options.group_pattern, path)
            entries.append(Entry(file, (label,), splits.get(image[0]), group))
    if not entries:
        raise DataError(
            f"{scan.path}: no class folders with images ({', '.join(sorted(SUFFIXES))}) in it"
            f"{contents_note(scan.path)}; expected <class>/<image>, or train/ and test/ with such, "
            "or the path of a .csv"
        )
    first = entries[0]
    for entry in entries:
        if entry.labels[0].count(SEPARATOR) != first.labels[0].count(SEPARATOR):
            raise DataError(
                f"{scan.path}: expected every image at one depth, got {first.file} in "
                f"{first.labels[0]!r} and {entry.file} in {entry.labels[0]!r}"
            )
    return entries


def _name_splits(names: Iterable[str]) -> dict[str, str]:
    """The split of each folder that is named after one; empty unless there are two splits or more.

    Where val/ is beside train/ alone, it is the test split.
    """
    splits = {
        name: SPLIT_NAMES[name.lower()]
        for name in sorted(names, key=natural_key)
        if name.lower() in SPLIT_NAMES
    }
    present = set(splits.values())
    if present == {"train", "val"}:
        return {name: "train" if split == "train" else "test" for name, split in splits.items()}
    return splits if {"train", "test"} <= present else {}


def split_folders(root: Path, holds: Callable[[Path], object]) -> list[tuple[Path, str | None]]:
    """The folders with images, each with its split: train/ and test/, or the folder itself.

    Args:
        root: the folder.
        holds: whether a folder holds images; train/ and test/ without are no splits.
    """
    with read_errors(root):
        splits = _name_splits(path.name for path in root.iterdir() if path.is_dir() and holds(path))
    return [(root / name, split) for name, split in splits.items()] or [(root, None)]


def _split_name(member: str) -> tuple[str, str]:
    """The key of a member, and its ending: all from the first dot of its name."""
    ending = "".join(Path(member).suffixes)
    return member.removesuffix(ending), ending.lower()


def _label_samples(scan: Scan, split: str | None, request: ReadRequest) -> list[Entry]:
    """The images of a shard with the labels beside them."""
    entries = []
    for parts, location in scan.images.items():
        name = SEPARATOR.join(parts)
        key, ending = _split_name(name)
        if ending in SUFFIXES:
            if key not in scan.labels:
                raise DataError(f"{scan.path}:{key}: expected its label in {key}.cls or {key}.json")
            ending, text = scan.labels[key]
            try:
                label = text.decode().strip()
                if ending == ".json":
                    content = json.loads(label)
                    label = next(str(content[key]) for key in LABEL_KEYS if key in content)
            except (ValueError, TypeError, StopIteration):
                label = ""
            if not label or len(text) > MAX_LABEL_BYTES:
                raise DataError(
                    f"{scan.path}:{key}{ending}: expected a label, or a JSON object with one of "
                    f"{', '.join(LABEL_KEYS)}, of at most {MAX_LABEL_BYTES:,} bytes"
                )
            group = find_group(request.options.group_pattern, name)
            entries.append(Entry(location, (label,), split, group))
    return entries


# Not registered: every format goes before it, in whatever order modules are imported.
FOLDERS = Format(
    lambda path: path.is_dir() or path.name.lower().endswith(ARCHIVES),
    read_folder,
    SPLITS_WITH_VAL,
    OPTIONS,
)


class Member(NamedTuple):
    """A file in an archive.

    Attributes:
        parts: names of its folders, and its own.
        location: where it is.
        file: its contents, until the next member is asked for; None of a link or device.
        is_packed: whether the archive is compressed, so that there is no going back to it.
    """

    parts: Names
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
    if not match:
        raise DataError(f"{location}: expected the location of a file in a .tar archive")
    path, offset, size = match.groups()
    with read_errors(path), open(path, "rb", buffering=0) as file:
        file.seek(int(offset))
        content = file.read(int(size))
    if len(content) < int(size):
        raise DataError(f"{location}: truncated archive, it ends before this file does")
    return content
