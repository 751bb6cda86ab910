"""Street View House Numbers, cropped digits (Netzer, Wang, Coates, Bissacco, Wu, Ng 2011): `*_32x32.mat`.

`X` is uint8 `[32, 32, 3, n]`, `y` is `[n, 1]` with 10 for the digit 0. A photograph shows its digit with what stands
beside it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from torchcaps.data.budget import door
from torchcaps.data.dataset import ImageSet
from torchcaps.data.mat import read_mat
from torchcaps.errors import DataError

CLASSES = tuple("0123456789")
SHAPE = (3, 32, 32)


def svhn_file(folder: Path, split: str) -> Path:
    """Where a split lies in a folder: `train_32x32.mat` or `test_32x32.mat`."""
    return folder / f"{split}_32x32.mat"


def holds_svhn(folder: Path) -> bool:
    """Whether `folder` holds a split of SVHN under its usual name."""
    return any(svhn_file(folder, split).is_file() for split in ("train", "test"))


@door
def read_svhn(path: str | Path, name: str = "svhn") -> ImageSet:
    """Read one `*_32x32.mat`.

    Args:
        path: the file.
        name: the set's name.

    Returns:
        uint8 images `[n, 3, 32, 32]`; the label of a digit is the digit, 0 included.

    Raises:
        DataError: damaged, without `X` and `y`, of other shapes or types, or with a label outside 1..10.
    """
    held = read_mat(path)
    images, labels = held.get("X"), held.get("y")
    if not isinstance(images, np.ndarray) or not isinstance(labels, np.ndarray):
        raise DataError(f"{path}: expected the arrays X and y of SVHN, got {', '.join(held) or 'none'}")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataError(f"{path}: expected X [32, 32, 3, n] of uint8, got {list(images.shape)} of {images.dtype}")
    if labels.size != images.shape[3] or labels.size == 0:
        raise DataError(f"{path}: {labels.size} labels for {images.shape[3]} images")
    digits = labels.reshape(-1).astype(np.int64)
    if digits.min() < 1 or digits.max() > 10:
        raise DataError(
            f"{path}: expected labels from 1 to 10, where 10 is the digit 0, got {digits.min()} to {digits.max()}"
        )
    pixels = np.require(images.transpose(3, 2, 0, 1), requirements=["C", "W"])
    return ImageSet(torch.from_numpy(pixels), torch.from_numpy(digits % 10), CLASSES, name)
