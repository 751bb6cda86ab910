"""Whether the files of a named data set are the published ones."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torchcaps.data._registry import Passport, dataset_info, dataset_reader
from torchcaps.data.budget import reading, sha256
from torchcaps.data.load import SPLITS, not_found, places
from torchcaps.errors import DataError


class FileCheck(NamedTuple):
    """What verification found.

    Attributes:
        file: path of the file, or the split where the set was read and counted.
        ok: whether it is as published.
        reason: what was compared, or what is wrong.
    """

    file: str
    ok: bool
    reason: str


def verify_dataset(name: str, root: str | Path | None = None, cache_dir: str | Path | None = None) -> list[FileCheck]:
    """Compare a named set with its passport, in the first place where any of it is found.

    Files with a published digest are compared by SHA-256 of their decompressed bytes; a set without such digests
    (CIFAR-10) is read whole, and its images counted.

    Args:
        name: a name of `list_datasets()`.
        root: looked at before the cache and the system folders, as in `load_dataset`.
        cache_dir: the cache folder; None is `default_cache_dir()`.

    Returns:
        One FileCheck per file, or per split.

    Raises:
        UnknownNameError: no data set has this name.
        DataError: the set is nowhere.
    """
    info, looked = dataset_info(name), places(name, root, cache_dir)
    if info.made_from is not None:
        return verify_dataset(info.made_from, root, cache_dir)
    for folder in looked:
        checks = check_folder(info, folder)
        if checks:
            return checks
    raise not_found(name, looked)


def check_folder(info: Passport, folder: Path) -> list[FileCheck]:
    """The checks of `verify_dataset` on one folder; none when nothing of the set is there."""
    return _check_digests(info, folder) if all(info.sha256.values()) else _check_counts(info, folder)


def stored(folder: Path, file: str) -> Path:
    """Where `file` is in `folder`: under its name, `.gz`, or `.idx` for `-idx`; under its name when it is nowhere."""
    names = [file, file.replace("-idx", ".idx")]
    found = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in found if path.is_file()), folder / file)


def fault(path: Path, digest: str | None) -> str:
    """What is wrong with a file: "" when it is there and has this SHA-256 (decompressed; None accepts any bytes)."""
    if not path.is_file():
        return "missing"
    if digest is None:
        return ""
    try:
        right = sha256(path) == digest
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return "" if right else "the bytes are not the published ones (SHA-256 differs)"


def _check_digests(info: Passport, folder: Path) -> list[FileCheck]:
    paths = {stored(folder, file): digest for file, digest in info.sha256.items()}
    if not any(path.is_file() for path in paths):
        return []
    wrong = {path: fault(path, digest) for path, digest in paths.items()}
    return [FileCheck(str(path), not reason, reason or "SHA-256 as published") for path, reason in wrong.items()]


def _check_counts(info: Passport, folder: Path) -> list[FileCheck]:
    checks = [_count(info, folder, split) for split in SPLITS] if folder.is_dir() else []
    return [check for check in checks if check is not None]


def _count(info: Passport, folder: Path, split: str) -> FileCheck | None:
    expected = info.train if split == "train" else info.test
    try:
        with reading(folder):
            found = dataset_reader(info.name)(folder, split)
    except DataError as error:
        return FileCheck(f"{folder} ({split})", False, str(error))
    if found is None:
        return None
    right = len(found) == expected
    reason = f"{found.name}: {len(found):,} images" + ("" if right else f", expected {expected:,}")
    return FileCheck(f"{folder} ({split})", right, reason)
