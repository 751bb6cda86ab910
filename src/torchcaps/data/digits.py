"""The rule by which the embedded digits are taken from MNIST, and the bytes it gives."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.idx import STEMS, UNSIGNED_BYTE, read_idx_set

FOLDER = Path(__file__).parent / "embedded"
PER_CLASS = {"train": 600, "test": 100}


def choose_digits(labels: Tensor, per_class: int) -> Tensor:
    """Which images are embedded: from each class, `per_class` of them, evenly spaced in file order.

    Of the n images of a class, in the order of the file, those at positions floor(i·n / per_class) for
    i = 0 … per_class - 1. Even spacing reaches every writer, and both halves of the test file, which differ.

    Args:
        labels: `[n]`, the labels in file order.
        per_class: how many to take from each class.

    Returns:
        `[classes · per_class]` indices, ascending: the order of the file is kept.
    """
    chosen = []
    for label in labels.unique():
        places = (labels == label).nonzero().flatten()
        chosen.append(places[torch.arange(per_class) * len(places) // per_class])
    return torch.cat(chosen).sort().values


def digits_files(mnist: Path) -> dict[str, bytes]:
    """The four IDX files of the embedded digits, uncompressed, by name, made from MNIST's own four.

    Args:
        mnist: folder of the original files, plain or .gz.

    Raises:
        DataError: a file is absent or damaged.
    """
    files = {}
    for split, per_class in PER_CLASS.items():
        whole = read_idx_set(mnist, split, "mnist")
        chosen = choose_digits(whole.labels, per_class)
        files[f"{STEMS[split]}-images-idx3-ubyte"] = _idx(whole.images[chosen, 0])
        files[f"{STEMS[split]}-labels-idx1-ubyte"] = _idx(whole.labels[chosen].to(torch.uint8))
    return files


def _idx(array: Tensor) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, UNSIGNED_BYTE, array.ndim, *array.shape)
    return header + array.contiguous().numpy().tobytes()
