"""Street View House Numbers, cropped digits (Netzer, Wang, Coates, Bissacco, Wu, Ng 2011).

A file `*_32x32.mat` holds `X`, uint8 `[32, 32, 3, n]`, and `y`, `[n, 1]`, with 10 for the digit 0.
A photograph shows what stands beside its digit too.
"""

from pathlib import Path

from torchcaps.data._registry import register_directory_format
from torchcaps.data.dataset import Dataset
from torchcaps.data.mat import label_arrays, read_mat
from torchcaps.data.sources import published_set
from torchcaps.errors import DataError
from torchcaps.types import StrPath

INFO = published_set("svhn")


def read_svhn(path: StrPath, name: str = "svhn") -> Dataset:
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
    images, labels = label_arrays(path, read_mat(path), "X", "y", (32, 32, 3))
    if not ((labels >= 1) & (labels <= 10)).all():
        raise DataError(f"{path}: expected labels from 1 to 10, where 10 is the digit 0")
    images = images.permute(3, 2, 0, 1).contiguous()
    return Dataset(images, {"label": labels % 10}, INFO.classes, name)


register_directory_format(
    INFO,
    "a folder of SVHN's *_32x32.mat",
    lambda folder: any(map(Path.is_file, map(folder.joinpath, INFO.sha256))),
    lambda folder, request, name: read_svhn(folder / f"{request.split}_32x32.mat", name),
)
