"""The named data sets and the file formats: what is known about each, and the functions that read them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, Protocol

from torchcaps.data.dataset import ImageSet
from torchcaps.data.pixels import Size
from torchcaps.registry import Registry

Files = Mapping[str, str | None]
"""File name to SHA-256 of its decompressed bytes; None where no such digest is published."""
Progress = Callable[[str, int, int | None], None]
"""(what, bytes or images so far, how many in all, or None where that is not known)"""


class Source(Protocol):
    """Where the files of a set come from; `str` of it names it in errors. `sources.py` has the kinds of sources."""

    def fetch(self, missing: Files, folder: Path, progress: Progress | None) -> None:
        """Put the missing files into `folder`, each verified; raise SourceError where that fails."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What is known about a named data set."""

    name: str  # as given to `load_dataset`
    title: str  # one line for lists
    classes: tuple[str, ...]  # their names, in the order of the labels
    image_shape: tuple[int, int, int]  # (channels, height, width)
    train: int  # numbers of images
    test: int
    license: str  # as its authors state it
    source: str  # the page or paper that describes it
    sha256: Files  # its files
    sources: tuple[Source, ...] = ()  # where `fetch_dataset` gets it; they are tried in this order
    system_folders: tuple[Path, ...] = ()  # where operating systems install it
    embedded: Path | None = (
        None  # the package's own folder of a set that comes with it, looked for nowhere else
    )
    made_from: str | None = (
        None  # the set that it is made from when read, which is then looked for and fetched
    )


Reader = Callable[[Path, str], ImageSet | None]
"""(folder, split) -> the set, or None when the folder does not hold it."""
FormatReader = Callable[[Path, str, Size, int | None], ImageSet]
"""(path, split, img_size, in_chans) -> the set; the last two may be ignored, as `load_dataset` sets them afterwards."""

DATASETS: Registry[tuple[DatasetInfo, Reader]] = Registry("data set")
FORMATS: Registry[tuple[Callable[[Path], bool], FormatReader]] = Registry("data format")


def register_dataset(info: DatasetInfo, *, replace: bool = False) -> Callable[[Reader], Reader]:
    """Decorate a `Reader` of a named data set; ValueError for a name that is taken, unless `replace`."""

    def register(reader: Reader) -> Reader:
        DATASETS.add(info.name, (info, reader), replace=replace)
        return reader

    return register


def register_derived(
    base: DatasetInfo, make: Callable[[ImageSet, str], ImageSet], **known: Any
) -> None:
    """Register a set that `make(images of the set base, split)` gives when read; `known` differs from `base`."""

    @register_dataset(with_changes(base, made_from=base.name, **known))
    def read(folder: Path, split: str) -> ImageSet | None:
        source = dataset_reader(base.name)(folder, split)
        return None if source is None else with_changes(make(source, split), name=known["name"])


def register_format(
    what: str, holds: Callable[[Path], bool], read: FormatReader, *, replace: bool = False
) -> None:
    """Let `load_dataset` read a format by path; of two formats that hold a path, the one registered last reads it.

    `what` it reads, such as "an .npz file", is told in the error for other paths; `holds` tells by its name
    whether a path is of this format; `read(path, split, img_size, in_chans)` gives an ImageSet. Raises
    ValueError for a name that is taken, unless `replace`.
    """
    FORMATS.add(what, (holds, read), replace=replace)


def register_directory_format(
    info: DatasetInfo,
    what: str,
    holds: Callable[[Path], bool],
    read: Callable[[Path, str, str, Size], ImageSet],
) -> None:
    """Register a named set whose folders, `what` in errors, can also be read by path, whatever they are called.

    `holds` says whether a folder holds any of its files; `read(folder, split, name, img_size)` gives an ImageSet.
    """
    register_dataset(info)(
        lambda folder, split: read(folder, split, info.name, None) if holds(folder) else None
    )
    register_format(
        what, holds, lambda path, split, size, _: read(path, split, path.resolve().name, size)
    )


def list_datasets() -> list[str]:
    """The names of the data sets, sorted."""
    return DATASETS.names()


def dataset_info(name: str) -> DatasetInfo:
    """What is known about a named data set; UnknownNameError where there is none."""
    return DATASETS[name][0]


def origin(name: str) -> DatasetInfo:
    """`dataset_info` of the set whose files are read for a named one: its own, or those it is made from."""
    info = dataset_info(name)
    return info if info.made_from is None else origin(info.made_from)


def dataset_reader(name: str) -> Reader:
    """The reader of a named data set (see `register_dataset`); UnknownNameError where there is none."""
    return DATASETS[name][1]
