"""`load_dataset`: every data set, by name or by path."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchcaps.data._registry import (
    DATASETS,
    FORMATS,
    OPTIONS,
    SPLITS,
    SPLITS_WITH_VAL,
    ReadOptions,
    ReadRequest,
    Storage,
    base_info,
    dataset_reader,
    list_datasets,
)
from torchcaps.data.dataset import Dataset
from torchcaps.data.files import DiskDataset
from torchcaps.data.folder import FOLDERS
from torchcaps.data.pixels import Size
from torchcaps.data.reading import read_errors
from torchcaps.errors import (
    ArgumentError,
    DataError,
    DatasetNotFoundError,
    MissingSplitError,
    check_known,
    check_positive,
)
from torchcaps.types import Names, StrPath

IMAGE_FILES = "image files in a folder, an archive or a .csv"


def load_dataset(
    name_or_path: StrPath,
    split: str = "train",
    root: StrPath | None = None,
    *,
    img_size: Size = None,
    in_chans: int | None = None,
    cache_dir: StrPath | None = None,
    max_bytes: int | None = None,
    storage: Storage = "memory",
    workers: int | None = None,
    classes: Names | None = None,
    **options: Any,
) -> Dataset:
    """Load one split of a data set. Never downloads.

    Args:
        name_or_path: a name of `list_datasets()`, or the path of a folder of class folders or of
            anything that a format reads (see `register_format`). A name wins over a path of the
            same spelling; write `./mnist` for the path.
        split: "train", "test", or "val" for the official validation split of what has one. Of a
            path without splits 20 % are the test split (`stratified_split` with seed 0).
        root: where a named set is looked for first, in the folder itself or in one of the set's
            name below it.
        img_size: (height, width), or one side of a square, to resize to; None keeps the images'
            size.
        in_chans: 1 or 3; None keeps the images' own, and for image files means 1 when all of them
            are gray.
        cache_dir: the cache folder; None is `default_cache_dir()`.
        max_bytes: memory that decoded image files may take, at least 1; None is 256 MiB, or 32
            times their size on disk where that is more.
        storage: "memory" decodes all images at once. "disk" leaves image files where they are: the
            set is an `DiskDataset`, which decodes them when they are needed. "auto" does so where
            they would take more than 1 GiB, a quarter of the machine's memory, or `max_bytes`.
        workers: processes that decode images on disk; 0 for none, None chooses.
        classes: names of the classes of a model that has seen none of these images. Image files may
            then be of some of them, and a path without splits is not divided. None for the classes
            of the set.
        options: how image files are read, by the names of `ReadOptions`: `label_column`,
            `value_column`, `label_separator`, `group_column`, `group_pattern`, `skip_damaged`.

    Returns:
        The images of the split: a `Dataset`, or a `DiskDataset` of image files.

    Raises:
        DataError: absent (with every place that was searched), damaged, unusable, or image
            files larger than `max_bytes`.
        MissingSplitError: there is no such split.
        ArgumentError: an option that has no meaning for this set.
        UnknownNameError: neither a known name nor a path.

    Example:
        >>> images = load_dataset("digits", "test")
        >>> len(images), images.img_size
        (1000, (28, 28))
    """
    if split not in SPLITS_WITH_VAL:
        raise DataError(f"split: expected 'train', 'test' or 'val', got {split!r}")
    for option in options:
        check_known("option", option, vars(ReadOptions()))
    text = str(name_or_path)
    if max_bytes is not None:
        check_positive(max_bytes=max_bytes)
    request = ReadRequest(
        split, img_size, in_chans, max_bytes, storage, workers, ReadOptions(**options), classes
    )
    with read_errors(text):
        if text in list_datasets():
            _check_request(f"the data set {text!r}", request, SPLITS, ())
            folders = places(text, root, cache_dir)
            sets = (
                dataset_reader(text)(folder, request) for folder in filter(Path.is_dir, folders)
            )
            images = next((part for part in sets if part is not None), None)
            if images is None:
                raise missing_set(text, folders)
        elif (path := Path(name_or_path).expanduser()).exists():
            formats = {"a folder of class folders or shards, a .tar archive": FOLDERS, **FORMATS}
            name = next((name for name in reversed(formats) if formats[name].holds(path)), None)
            if name is None:
                raise DataError(f"{path}: not a data set; expected {', '.join(formats)}")
            _, read, splits, reader_options = formats[name]
            _check_request(f"{path} ({name})", request, splits, reader_options)
            images = read(path, request)
        elif isinstance(name_or_path, Path) or "/" in text or "\\" in text or Path(text).suffix:
            raise DataError(f"{text}: no such file or folder, and no data set of this name")
        else:
            raise DATASETS.unknown(text)
    if storage == "disk" and not isinstance(images, DiskDataset):
        raise DataError(
            f"{text}: cannot stay on disk, because it is no set of image files in folders, a table "
            "or plain .tar shards; use the storage auto or memory"
        )
    return images.resized(img_size, in_chans)


def _check_request(
    source: str, request: ReadRequest, splits: Sequence[str], options: Sequence[str]
) -> None:
    """Check that what is requested has a meaning for a set with these splits and options."""
    if request.split not in splits:
        raise MissingSplitError(f"{source}: there is no official {request.split!r} split")
    for name, default in vars(ReadOptions()).items():
        if getattr(request.options, name) != default and name not in options:
            raise ArgumentError(
                name,
                f"expected {IMAGE_FILES if name in OPTIONS else 'a .csv of image files'}, got {source}",
            )


def default_cache_dir() -> Path:
    """Where fetched data sets are kept: `~/.cache/torchcaps`."""
    return Path.home() / ".cache" / "torchcaps"


def places(name: str, root: StrPath | None = None, cache_dir: StrPath | None = None) -> list[Path]:
    """Every folder in which a named set is looked for, in order: root, cache, system folders."""
    info = base_info(name)
    if info.embedded:
        return [info.embedded]
    folders = [Path(cache_dir or default_cache_dir()) / info.name, *info.system_folders]
    if root is not None:
        folders = [Path(root) / info.name, Path(root), *folders]
    return [folder.expanduser() for folder in folders]


def missing_set(name: str, folders: list[Path]) -> DatasetNotFoundError:
    """The error for a named set that is in none of the folders that were searched."""
    info = base_info(name)
    origin = f"with: torchcaps data fetch {info.name}" if info.sources else f"from {info.source}"
    return DatasetNotFoundError(
        f"data set {name!r} is in none of {', '.join(map(str, folders))}; get it {origin}"
    )
