"""Street View House Numbers, cropped digits (Netzer, Wang, Coates, Bissacco, Wu, Ng 2011): `*_32x32.mat`.

`X` is uint8 `[32, 32, 3, n]`, `y` is `[n, 1]` with 10 for the digit 0. A photograph shows what stands beside it too.
"""

from pathlib import Path

import numpy as np
import torch

from torchcaps.data._registry import DatasetInfo, register_directory_format
from torchcaps.data.budget import MemoryBudget
from torchcaps.data.dataset import ImageSet
from torchcaps.data.mat import read_mat
from torchcaps.data.sources import Mirror
from torchcaps.errors import DataError

INFO = DatasetInfo(
    name="svhn",
    title="Street View House Numbers, cropped digits",
    classes=tuple("0123456789"),
    image_shape=(3, 32, 32),
    train=73_257,
    test=26_032,
    license="for non-commercial use only, as its authors state",
    source="http://ufldl.stanford.edu/housenumbers/",
    sha256={
        "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    },
    sources=(Mirror("http://ufldl.stanford.edu/housenumbers/", suffix=""),),
)


def read_svhn(path: str | Path, name: str = "svhn", budget: MemoryBudget | None = None) -> ImageSet:
    """Read one `*_32x32.mat`: uint8 images `[n, 3, 32, 32]`; the label of a digit is the digit, 0 included.

    DataError: damaged, without `X` and `y`, of other shapes or types, or with a label outside 1..10.
    """
    held = read_mat(path, budget)
    images, labels = held.get("X"), held.get("y")
    if not isinstance(images, np.ndarray) or not isinstance(labels, np.ndarray):
        raise DataError(
            f"{path}: expected the arrays X and y of SVHN, got {', '.join(held) or 'none'}"
        )
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataError(
            f"{path}: expected X [32, 32, 3, n] of uint8, got {list(images.shape)} of {images.dtype}"
        )
    if labels.size != images.shape[3] or labels.size == 0:
        raise DataError(f"{path}: {labels.size} labels for {images.shape[3]} images")
    digits = labels.reshape(-1).astype(np.int64)
    low, high = digits.min(), digits.max()
    if low < 1 or high > 10:
        raise DataError(
            f"{path}: expected labels from 1 to 10, where 10 is the digit 0, got {low} to {high}"
        )
    pixels = np.require(images.transpose(3, 2, 0, 1), requirements=["C", "W"])
    return ImageSet(torch.from_numpy(pixels), torch.from_numpy(digits % 10), INFO.classes, name)


register_directory_format(
    INFO,
    "a folder of SVHN's *_32x32.mat",
    lambda folder: any((folder / file).is_file() for file in INFO.sha256),
    lambda folder, r, name: read_svhn(folder / f"{r.split}_32x32.mat", name, r.budget),
)
