"""Arrays saved by numpy: an `.npz` of images and labels, or an `.npy` of each."""

import io
import zipfile
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadRequest, register_format
from torchcaps.data.budget import MemoryBudget, open_reader, read_bytes, read_errors
from torchcaps.data.dataset import Dataset, check_count, check_labels, default_split, numbered
from torchcaps.data.images import natural_key
from torchcaps.data.pixels import array_images
from torchcaps.errors import DataError, MissingSplitError

# Names of images and labels, of one split or of a file without splits.
ARRAY_NAMES = (
    ("x_{split}", "y_{split}"),
    ("{split}_images", "{split}_labels"),
    ("images", "labels"),
    ("x", "y"),
)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

ArrayReader = Callable[[], np.ndarray]


def read_arrays(path: str | Path, request: ReadRequest) -> Dataset:
    """Read images and labels from `.npz`, or from `NAME.npy` with its labels in `NAME_labels.npy`.

    An `.npz` holds `images` and `labels` (or `x` and `y`), or the same for each split: `x_train`,
    `y_train`, `x_test`, `y_test` (or `train_images`, …), and of "val" where there is an official
    validation split, as in MedMNIST. Without such splits 20 % of each class are
    the test split, chosen by `stratified_split` with seed 0. `classes` may hold the names of the
    classes. Nothing is unpickled.

    Images are `[n, height, width]`, `[n, height, width, channels]` or `[n, channels, height,
    width]`, where the one axis of at most 4 is the channels. They are uint8, uint16 (65535 becomes
    255), or floats in [0, 1]. Labels are `[n]` or `[n, 1]`: integers from 0, or names.

    Args:
        path: of the file.
        request: its split is read, and the images are brought to its size and channels.

    Returns:
        The images of that split.

    Raises:
        DataError: damaged, pickled, an array missing, an ambiguous layout, values out of range,
            NaN.
        MissingSplitError: there are no arrays of the split "val".
    """
    path = Path(path)
    is_npz = path.suffix.lower() == ".npz"
    kind = "an .npz of plain arrays" if is_npz else "an .npy of a plain array"
    open_arrays = npz_arrays if is_npz else _npy_arrays
    with ExitStack() as files, read_errors(path, f"cannot be read as {kind}"):
        readers = dict(open_arrays(path, files, request.budget))
        names = _array_names(readers, request.split)
        has_no_splits = names in ARRAY_NAMES
        if request.split == "val" and (names is None or has_no_splits):
            raise MissingSplitError(f"{path}: no images and labels of the 'val' split in it")
        if names is None:
            problem = (
                "expected the arrays images and labels, or x_train, y_train, x_test and y_test,"
            )
            if _array_names(readers, "train") or _array_names(readers, "test"):
                problem = f"expected images and labels of the {request.split!r} split,"
            raise DataError(f"{path}: {problem} got {', '.join(readers) or 'none'}")
        images = readers[names[0]]()
        labels = readers[names[1]]()
        if labels.shape[:1] != images.shape[:1]:
            raise DataError(f"{path}: labels {list(labels.shape)} for images {list(images.shape)}")

        training_names = _array_names(readers, "train")
        training_labels = labels
        if training_names not in (None, names):
            training_labels = readers[training_names[1]]()
        class_names = readers["classes"]() if "classes" in readers else None
        indices, classes = _index_labels(path, labels, training_labels, class_names)
        pixels = array_images(str(path), images)
    if has_no_splits and request.classes is None:
        in_split = default_split(str(path), indices, request.split)
        pixels = pixels[in_split]
        indices = indices[in_split]
    return Dataset(pixels, {"label": indices}, classes, path.stem)


register_format(
    "an .npz or .npy file",
    lambda path: path.suffix.lower() in (".npz", ".npy"),
    read_arrays,
    splits=SPLITS_WITH_VAL,
)


def _array_names(arrays: Container[str], split: str) -> tuple[str, str] | None:
    """Names of the images and labels of a split, or of all; None where they are not there."""
    for images, labels in ARRAY_NAMES:
        names = images.format(split=split), labels.format(split=split)
        if names[0] in arrays and names[1] in arrays:
            return names
    return None


def npz_arrays(
    path: Path, files: ExitStack, budget: MemoryBudget
) -> Iterator[tuple[str, ArrayReader]]:
    """The arrays of an `.npz` by name, each read when called; the file is closed with `files`."""
    problem = "cannot be read as an .npz of plain arrays"
    reader = files.enter_context(open_reader(path, budget, problem))
    archive = files.enter_context(zipfile.ZipFile(reader.file))

    def read(member: zipfile.ZipInfo) -> np.ndarray:
        # numpy writes no other method, and some grow without a bound.
        if member.compress_type not in METHODS:
            raise ValueError(f"{member.filename}: compressed by a method that is not read here")
        reader.reserve(member.file_size)
        with archive.open(member) as stream:
            return np.lib.format.read_array(stream)

    for member in archive.infolist():
        yield member.filename.removesuffix(".npy"), partial(read, member)


def _npy_arrays(
    path: Path, _files: ExitStack, budget: MemoryBudget
) -> Iterator[tuple[str, ArrayReader]]:
    def read(file: Path) -> np.ndarray:
        return np.lib.format.read_array(io.BytesIO(read_bytes(file, budget)))

    for kind, file in (("images", path), ("labels", path.with_name(f"{path.stem}_labels.npy"))):
        if not file.exists():
            raise DataError(
                f"{path}: expected its {kind} in {file.name} beside it, which is not there"
            )
        yield kind, partial(read, file)


def _index_labels(
    path: Path,
    labels: np.ndarray,
    training_labels: np.ndarray,
    names: np.ndarray | None,
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels `[n]` as indices of the classes, and the names of the classes."""
    labels = _flatten_labels(path, labels)
    training_labels = _flatten_labels(path, training_labels)
    if names is not None:
        check_count(str(path), names.size)
        classes = tuple(map(str, names.flat))
    elif labels.dtype.kind == "U":
        classes = tuple(sorted(np.unique(training_labels).tolist(), key=natural_key))
    else:
        classes = numbered(str(path), int(training_labels.max(initial=0)))
    if labels.dtype.kind == "U":
        class_index = {name: index for index, name in enumerate(classes)}
        for name in labels.tolist():
            if name not in class_index:
                raise DataError(
                    f"{path}: label {name!r} is not among the classes {', '.join(classes)}"
                )
        labels = np.array([class_index[name] for name in labels.tolist()])
    indices = torch.from_numpy(labels.astype(np.int64))
    check_labels(str(path), indices, classes)
    return indices, classes


def _flatten_labels(path: Path, labels: np.ndarray) -> np.ndarray:
    flat = labels
    if labels.ndim == 2 and labels.shape[1] == 1:
        flat = labels[:, 0]
    if flat.ndim != 1 or flat.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: expected labels [n] of integers or names, "
            f"got {list(labels.shape)} of {labels.dtype}"
        )
    return flat
