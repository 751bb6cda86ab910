"""Bringing a named data set into the cache, and whether its files are the published ones."""

from pathlib import Path
from typing import NamedTuple

from torchcaps.data._registry import DatasetInfo, Files, Progress, dataset_reader, origin
from torchcaps.data.budget import fault, reading
from torchcaps.data.load import SPLITS, cache_folder, not_found, places
from torchcaps.data.sources import SourceError, writing
from torchcaps.errors import DataError


class FileCheck(NamedTuple):
    """What verification found: the file (or the folder and split that was counted), whether it is as published, why."""

    file: str
    ok: bool
    reason: str


def fetch_dataset(name: str, cache_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Bring a named data set into the cache, verified; what is already there and right is not fetched again.

    Each source is tried in turn until every file is there. The next call resumes a transfer that broke off. `cache_dir`
    None is `default_cache_dir()`; `progress(file, bytes so far, bytes in all or None)` is called on the way.

    The folder is the set's own in the cache, or of the one that it is made from; the package's for a set in it.

    UnknownNameError: no data set has this name. DataError: a file cannot be written, the set has no source, or every
    source failed, with the reason of each.
    """
    info = origin(name)
    if info.embedded is not None:
        return info.embedded
    folder = cache_folder(cache_dir) / info.name
    if not info.sources and _missing(info, folder):
        raise DataError(f"{info.name}: cannot be fetched; get it from {info.source} and put it into {folder}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for source in info.sources:
        missing = _missing(info, folder)
        try:
            if missing:
                source.fetch(missing, folder, progress)
        except SourceError as error:
            failures.append(f"{source}: {error}")
    missing = _missing(info, folder)
    if missing:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise DataError(f"{info.name}: could not fetch {', '.join(missing)} into {folder} ({'; '.join(failures)})")
    for part in folder.glob("*.part"):
        part.unlink()
    return folder


def _missing(info: DatasetInfo, folder: Path) -> Files:
    if all(info.sha256.values()):
        return {file: digest for file, digest in info.sha256.items() if fault(_stored(folder, file), digest)}
    checks = _checks(info, folder)
    return {} if checks and all(check.ok for check in checks) else info.sha256


def verify_dataset(name: str, root: str | Path | None = None, cache_dir: str | Path | None = None) -> list[FileCheck]:
    """Compare a named set, or the one that it is made from, with what is published about it, where it is found first.

    One FileCheck per file, compared by SHA-256 of its decompressed bytes; per split, with its images counted, of a set
    without published digests. UnknownNameError: no data set has this name. DataError: the set is nowhere.
    """
    info, looked = origin(name), places(name, root, cache_dir)
    for folder in looked:
        checks = _checks(info, folder)
        if checks:
            return checks
    raise not_found(info.name, looked)


def _checks(info: DatasetInfo, folder: Path) -> list[FileCheck]:
    if not all(info.sha256.values()):
        checks = [_count(info, folder, split) for split in SPLITS] if folder.is_dir() else []
        return [check for check in checks if check is not None]
    paths = {_stored(folder, file): digest for file, digest in info.sha256.items()}
    if not any(path.is_file() for path in paths):
        return []
    wrong = {path: fault(path, digest) for path, digest in paths.items()}
    return [FileCheck(str(path), not reason, reason or "SHA-256 as published") for path, reason in wrong.items()]


def _stored(folder: Path, file: str) -> Path:
    """Where `file` is in `folder`: under its name, `.gz`, or `.idx` for `-idx`; under its name when it is nowhere."""
    names = [file, file.replace("-idx", ".idx")]
    found = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in found if path.is_file()), folder / file)


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
