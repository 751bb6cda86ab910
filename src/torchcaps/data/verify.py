"""Whether the files of a named data set are the published ones."""

from pathlib import Path
from typing import NamedTuple

from torchcaps.data._registry import DatasetInfo, dataset_reader, origin
from torchcaps.data.budget import reading, sha256
from torchcaps.data.load import SPLITS, not_found, places
from torchcaps.errors import DataError


class FileCheck(NamedTuple):
    """What verification found: the file (or the folder and split that was counted), whether it is as published, why."""

    file: str
    ok: bool
    reason: str


def verify_dataset(name: str, root: str | Path | None = None, cache_dir: str | Path | None = None) -> list[FileCheck]:
    """Compare a named set, or the one that it is made from, with what is published about it, where it is found first.

    One FileCheck per file, compared by SHA-256 of its decompressed bytes; per split, with its images counted, of a set
    without published digests. UnknownNameError: no data set has this name. DataError: the set is nowhere.
    """
    info, looked = origin(name), places(name, root, cache_dir)
    for folder in looked:
        checks = check_folder(info, folder)
        if checks:
            return checks
    raise not_found(info.name, looked)


def check_folder(info: DatasetInfo, folder: Path) -> list[FileCheck]:
    """The checks of `verify_dataset` on one folder; none when nothing of the set is there."""
    if not all(info.sha256.values()):
        checks = [_count(info, folder, split) for split in SPLITS] if folder.is_dir() else []
        return [check for check in checks if check is not None]
    paths = {stored(folder, file): digest for file, digest in info.sha256.items()}
    if not any(path.is_file() for path in paths):
        return []
    wrong = {path: fault(path, digest) for path, digest in paths.items()}
    return [FileCheck(str(path), not reason, reason or "SHA-256 as published") for path, reason in wrong.items()]


def stored(folder: Path, file: str) -> Path:
    """Where `file` is in `folder`: under its name, `.gz`, or `.idx` for `-idx`; under its name when it is nowhere."""
    names = [file, file.replace("-idx", ".idx")]
    found = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in found if path.is_file()), folder / file)


def fault(path: Path, digest: str | None) -> str:
    """What is wrong with a file: "" when it is there and has this SHA-256 (decompressed; None accepts any bytes)."""
    if not path.is_file():
        return "missing"
    try:
        right = digest is None or sha256(path) == digest
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return "" if right else "the bytes are not the published ones (SHA-256 differs)"


def _count(info: DatasetInfo, folder: Path, split: str) -> FileCheck | None:
    expected, where = info.train if split == "train" else info.test, f"{folder} ({split})"
    try:
        with reading(folder):
            found = dataset_reader(info.name)(folder, split)
    except DataError as error:
        return FileCheck(where, False, str(error))
    if found is None:
        return None
    right = len(found) == expected
    more = "" if right else f", expected {expected:,}"
    return FileCheck(where, right, f"{found.name}: {len(found):,} images{more}")
