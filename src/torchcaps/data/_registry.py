"""The named data sets and the file formats, and the functions that read them."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace as with_changes
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchcaps.data.dataset import Dataset
from torchcaps.data.pixels import Size
from torchcaps.registry import Registry
from torchcaps.types import Json, Names

SPLITS = ("train", "test")
# Of a reader that also knows the official validation split of what it reads.
SPLITS_WITH_VAL = (*SPLITS, "val")
OPTIONS = ("group_pattern", "skip_damaged")  # of `ReadOptions`, for files in folders

Files = Mapping[str, str | None]
"""File name to SHA-256 of its decompressed bytes; None where no such digest is published."""
HOME = "torchcaps.data.sets"  # its files import all formats too
Storage = Literal["auto", "memory", "disk"]
FetchProgress = Callable[[str, int, int | None], None] | None
"""(what, bytes or images so far, how many in all, or None where that is not known), or None"""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What is known about a named data set.

    Attributes:
        name: the name that `load_dataset` takes.
        title: one line for lists.
        classes: names of the classes, in the order of the labels.
        image_shape: (channels, height, width).
        train: number of training images.
        test: number of test images.
        license: the license as its authors state it.
        source: the page or paper that describes it.
        sha256: its files.
        sources: where `fetch_dataset` gets it; they are tried in this order. `sources.py` has
            their classes.
        system_folders: folders where operating systems install it.
        embedded: the package's own folder of a set that comes with it. Such a set is looked for
            nowhere else.
        made_from: the set that it is made from when it is read. That set is looked for and fetched.
    """

    name: str
    title: str
    classes: Names
    image_shape: tuple[int, int, int]
    train: int
    test: int
    license: str
    source: str
    sha256: Files
    sources: tuple[Any, ...] = ()
    system_folders: tuple[Path, ...] = ()
    embedded: Path | None = None
    made_from: str | None = None


def set_facts(name: str) -> Json:
    """The facts about a set in `sets/published.toml`, as fields of `DatasetInfo`."""
    text = (Path(__file__).parent / "sets" / "published.toml").read_text("utf-8")
    facts: Json = {"name": name}
    for key, fact in tomllib.loads(text)[name].items():
        if isinstance(fact, dict):
            fact = {file: digest or None for file, digest in fact.items()}
        facts[key] = tuple(fact) if isinstance(fact, list) else fact
    return facts


@dataclass(frozen=True)
class ReadOptions:
    """How labeled image files are read.

    Attributes:
        label_column: column of a CSV with the labels; several, separated by commas, give each image
            several labels.
        value_column: column of a CSV with a number of each image; several, separated by commas.
        label_separator: text between the labels of an image in a column, which may be any number.
        group_column: column of a CSV that names the object of an image. Images of one object stay
            on one side of every split.
        group_pattern: regular expression that is searched in the path of a file; its first group
            names the object.
        skip_damaged: leave out files that cannot be read, instead of refusing the set.
    """

    label_column: str | None = None
    value_column: str | None = None
    label_separator: str | None = None
    group_column: str | None = None
    group_pattern: str | None = None
    skip_damaged: bool = False


@dataclass(frozen=True)
class ReadRequest:
    """What `load_dataset` asks of a reader.

    A reader may ignore `img_size` and `in_chans`: `load_dataset` applies them to what it returns.

    Attributes:
        split: "train", "test", or "val" for the official validation split.
        img_size: (height, width), or one side of a square; None keeps the images' size.
        in_chans: 1 or 3; None keeps the images' channels.
        max_bytes: memory that decoded image files may take; None for 256 MiB, or 32 times their
            size on disk where that is more.
        storage: whether image files are decoded at once and kept in "memory", or stay on "disk"
            until they are needed; "auto" chooses by their size. A reader of other data may ignore
            it.
        workers: processes that decode images on disk; None chooses, see `DiskDataset`.
        options: how image files are read.
        classes: names of the classes of a model that is to be measured on images that it has not
            seen: they may be of some of these, and a path without splits is not divided. None for
            images that have classes of their own.
    """

    split: str
    img_size: Size = None
    in_chans: int | None = None
    max_bytes: int | None = None
    storage: Storage = "memory"
    workers: int | None = None
    options: ReadOptions = ReadOptions()
    classes: Names | None = None


DatasetReader = Callable[[Path, ReadRequest], Dataset | None]
"""(folder, request) -> the set, or None when the folder does not hold it"""
FormatReader = Callable[[Path, ReadRequest], Dataset]
"""(path, request) -> the set"""

DATASETS: Registry[DatasetReader] = Registry("data set", HOME, info=None)


class Format(NamedTuple):
    """What reads a kind of path; see `register_format`.

    Attributes:
        holds: whether a path is of this kind.
        read: reads it.
        splits: the splits that it may have.
        options: names of the `ReadOptions` that have a meaning for it.
    """

    holds: Callable[[Path], bool]
    read: FormatReader
    splits: Names
    options: Names


FORMATS: Registry[Format] = Registry("data format", HOME)


def register_dataset(
    info: DatasetInfo, *, replace: bool = False
) -> Callable[[DatasetReader], DatasetReader]:
    """Decorate a `DatasetReader` of a named data set.

    Args:
        info: facts about the set; `info.name` is its name.
        replace: allow a name that is taken.

    Returns:
        The decorator, which returns the reader as it is.

    Raises:
        ValueError: the name is taken, and `replace` is not set.
    """

    return DATASETS.register(info.name, replace=replace, info=info)


def register_derived(
    base: DatasetInfo, make: Callable[[Dataset, str], Dataset], **known: Any
) -> None:
    """Register a set that is made of another one when it is read.

    Args:
        base: the other set.
        make: `make(images of base, split)` returns the set.
        known: what differs from `base`: fields of `DatasetInfo`, the name among them.
    """

    @register_dataset(with_changes(base, made_from=base.name, **known))
    def read(folder: Path, request: ReadRequest) -> Dataset | None:
        source = dataset_reader(base.name)(folder, request)
        if source is None:
            return None
        return with_changes(make(source, request.split), name=known["name"])


def register_format(
    name: str,
    holds: Callable[[Path], bool],
    read: FormatReader,
    *,
    splits: Names = SPLITS,
    options: Names = (),
    replace: bool = False,
) -> None:
    """Let `load_dataset` read a format by path.

    A format holds images, or anything else that a `Dataset` holds.

    Args:
        name: what it reads, such as "an .npz file", for the error about other paths.
        holds: whether a path is of this format, told by its name. Of two formats that hold a path,
            the one registered last reads it.
        read: `read(path, request)` returns the set.
        splits: the splits that may be requested; "val" only where `read` knows it.
        options: names of the `ReadOptions` that `read` obeys.
        replace: whether it may take the place of one with this name.

    Raises:
        ValueError: the name is taken.
    """
    FORMATS.add(name, Format(holds, read, splits, options), replace=replace)


def register_directory_format(
    info: DatasetInfo,
    name: str,
    holds: Callable[[Path], bool],
    read: Callable[[Path, ReadRequest, str], Dataset],
) -> None:
    """Register a named set whose folders can also be read by path, whatever they are called.

    Args:
        info: what is known about the set.
        name: such a folder in words, for errors.
        holds: whether a folder holds any of its files.
        read: `read(folder, request, name of the set)` returns the set.
    """
    register_dataset(info)(
        lambda folder, request: read(folder, request, info.name) if holds(folder) else None
    )
    register_format(name, holds, lambda path, request: read(path, request, path.resolve().name))


def list_datasets() -> list[str]:
    """The names of the data sets, sorted."""
    return DATASETS.names()


def dataset_info(name: str) -> DatasetInfo:
    """Facts about a named data set: source, license, sizes and protocol.

    Args:
        name: of the set; see `list_datasets()`.

    Returns:
        Its `DatasetInfo`.

    Raises:
        UnknownNameError: no data set has this name.
    """
    return DATASETS.fact(name, "info")


def base_info(name: str) -> DatasetInfo:
    """`dataset_info` of the set whose files are read for a named one: itself, or its base."""
    info = dataset_info(name)
    return base_info(info.made_from) if info.made_from else info


def dataset_reader(name: str) -> DatasetReader:
    """The reader of a named data set; UnknownNameError where there is none."""
    return DATASETS[name]
