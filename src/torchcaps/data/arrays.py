"""Arrays saved by numpy: an `.npz` of images and labels, or an `.npy` of images beside one of labels."""

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data._registry import register_format
from torchcaps.data.budget import MemoryBudget, open_reader, read_errors, read_up_to
from torchcaps.data.dataset import ImageSet, check_count, check_labels, default_split, numbered
from torchcaps.data.images import natural_key
from torchcaps.data.pixels import array_images
from torchcaps.errors import DataError

# Names of images and labels by split; "all" where the file has no splits.
PAIRS = (
    ("all", "images", "labels"),
    ("all", "x", "y"),
    *((split, f"x_{split}", f"y_{split}") for split in ("train", "test")),
    *((split, f"{split}_images", f"{split}_labels") for split in ("train", "test")),
)
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
LONGEST_HEADER = 10_000
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_arrays(
    path: str | Path, split: str = "train", budget: MemoryBudget | None = None
) -> ImageSet:
    """Read images and labels from `.npz`, or from `NAME.npy` with its labels in `NAME_labels.npy`.

    An `.npz` holds `images` and `labels` (or `x` and `y`), or the same for each split: `x_train`, `y_train`,
    `x_test`, `y_test` (or `train_images`, …). Without such splits 20 % of each class are the test split, chosen by
    `stratified_split` with seed 0. `classes` may hold the names of the classes. Nothing is unpickled.

    Images are `[n, height, width]`, `[n, height, width, channels]` or `[n, channels, height, width]`, where the one
    axis of at most 4 is the channels; uint8, uint16 (65535 becomes 255), or floats in [0, 1].
    Labels are `[n]` or `[n, 1]`: integers from 0, or names.

    DataError: damaged, pickled, an array missing, an ambiguous layout, values out of range, NaN.
    """
    path = Path(path)
    is_npz = path.suffix.lower() == ".npz"
    kind = "an .npz of plain arrays" if is_npz else "an .npy of a plain array"
    budget = budget or MemoryBudget()
    with ExitStack() as files, read_errors(path, f"cannot be read as {kind}"):
        arrays = dict(npz_arrays(path, files, budget) if is_npz else _npy_arrays(path, budget))
        pairs = {key: names for key, *names in PAIRS if arrays.keys() >= {*names}}
        if not pairs:
            wanted = "images and labels, or x_train, y_train, x_test and y_test"
            raise DataError(
                f"{path}: expected the arrays {wanted}, got {', '.join(arrays) or 'none'}"
            )
        key = split if split in pairs else "all"
        if key not in pairs:
            raise DataError(
                f"{path}: no images and labels of the {split!r} split among {', '.join(arrays)}"
            )
        images, raw = (arrays[name]() for name in pairs[key])
        if raw.shape[:1] != images.shape[:1]:
            count, among = (one.shape[0] if one.shape else "no" for one in (raw, images))
            raise DataError(f"{path}: {count} labels for {among} images")
        known = raw if key == "train" or "train" not in pairs else arrays[pairs["train"][1]]()
        labels, classes = _index_labels(
            path, raw, known, arrays["classes"]() if "classes" in arrays else None
        )
        pixels = array_images(str(path), images)
    if key == "all":
        index = default_split(str(path), labels, split)
        pixels, labels = pixels[index], labels[index]
    return ImageSet(pixels, labels, classes, path.stem)


register_format(
    "an .npz or .npy file",
    lambda path: path.suffix.lower() in (".npz", ".npy"),
    lambda path, request: read_arrays(path, request.split, request.budget),
)


def npz_arrays(
    path: Path, files: ExitStack, budget: MemoryBudget
) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """The arrays of an `.npz` by name, each read when called; the file is closed with `files`."""
    reader = files.enter_context(
        open_reader(path, budget, "cannot be read as an .npz of plain arrays")
    )
    archive = files.enter_context(zipfile.ZipFile(reader.file))

    def read(member: zipfile.ZipInfo) -> np.ndarray:
        # numpy writes no other method, and some grow without a bound.
        if member.compress_type not in METHODS:
            raise ValueError(f"{member.filename}: compressed by a method that is not read here")
        reader.reserve(member.file_size)
        with archive.open(member) as stream:
            return _array(member.filename, read_up_to(stream.read, member.file_size))

    for member in archive.infolist():
        yield member.filename.removesuffix(".npy"), partial(read, member)


def _npy_arrays(path: Path, budget: MemoryBudget) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    def read(file: Path) -> np.ndarray:
        with open_reader(file, budget, "cannot be read as an .npy of a plain array") as reader:
            return _array(file.name, bytearray().join(reader.chunks()))

    for kind, file in (("images", path), ("labels", path.with_name(f"{path.stem}_labels.npy"))):
        if not file.exists():
            raise DataError(
                f"{path}: expected its {kind} in {file.name} beside it, which is not there"
            )
        yield kind, partial(read, file)


def _array(name: str, data: bytearray) -> np.ndarray:
    """The array that numpy has saved as these bytes; numpy's own reader believes every size in them."""
    start = io.BytesIO(data[:LONGEST_HEADER])
    version = np.lib.format.read_magic(start)
    if version not in HEADERS:
        raise ValueError(f"{name} is of version {version} of the format, which is not read here")
    shape, by_column, dtype = HEADERS[version](start)
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"{name}: values of type {dtype}, which is neither a number nor text")
    count, left = math.prod(shape), len(data) - start.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != left:
        raise ValueError(
            f"{name}: the header {list(shape)} of {dtype} does not fit the {left} bytes of data"
        )
    return np.frombuffer(data, dtype, count, start.tell()).reshape(
        shape, order="F" if by_column else "C"
    )


def _index_labels(
    path: Path, labels: np.ndarray, training: np.ndarray, names: np.ndarray | None
) -> tuple[Tensor, tuple[str, ...]]:
    labels, training = _flat(path, labels), _flat(path, training)
    if names is not None:
        check_count(str(path), names.size)
        classes = tuple(map(str, names.flat))
    elif labels.dtype.kind == "U":
        classes = tuple(sorted(np.unique(training).tolist(), key=natural_key))
    else:
        classes = numbered(str(path), int(training.max(initial=0)))
    if labels.dtype.kind == "U":
        place = {name: index for index, name in enumerate(classes)}
        strange = next((name for name in labels.tolist() if name not in place), None)
        if strange is not None:
            raise DataError(
                f"{path}: label {strange!r} is not among the classes {', '.join(classes)}"
            )
        labels = np.array([place[name] for name in labels.tolist()])
    indices = torch.from_numpy(labels.astype(np.int64))
    check_labels(str(path), indices, classes)
    return indices, classes


def _flat(path: Path, labels: np.ndarray) -> np.ndarray:
    flat = labels.reshape(len(labels)) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: expected labels [n] of integers or names, got {list(labels.shape)} of {labels.dtype}"
        )
    return flat
