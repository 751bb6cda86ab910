"""IDX files, the format of MNIST (LeCun, Cortes, Burges), plain or gzip.

A file holds two zero bytes, a type code (8: unsigned bytes), the number of axes, a big-endian
32-bit size of each axis, and the data by rows.
"""

import hashlib
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data._registry import (
    DatasetInfo,
    ReadRequest,
    dataset_info,
    list_datasets,
    register_dataset,
    register_format,
)
from torchcaps.data.dataset import Dataset, check_labels, numbered
from torchcaps.data.reading import open_file, plain_or_packed, read_bytes, to_array
from torchcaps.errors import DataError
from torchcaps.types import Names, StrPath

MAGIC = bytes([0, 0, 8])  # of unsigned bytes; the number of axes follows
BYTES = np.dtype(np.uint8)
STEMS = {"train": "train", "test": "t10k"}


def read_idx(path: StrPath) -> Tensor:
    """The array in an IDX file of unsigned bytes, plain or compressed.

    Args:
        path: of the file.

    Returns:
        uint8, 1 to 4 axes.

    Raises:
        DataError: absent, not IDX, truncated, or longer than its header says.
    """
    with open_file(path, "truncated or no IDX file") as file:
        contents = file.read()
        magic = contents[: len(MAGIC)]
        num_axes = contents[len(MAGIC)]
        if magic != MAGIC or not 1 <= num_axes <= 4:
            raise DataError(
                f"{path}: wrong magic number 0x{contents[:4].hex()}, "
                f"expected 0x{MAGIC.hex()} and 1 to 4 axes (an IDX file of bytes)"
            )
        shape = struct.unpack_from(f">{num_axes}I", contents, 4)
        return torch.from_numpy(to_array(path, contents, 4 + 4 * num_axes, shape, BYTES))


def find_idx(folder: Path, split: str, kind: str) -> Path | None:
    """The file of a kind in a folder, `-images-idx3-ubyte` or `-images.idx3-ubyte`, or None.

    Args:
        folder: the folder.
        split: "train" or "test".
        kind: "images" or "labels".
    """
    return plain_or_packed(folder, f"{STEMS[split]}-{kind}[-.]idx?-ubyte")


def holds_idx(folder: Path) -> bool:
    """Whether `folder` holds at least one IDX file under MNIST's names."""
    return any(find_idx(folder, split, kind) for split in STEMS for kind in ("images", "labels"))


def read_idx_set(
    folder: Path,
    request: ReadRequest,
    name: str,
    classes: Names | None = None,
) -> Dataset:
    """One split of a folder of files named as MNIST's.

    Args:
        folder: the folder.
        request: which split; its size and channels are ignored.
        name: name of the set.
        classes: names of its classes; None takes "0" up to the largest label.

    Raises:
        DataError: a file is absent, damaged, or does not fit the other.
    """
    paths = [find_idx(folder, request.split, kind) for kind in ("images", "labels")]
    if None in paths:
        raise DataError(
            f"{folder}: no {STEMS[request.split]}-{'labels-idx1' if paths[0] else 'images-idx3'}-ubyte "
            "(plain or .gz) in it"
        )
    images, labels = (read_idx(path) for path in paths if path)
    if images.ndim < 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{paths[1]}: expected labels [n] for images of 3 or 4 axes, got {list(labels.shape)} "
            f"for {list(images.shape)}"
        )
    if classes is None:
        training_path = find_idx(folder, "train", "labels")
        training_labels = read_idx(training_path) if training_path else labels
        classes = numbered(str(folder), int(training_labels.max()))
    check_labels(str(paths[1]), labels.long(), classes)
    if images.ndim == 3:
        images = images.unsqueeze(1)
    return Dataset(images, {"label": labels.long()}, classes, name)


register_format(
    "a folder of IDX files",
    holds_idx,
    lambda path, request: read_idx_set(path, request, path.resolve().name),
)


def register_idx(info: DatasetInfo) -> None:
    """Register a named set of four IDX files.

    Files of another named set under the same names are refused.
    """

    @register_dataset(info)
    def read(folder: Path, request: ReadRequest) -> Dataset | None:
        if not holds_idx(folder):
            return None
        labels = find_idx(folder, request.split, "labels")
        if labels:
            file = f"{STEMS[request.split]}-labels-idx1-ubyte"
            digest = hashlib.sha256(read_bytes(labels)).hexdigest()
            for published in map(dataset_info, list_datasets()):
                if published.made_from is None and published.sha256.get(
                    file
                ) == digest != info.sha256.get(file):
                    raise DataError(
                        f"{labels}: these are the labels of {published.name!r}, not of {info.name!r}"
                    )
        return read_idx_set(folder, request, info.name, info.classes)
