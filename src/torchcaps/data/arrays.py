"""Arrays saved by numpy: an `.npz` of images and labels, or an `.npy` of images beside one of labels."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import ImageSet, check_labels
from torchcaps.data.entries import natural
from torchcaps.data.pixels import array_images
from torchcaps.data.split import default_split
from torchcaps.errors import DataError

WHOLE = (("images", "labels"), ("x", "y"))
PER_SPLIT = (("x_{}", "y_{}"), ("{}_images", "{}_labels"))
Pair = tuple[np.ndarray, np.ndarray]


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
    arrays = _load_npz(path) if path.suffix.lower() == ".npz" else _load_npy(path)
    pairs = _pairs(path, arrays)
    key = split if split in pairs else "all"
    if key not in pairs:
        raise DataError(f"{path}: no images and labels of the {split!r} split among {', '.join(arrays)}")
    stored, raw = pairs[key]
    _, known = pairs.get("train", pairs[key])
    labels, classes = index_labels(path, raw, known, arrays.get("classes"))
    images = array_images(str(path), stored)
    if len(images) != len(labels):
        raise DataError(f"{path}: {len(labels)} labels for {len(images)} images")
    if key == "all":
        index = default_split(str(path), labels, split)
        images, labels = images[index], labels[index]
    return ImageSet(images, labels, classes, path.stem)


def _load_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as an .npz of plain arrays ({error})") from None


def _load_npy(path: Path) -> dict[str, np.ndarray]:
    found = {}
    for kind, file in (("images", path), ("labels", path.with_name(f"{path.stem}_labels.npy"))):
        try:
            with file.open("rb") as stream:
                found[kind] = np.load(stream, allow_pickle=False)
        except FileNotFoundError:
            raise DataError(f"{path}: expected its {kind} in {file.name} beside it, which is not there") from None
        except (EOFError, OSError, ValueError) as error:
            raise DataError(f"{file}: cannot be read as an .npy of a plain array ({error})") from None
    return found


def _pairs(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Pair]:
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
        classes = tuple(str(name) for name in names.reshape(-1))
    elif labels.dtype.kind == "U":
        classes = tuple(sorted({str(name) for name in training}, key=natural))
    else:
        classes = tuple(str(number) for number in range(int(training.max(initial=0)) + 1))
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
