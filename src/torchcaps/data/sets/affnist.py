"""affNIST as published: MATLAB files, each with a 40 × 40 version of every MNIST digit of its part (Tieleman 2013)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data._registry import DatasetInfo, ReadRequest, register_directory_format
from torchcaps.data.budget import MemoryBudget
from torchcaps.data.dataset import ImageSet
from torchcaps.data.images import natural_key
from torchcaps.data.mat import read_mat
from torchcaps.errors import DataError

SIDE = 40
PARTS = {"train": "training_and_validation_batches", "test": "test_batches"}
INFO = DatasetInfo(
    name="affnist",
    title="affNIST, MNIST under affine transformations",
    classes=tuple("0123456789"),
    image_shape=(1, SIDE, SIDE),
    train=1_920_000,
    test=320_000,
    license="none stated",
    source="https://www.cs.toronto.edu/~tijmen/affNIST/",
    sha256={
        "transformed/training_and_validation_batches/1.mat": None,
        "transformed/test_batches/1.mat": None,
    },
)


def _files(folder: Path, split: str) -> list[Path]:
    found = (list((base / PARTS[split]).glob("*.mat")) for base in (folder / "transformed", folder))
    return sorted(next(filter(None, found), []), key=lambda path: natural_key(path.name))


def read_affnist(
    path: str | Path, name: str = "affnist", budget: MemoryBudget | None = None
) -> ImageSet:
    """Read a `.mat` file with a struct `affNISTdata`: `image` uint8 `[1600, n]` and `label_int` `[1, n]`.

    The images `[n, 1, 40, 40]` have the factor "original" where the file has `original_id`: the place of the digit in
    its part of MNIST, from 0; it is the group. DataError: damaged, without this struct, or fields of other shapes.
    """
    data = read_mat(path, budget).get("affNISTdata")
    if not isinstance(data, dict) or not isinstance(data.get("image"), np.ndarray):
        raise DataError(
            f"{path}: expected a struct affNISTdata with a field image, which is not in it"
        )
    images = data["image"]
    if images.ndim != 2 or images.shape[0] != SIDE * SIDE or images.dtype != np.uint8:
        raise DataError(
            f"{path}: expected image [1600, n] of uint8, got {list(images.shape)} of {images.dtype}"
        )
    count = images.shape[1]
    labels, ids = (_numbers(data.get(field), count) for field in ("label_int", "original_id"))
    if labels is None:
        raise DataError(f"{path}: expected label_int for {count} images in affNISTdata")
    pixels = np.require(images.T, requirements=["C", "W"]).reshape(count, 1, SIDE, SIDE)
    factors = {} if ids is None else {"original": ids - 1}
    return ImageSet(
        torch.from_numpy(pixels),
        labels,
        INFO.classes,
        name,
        factors,
        group=next(iter(factors), None),
    )


def _read_all(folder: Path, request: ReadRequest, name: str) -> ImageSet:
    files = _files(folder, request.split)
    if not files:
        raise DataError(f"{folder}: no .mat file of the {request.split!r} split of affNIST in it")
    parts = [read_affnist(file, name, request.budget) for file in files]
    images, labels = (
        torch.cat([getattr(part, kind) for part in parts]) for kind in ("images", "labels")
    )
    factors = {name: torch.cat([part.factors[name] for part in parts]) for name in parts[0].factors}
    return replace(parts[0], images=images, labels=labels, factors=factors)


def _numbers(values: object, count: int) -> Tensor | None:
    """A field with a whole number for each image; None where it is absent or of another size."""
    if not isinstance(values, np.ndarray) or values.size != count:
        return None
    return torch.from_numpy(values.reshape(-1).astype(np.int64))


register_directory_format(
    INFO,
    "a folder of affNIST's batches",
    lambda folder: any(_files(folder, split) for split in PARTS),
    _read_all,
)
