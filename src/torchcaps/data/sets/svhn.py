"""Street View House Numbers, cropped digits (Netzer, Wang, Coates, Bissacco, Wu, Ng 2011).

A file `*_32x32.mat` holds `X`, uint8 `[32, 32, 3, n]`, and `y`, `[n, 1]`, with 10 for the digit 0.
A photograph shows what stands beside its digit too.
"""

from pathlib import Path

import numpy as np
import torch

from torchcaps.data._registry import DatasetInfo, register_directory_format
from torchcaps.data.dataset import Dataset
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


def read_svhn(path: str | Path, name: str = "svhn") -> Dataset:
    """Read one `*_32x32.mat`.

    Args:
        path: of the file.
        name: of the set.

    Returns:
        uint8 images `[n, 3, 32, 32]`; the label of a digit is the digit, 0 included.

    Raises:
        DataError: damaged, without `X` and `y`, of other shapes or types, or with a label outside
            1 to 10.
    """
    arrays = read_mat(path)
    images = np.asarray(arrays.get("X"))
    labels = np.asarray(arrays.get("y"))
    expected_shape = (32, 32, 3, labels.size)
    if images.dtype != np.uint8 or images.shape != expected_shape or labels.dtype.kind not in "uif":
        got = f"{list(images.shape)} of {images.dtype} and {list(labels.shape)} of {labels.dtype}"
        raise DataError(f"{path}: expected X [32, 32, 3, n] of uint8 and y [n, 1], got {got}")
    digits = labels.reshape(-1).astype(np.int64)
    outside = np.setdiff1d(digits, range(1, 11))
    if len(outside):
        expected = "expected labels from 1 to 10, where 10 is the digit 0"
        raise DataError(f"{path}: {expected}, got {outside[0]}")
    pixels = np.require(images.transpose(3, 2, 0, 1), requirements=["C", "W"])
    targets = {"label": torch.from_numpy(digits % 10)}
    return Dataset(torch.from_numpy(pixels), targets, INFO.classes, name)


register_directory_format(
    INFO,
    "a folder of SVHN's *_32x32.mat",
    lambda folder: any(map(Path.is_file, map(folder.joinpath, INFO.sha256))),
    lambda folder, request, name: read_svhn(folder / f"{request.split}_32x32.mat", name),
)
