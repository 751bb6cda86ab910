"""Shards: plain .tar archives of images with their labels beside them, in webdataset's layout.

A sample is what shares a key, the name up to its first dot: `0001.jpg` with `0001.cls`, which holds
the label as text, or `0001.json`, which holds it as "label", "cls" or "class". The archives are
indexed once, and then read at the places of their images.

Source: https://github.com/webdataset/webdataset
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadRequest, register_format
from torchcaps.data.archives import archive_members, locate, open_archive, read_member
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import Entry, group_finder, read_entries
from torchcaps.data.folder import OPTIONS, split_folders
from torchcaps.data.images import SUFFIXES, natural_key
from torchcaps.errors import DataError

LABEL_KEYS = ("label", "cls", "class")  # of a .json file
MAX_LABEL_BYTES = 1 << 16  # of a .cls or .json file


def read_shards(path: str | Path, request: ReadRequest) -> Dataset:
    """Read one .tar shard, or a folder of them, or of train/ and test/ with shards.

    Without train/ and test/, 20 % of each class are the test split, as in `read_folder`. Classes
    come in natural order. Members that are neither images nor labels are skipped. The option
    `group_pattern` is searched in the name of a member, as "part/0001.jpg".

    Args:
        path: of the folder or the shard, whose name becomes the set's.
        request: without a size, all images must have one size. Without channels, they are 1 when
            every image of both splits is gray, otherwise 3.

    Returns:
        The images of the split that is requested.

    Raises:
        DataError: an image without a label, one class only, a damaged archive, an unreadable image,
            or mixed sizes.
    """
    path = Path(path)
    folders = split_folders(path, _shards_in) if path.is_dir() else [(path, None)]
    entries: list[Entry] = []
    for folder, split in folders:
        for shard in _shards_in(folder) or [folder]:
            entries += _shard_entries(shard, split, request)
    return read_entries(path.resolve().name.removesuffix(".tar"), entries, request, read_member)


def is_sharded(path: Path) -> bool:
    """Whether a path is a shard, a folder of .tar archives, or of train/ and test/ with such."""
    if path.is_dir():
        subfolders = [folder for folder in path.iterdir() if folder.is_dir()]
        if _shards_in(path):
            return not subfolders
        return bool(subfolders) and all(map(_shards_in, subfolders))
    return path.name.endswith(".tar") and path.is_file() and _begins_with_sample(path)


register_format(
    "a folder of .tar shards",
    is_sharded,
    read_shards,
    splits=SPLITS_WITH_VAL,
    options=OPTIONS,
)


def _shards_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"), key=lambda shard: natural_key(shard.name))


def _begins_with_sample(path: Path) -> bool:
    """Whether the first files of an archive are an image and its label."""
    try:
        with tarfile.open(path, "r:") as archive:
            files = (member.name for member in archive if member.isfile())
            first_key, first_ending = _split_name(next(files, ""))
            key, ending = _split_name(next(files, ""))
    except (tarfile.TarError, OSError):
        return False  # another reader names the fault
    endings = {first_ending, ending}
    has_label = not endings.isdisjoint({".cls", ".json"})
    return key == first_key and has_label and not endings.isdisjoint(SUFFIXES)


def _split_name(member: str) -> tuple[str, str]:
    """The key of a member, and its ending: all from the first dot of its name."""
    path = PurePosixPath(member)
    stem, dot, ending = path.name.partition(".")
    return str(path.parent / stem), (dot + ending).lower()


def _shard_entries(shard: Path, split: str | None, request: ReadRequest) -> Iterator[Entry]:
    """The images of an archive with their labels and groups."""
    find_group = group_finder(request.options.group_pattern)
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    with open_archive(shard) as archive:
        for member in archive_members(archive, shard):
            key, ending = _split_name(member.name)
            if member.isfile() and ending in SUFFIXES:
                images[key] = member
            elif member.isfile() and ending in (".cls", ".json"):
                labels[key] = _read_label(f"{shard}:{member.name}", archive, member)
    for key, member in images.items():
        if key not in labels:
            raise DataError(f"{shard}:{key}: expected its label in {key}.cls or {key}.json")
        yield Entry(locate(shard, member), (labels[key],), split, find_group(member.name))


def _read_label(name: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """The label in a .cls or .json member; `name` is what errors call it."""
    stream = archive.extractfile(member)
    if stream is None or member.size > MAX_LABEL_BYTES:
        raise DataError(f"{name}: expected at most {MAX_LABEL_BYTES:,} bytes of a label")
    try:
        label = stream.read().decode("utf-8").strip()
        if member.name.lower().endswith(".json"):
            content = json.loads(label)
            label = next(str(content[key]) for key in LABEL_KEYS if key in content)
    except (ValueError, TypeError, StopIteration) as error:
        raise DataError(
            f"{name}: expected a JSON object with one of {', '.join(LABEL_KEYS)}"
        ) from error
    if not label:
        raise DataError(f"{name}: the label is empty")
    return label
