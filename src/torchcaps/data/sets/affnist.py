"""affNIST as published: a 40 × 40 version of every MNIST digit in each file (Tieleman 2013)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data._registry import ReadRequest, register_directory_format
from torchcaps.data.dataset import Dataset, concatenate
from torchcaps.data.images import natural_key
from torchcaps.data.mat import label_arrays, read_mat
from torchcaps.data.sources import published_set
from torchcaps.errors import DataError
from torchcaps.types import StrPath

SIDE = 40
FOLDERS = {"train": "training_and_validation_batches", "test": "test_batches"}
INFO = published_set("affnist")


def _find_files(folder: Path, split: str) -> list[Path]:
    """The files of a split, in their numbers' order."""
    for base in (folder / "transformed", folder):
        if files := sorted((base / FOLDERS[split]).glob("*.mat"), key=natural_key):
            return files
    return []


def read_affnist(path: StrPath, name: str = "affnist") -> Dataset:
    """Read a `.mat` file with a struct `affNISTdata`.

    Args:
        path: of the file. Its struct has `image`, uint8 `[1600, n]`, and `label_int` `[1, n]`.
        name: of the set.

    Returns:
        Images `[n, 1, 40, 40]`. Where the file has `original_id`, the target and group "original"
        is the place of the digit in its part of MNIST, from 0.

    Raises:
        DataError: damaged, without this struct, or fields of other shapes.
    """
    fields: Any = read_mat(path).get("affNISTdata")
    images, labels = label_arrays(path, fields, "image", "label_int", (SIDE * SIDE,))
    targets = {"label": labels}
    ids = np.ravel(fields.get("original_id", ()))
    if ids.size == len(labels):
        targets["original"] = torch.from_numpy(ids.astype(np.int64) - 1)
    images = images.T.reshape(-1, 1, SIDE, SIDE)
    return Dataset(images, targets, INFO.classes, name, targets.get("original"))


def _read_all(folder: Path, request: ReadRequest, name: str) -> Dataset:
    """All batches of a split as one set."""
    files = _find_files(folder, request.split)
    if not files:
        raise DataError(f"{folder}: no .mat file of the {request.split!r} split of affNIST in it")
    return concatenate([read_affnist(file, name) for file in files])


register_directory_format(
    INFO,
    "a folder of affNIST's batches",
    lambda folder: any(_find_files(folder, split) for split in FOLDERS),
    _read_all,
)
