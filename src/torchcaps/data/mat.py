"""MATLAB's level-5 files (`save -v6` and `-v7`), read by scipy in a process of its own.

scipy trusts lengths and sizes in a file, and deep nesting ends its process.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data.reading import memory_limit, open_file
from torchcaps.errors import DataError
from torchcaps.isolated import IsolatedError, call_isolated
from torchcaps.types import Json, StrPath

BASE = 512 << 20  # bytes that Python with scipy takes by itself
TIMEOUT = 300.0  # seconds


def read_mat(path: StrPath) -> Json:
    """The variables of a MATLAB level-5 file, compressed or not, of either byte order, by name.

    They are as scipy simplifies them: a struct is a dictionary of its fields, a cell array a list
    or an array of objects, text is str. Axes of length 1 are left out.

    Args:
        path: of the file.

    Returns:
        Name of each variable -> its contents.

    Raises:
        DataError: absent, truncated, damaged, of another version, or too large.
    """
    path = Path(path)
    with open_file(path, "damaged or truncated MATLAB file") as file:
        if file.read(128)[124:128] not in (b"\0\1IM", b"\1\0MI"):
            raise DataError(
                f"{path}: not a MATLAB level-5 file by its header; save it again with -v7"
            )
        try:
            variables: Json = call_isolated(
                "scipy.io:loadmat",
                str(path),
                max_bytes=BASE + 3 * memory_limit(path),
                timeout=TIMEOUT,
                mat_dtype=True,
                simplify_cells=True,
            )
        except IsolatedError as error:
            raise ValueError(str(error)) from error
        return {name: value for name, value in variables.items() if not name.startswith("__")}


def label_arrays(
    path: StrPath, variables: Any, images: str, labels: str, shape: tuple[int, ...]
) -> tuple[UInt8[Tensor, "*shape n"], Int64[Tensor, " n"]]:
    """Images and labels among the variables of a file.

    Args:
        path: of the file, for errors.
        variables: by name.
        images: name of the images.
        labels: name of their labels.
        shape: of an image.

    Raises:
        DataError: they are not there, or of another shape or type.
    """
    fields = variables if isinstance(variables, dict) else {}
    pixels = np.asarray(fields.get(images))
    numbers = np.ravel(fields.get(labels, ()))
    sizes = (*shape, len(numbers))
    is_image = pixels.dtype == np.uint8 and pixels.shape in (sizes, shape)
    if not (is_image and pixels.size == np.prod(sizes) and numbers.dtype.kind in "uif"):
        raise DataError(
            f"{path}: expected {images} {[*shape, 'n']} of uint8 and n labels in {labels}, got "
            f"{list(pixels.shape)} of {pixels.dtype} and {len(numbers)} of {numbers.dtype}"
        )
    return torch.from_numpy(pixels.reshape(sizes)), torch.from_numpy(numbers.astype(np.int64))
