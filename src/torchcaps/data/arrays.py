"""Arrays saved by numpy: an `.npz` of images and labels, or an `.npy` of images beside one of labels."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.budget import CHUNK, Source, door, reading
from torchcaps.data.dataset import ImageSet, check_count, check_labels, numbered
from torchcaps.data.entries import natural
from torchcaps.data.pixels import array_images
from torchcaps.data.split import default_split
from torchcaps.errors import DataError

WHOLE = (("images", "labels"), ("x", "y"))
PER_SPLIT = (("x_{}", "y_{}"), ("{}_images", "{}_labels"))
MAGIC = np.lib.format.MAGIC_PREFIX
# Version of the format: bytes of the header's length, and numpy's parser of a header.
HEADERS = {
    b"\1\0": (2, np.lib.format.read_array_header_1_0), b"\2\0": (4, np.lib.format.read_array_header_2_0)
}  # fmt: skip
LONGEST_HEADER = 10_000
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@door
def read_arrays(path: str | Path, split: str = "train") -> ImageSet:
    """Read images and labels from `.npz`, or from `NAME.npy` with its labels in `NAME_labels.npy`.

    An `.npz` holds `images` and `labels` (or `x` and `y`), or the same for each split: `x_train`, `y_train`,
    `x_test`, `y_test` (or `train_images`, …). Without such splits 20 % of each class are the test split, chosen by
    `holdout` with seed 0. `classes` may hold the names of the classes. Nothing is unpickled.

    Images are `[n, height, width]`, `[n, height, width, channels]` or `[n, channels, height, width]`, where the one
    axis of at most 4 is the channels; uint8, uint16 (65535 becomes 255), or floats in [0, 1].
    Labels are `[n]` or `[n, 1]`: integers from 0, or names.

    Args:
        path: the `.npz` or `.npy` file; its name without the ending becomes the set's.
        split: "train" or "test".

    Returns:
        uint8 or float32 images `[n, channels, height, width]`.

    Raises:
        DataError: damaged, pickled, an array missing, an ambiguous layout, values out of range, NaN.
    """
    path = Path(path)
    with _opened(path) as arrays:
        pairs = _pairs(path, arrays)
        key = split if split in pairs else "all"
        if key not in pairs:
            raise DataError(f"{path}: no images and labels of the {split!r} split among {', '.join(arrays)}")
        # Labels first, and as many as there are images: what is wrong with them costs no images in memory.
        raw = _labels(path, *pairs[key])
        known = raw if key == "train" or "train" not in pairs else _labels(path, *pairs["train"])
        named = arrays.get("classes")
        labels, classes = index_labels(path, raw, known, None if named is None else named.read())
        images = array_images(str(path), pairs[key][0].read())
    if key == "all":
        index = default_split(str(path), labels, split)
        images, labels = images[index], labels[index]
    return ImageSet(images, labels, classes, path.stem)


@dataclass(frozen=True)
class _Stored:
    """An array in a file: what its header says, and where its values follow."""

    path: Path
    name: str
    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]
    stream: IO[bytes]
    claim: Callable[[int], None]

    def read(self) -> np.ndarray:
        """The values, read to their end."""
        size = math.prod(self.shape) * self.dtype.itemsize
        with _plain(self.path):
            self.claim(size)
            data = bytearray()
            while len(data) < size and (piece := self.stream.read(min(CHUNK, size - len(data)))):
                data += piece
            if len(data) < size or self.stream.read(1):
                found = "more" if len(data) == size else len(data)
                raise ValueError(f"{self.name}: the header {list(self.shape)} asks for {size} bytes, got {found}")
            return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.by_column else "C")


def _plain(path: Path) -> AbstractContextManager[None]:
    kind = "an .npz of plain arrays" if path.suffix.lower() == ".npz" else "an .npy of a plain array"
    return reading(path, wrong=f"cannot be read as {kind}")


def _stored(path: Path, name: str, stream: IO[bytes], left: int, claim: Callable[[int], None]) -> _Stored:
    """The array that a stream of at most `left` bytes holds; numpy's own reader believes every size in it."""
    start = stream.read(len(MAGIC) + 2)
    if start[:-2] != MAGIC or start[-2:] not in HEADERS:
        raise ValueError(f"{name} is no array that numpy has saved")
    width, parse = HEADERS[start[-2:]]
    length = stream.read(width)
    size = int.from_bytes(length, "little")
    if size > LONGEST_HEADER:
        raise ValueError(f"{name}: a header of {size:,} bytes")
    shape, by_column, dtype = parse(io.BytesIO(length + stream.read(size)))
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"{name}: values of type {dtype}, which is no number and no text")
    left -= len(start) + width + size
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > left:
        raise ValueError(f"{name}: the header {list(shape)} of {dtype} asks for more than the {left} bytes of data")
    return _Stored(path, name, shape, by_column, dtype, stream, claim)


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, _Stored | None]]:
    """The arrays of a file by name, of which only the headers are read; None for members that no set has."""
    with ExitStack() as opened:
        if path.suffix.lower() == ".npz":
            with _plain(path):
                source = opened.enter_context(Source(path))
                archive = opened.enter_context(zipfile.ZipFile(source.file))
                found = dict(_members(path, archive, opened, source.claim))
        else:
            found = {}
            for kind, file in (("images", path), ("labels", path.with_name(f"{path.stem}_labels.npy"))):
                if not file.exists():
                    raise DataError(f"{path}: expected its {kind} in {file.name} beside it, which is not there")
                with _plain(file):
                    source = opened.enter_context(Source(file))
                    found[kind] = _stored(file, kind, source.file, source.size, source.claim)
        yield found


def _members(
    path: Path, archive: zipfile.ZipFile, opened: ExitStack, claim: Callable[[int], None]
) -> Iterator[tuple[str, _Stored | None]]:
    known = {name.format(split) for names in (*WHOLE, *PER_SPLIT) for name in names for split in ("train", "test")}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name not in known | {"classes"}:
            yield name, None
            continue
        if member.compress_type not in METHODS:  # numpy writes no other, and some grow without a bound
            raise ValueError(f"{name}: compressed by a method that is not read here")
        stream = opened.enter_context(archive.open(member))
        yield name, _stored(path, name, stream, member.file_size, claim)


def _pairs(path: Path, arrays: Mapping[str, _Stored | None]) -> dict[str, tuple[_Stored, _Stored]]:
    """Images and labels by split, or under "all" where no split is given."""
    found = {}
    for key, split, names in (("train", "train", PER_SPLIT), ("test", "test", PER_SPLIT), ("all", "", WHOLE)):
        for images, labels in names:
            pair = arrays.get(images.format(split)), arrays.get(labels.format(split))
            if pair[0] is not None and pair[1] is not None:
                found[key] = pair[0], pair[1]
    if not found:
        wanted = "images and labels, or x_train, y_train, x_test and y_test"
        raise DataError(f"{path}: expected the arrays {wanted}, got {', '.join(arrays) or 'none'}")
    return found


def _labels(path: Path, images: _Stored, labels: _Stored) -> np.ndarray:
    if labels.shape[:1] != images.shape[:1]:
        count, among = (one.shape[0] if one.shape else "no" for one in (labels, images))
        raise DataError(f"{path}: {count} labels for {among} images")
    return labels.read()


def index_labels(
    path: Path, labels: np.ndarray, training: np.ndarray, names: np.ndarray | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as indices, and the classes: `names` where given, otherwise what the training labels hold.

    Args:
        path: for errors.
        labels: `[n]` or `[n, 1]`, integers from 0, or the names of classes.
        training: the labels of the training split, which settle the classes.
        names: `[classes]`, in the order of the labels, or None.

    Raises:
        DataError: another shape or type, or a label outside the classes.
    """
    labels, training = _flat(path, labels), _flat(path, training)
    if names is not None:
        check_count(str(path), names.size)
        classes = tuple(str(name) for name in names.reshape(-1))
    elif labels.dtype.kind == "U":
        classes = tuple(sorted({str(name) for name in training}, key=natural))
    else:
        classes = numbered(str(path), int(training.max(initial=0)))
    if labels.dtype.kind == "U":
        place = {name: index for index, name in enumerate(classes)}
        strange = next((str(name) for name in labels if str(name) not in place), None)
        if strange is not None:
            raise DataError(f"{path}: label {strange!r} is not among the classes {', '.join(classes)}")
        labels = np.array([place[str(name)] for name in labels])
    indices = torch.from_numpy(labels.astype(np.int64))
    check_labels(str(path), indices, classes)
    return indices, classes


def _flat(path: Path, labels: np.ndarray) -> np.ndarray:
    flat = labels.reshape(len(labels)) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "iuU":
        raise DataError(f"{path}: expected labels [n] of integers or names, got {list(labels.shape)} of {labels.dtype}")
    return flat
