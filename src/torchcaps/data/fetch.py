"""Bringing a named data set into the cache."""

from pathlib import Path

from torchcaps.data._registry import DatasetInfo, Files, Progress, origin
from torchcaps.data.load import cache_folder
from torchcaps.data.sources import SourceError, writing
from torchcaps.data.verify import check_folder, fault, stored
from torchcaps.errors import DataError


def fetch_dataset(name: str, cache_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Bring a named data set into the cache, verified; what is already there and right is not fetched again.

    Each source is tried in turn until every file is there. The next call resumes a transfer that broke off. `cache_dir`
    None is `default_cache_dir()`; `progress(file, bytes so far, bytes in all or None)` is called on the way.

    Returns:
        The set's own folder in the cache, or that of the one that it is made from; the package's for a set in it.

    Raises:
        UnknownNameError: no data set has this name.
        DataError: a file cannot be written, the set has no source, or every source failed, with the reason of each.
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
        return {file: digest for file, digest in info.sha256.items() if fault(stored(folder, file), digest)}
    checks = check_folder(info, folder)
    return {} if checks and all(check.ok for check in checks) else info.sha256
