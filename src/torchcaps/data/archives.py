"""Tar archives: of class folders, or shards with labels beside the images as webdataset has them.

Nothing is ever extracted to disk. A *location* is the name of a file in an archive with its place:
"own.tar:cat/1.png@1536+20480" are the 20,480 bytes from byte 1536 of `own.tar`. It is all that a
process needs to read the file.

A sample of a shard is what shares a key, the name up to its first dot: `0001.jpg` with `0001.cls`,
which holds the label as text, or `0001.json`, which holds it as "label", "cls" or "class".

Source: https://github.com/webdataset/webdataset
"""

import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from torchcaps.data._registry import OPTIONS, SPLITS_WITH_VAL, ReadRequest, register_format
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import SPLIT_NAMES, Entry, check_tree, find_group, read_entries
from torchcaps.data.folder import (
    Parts,
    Scan,
    find_splits,
    label_files,
    split_folders,
)
from torchcaps.data.images import (
    ARCHIVES,
    SIGNATURE,
    SIGNATURE_BYTES,
    SUFFIXES,
    is_image_name,
    natural_key,
)
from torchcaps.data.notes import Omissions
from torchcaps.data.reading import Unpacked, check_memory, open_file, read_errors
from torchcaps.errors import DataError

MEMBER_BYTES = 2048  # memory that the description of a member takes
LOCATION = re.compile(r"(.*?\.(?:tar(?:\.\w+)?|tgz)):.*@(\d+)\+(\d+)", re.DOTALL | re.IGNORECASE)
LABEL_SUFFIXES = (".cls", ".json")
LABEL_KEYS = ("label", "cls", "class")  # of a .json file
MAX_LABEL_BYTES = 1 << 16  # of a .cls or .json file


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
    for number, member in enumerate(archive):
        # tarfile follows a negative size backwards forever, and fills the holes of a sparse file.
        check_memory(path, MEMBER_BYTES * number)
        if member.issparse():
            raise DataError(
                f"{path}: {member.name} is a sparse file, which is not read from an archive"
            )
        yield member
    # tarfile ends in silence where a header is cut.
    file = cast(Any, archive.fileobj)
    file.seek(archive.offset)
    if 0 < len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
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


def _scan_archive(path: Path) -> tuple[Scan, dict[str, bytes], dict[str, bytes]]:
    """Read an archive once, in its order.

    Returns:
        Its images by path, and what is left out; the text of its .cls and .json files, by their
        names; and of a compressed archive, where no place can be gone back to, bytes by location.
    """
    scan = Scan({}, [], Omissions())
    labels: dict[str, bytes] = {}
    contents: dict[str, bytes] = {}
    with open_archive(path) as archive:
        for member in archive_members(archive, path):
            parts = tuple(part for part in member.name.split("/") if part not in ("", "."))
            if member.isdir() or any(part.startswith(".") for part in parts):
                continue
            file = archive.extractfile(member) if member.isfile() else None
            if file is None:
                scan.omissions.add("link or device", member.name)
                continue
            if Path(parts[-1]).suffix.lower() in LABEL_SUFFIXES:
                labels["/".join(parts)] = file.read(MAX_LABEL_BYTES + 1)
            start = b"" if Path(parts[-1]).suffix else file.read(SIGNATURE_BYTES)
            if not (is_image_name(parts[-1]) or SIGNATURE.match(start)):
                scan.omissions.add("non-image file", member.name)
                continue
            location = f"{path}:{member.name}@{member.offset_data}+{member.size}"
            scan.images[parts] = location
            if isinstance(archive.fileobj, Unpacked):
                contents[location] = start + file.read()
    return scan, labels, contents


def read_tar(path: str | Path, request: ReadRequest) -> Dataset:
    """Read `<class>/*.png`, or `train/<class>/*` and `test/<class>/*`, out of an archive; or a shard.

    The archive is plain or compressed. Folders that wrap all of it are skipped. Its name without
    the ending becomes the set's. Everything else is as in `read_folder`, and of a shard, whose
    first image has its label beside it, as in `read_shards`.

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
    scan, labels, contents = _scan_archive(path)
    first = _split_name("/".join(next(iter(scan.images), ("",))))[0]
    notes: tuple[str, ...] = ()
    if any(first + suffix in labels for suffix in LABEL_SUFFIXES):
        entries = list(_labeled_images(path, scan, labels, None, request))
    else:
        scan = scan._replace(images=_unwrapped(scan.images))
        entries = label_files(scan, find_splits(path, scan), request)
        if not entries:
            raise DataError(
                f"{path}: expected images as <class>/<image> or as train/ and "
                "test/<class>/<image> in the archive"
            )
        check_tree(path, entries)
        notes = scan.omissions.notes(name)
    open_image = contents.__getitem__ if contents else read_member
    return read_entries(name, entries, request, open_image, notes, can_stay=not contents)


def _unwrapped(images: dict[Parts, str]) -> dict[Parts, str]:
    """The images of an archive without the folders that wrap all of them."""
    while (
        len({parts[0] for parts in images}) == 1
        and min(map(len, images)) > 2
        and next(iter(images))[0].lower() not in SPLIT_NAMES
    ):
        images = {parts[1:]: file for parts, file in images.items()}
    return images


def read_shards(path: str | Path, request: ReadRequest) -> Dataset:
    """Read a folder of .tar shards, or of train/ and test/ with shards.

    Without train/ and test/, 20 % of each class are the test split, as in `read_folder`. Classes
    come in natural order. Members that are neither images nor labels are skipped. The option
    `group_pattern` is searched in the name of a member, as "part/0001.jpg".

    Args:
        path: of the folder, whose name becomes the set's.
        request: without a size, all images must have one size. Without channels, they are 1 when
            every image of both splits is gray, otherwise 3.

    Returns:
        The images of the split that is requested.

    Raises:
        DataError: an image without a label, one class only, a damaged archive, an unreadable image,
            or mixed sizes.
    """
    path = Path(path)
    entries: list[Entry] = []
    for folder, split in split_folders(path, _shards_in):
        for shard in _shards_in(folder):
            scan, labels, _ = _scan_archive(shard)
            entries += _labeled_images(shard, scan, labels, split, request)
    return read_entries(path.resolve().name, entries, request, read_member)


def is_sharded(path: Path) -> bool:
    """Whether a path is a folder of .tar archives, or of train/ and test/ with such."""
    if not path.is_dir():
        return False
    subfolders = [folder for folder in path.iterdir() if folder.is_dir()]
    if _shards_in(path):
        return not subfolders
    return bool(subfolders) and all(map(_shards_in, subfolders))


def _shards_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"), key=lambda shard: natural_key(shard.name))


def _split_name(member: str) -> tuple[str, str]:
    """The key of a member, and its ending: all from the first dot of its name."""
    _, dot, ending = member[member.rfind("/") + 1 :].partition(".")
    ending = dot + ending
    return member.removesuffix(ending), ending.lower()


def _labeled_images(
    shard: Path, scan: Scan, texts: dict[str, bytes], split: str | None, request: ReadRequest
) -> Iterator[Entry]:
    """The images of a shard with the labels beside them."""
    labels = {}
    for name, text in texts.items():
        key, ending = _split_name(name)
        if ending in LABEL_SUFFIXES:
            labels[key] = _parse_label(f"{shard}:{name}", text)
    for parts, location in scan.images.items():
        name = "/".join(parts)
        key, ending = _split_name(name)
        if ending in SUFFIXES:
            if key not in labels:
                raise DataError(f"{shard}:{key}: expected its label in {key}.cls or {key}.json")
            group = find_group(request.options.group_pattern, name)
            yield Entry(location, (labels[key],), split, group)


def _parse_label(name: str, text: bytes) -> str:
    """The label in a .cls or .json member; `name` is what errors call it."""
    if len(text) > MAX_LABEL_BYTES:
        raise DataError(f"{name}: expected at most {MAX_LABEL_BYTES:,} bytes of a label")
    try:
        label = text.decode("utf-8").strip()
        if name.lower().endswith(".json"):
            content = json.loads(label)
            label = next(str(content[key]) for key in LABEL_KEYS if key in content)
    except (ValueError, TypeError, StopIteration) as error:
        raise DataError(
            f"{name}: expected a JSON object with one of {', '.join(LABEL_KEYS)}"
        ) from error
    if not label:
        raise DataError(f"{name}: the label is empty")
    return label


register_format(
    f"a file ending in {', '.join(ARCHIVES)}",
    lambda path: path.name.lower().endswith(ARCHIVES) and not path.is_dir(),
    read_tar,
    splits=SPLITS_WITH_VAL,
    options=OPTIONS,
)
register_format(
    "a folder of .tar shards",
    is_sharded,
    read_shards,
    splits=SPLITS_WITH_VAL,
    options=OPTIONS,
)
