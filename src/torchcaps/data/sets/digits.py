"""The embedded digits: a class-balanced subset of MNIST that comes with the package and needs no download."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data._registry import register_dataset
from torchcaps.data.dataset import ImageSet
from torchcaps.data.idx import STEMS, UNSIGNED_BYTE, read_idx_set
from torchcaps.data.sets.mnist import INFO as MNIST

FOLDER = Path(__file__).parents[1] / "embedded"
PER_CLASS = {"train": 600, "test": 100}
INFO = replace(
    MNIST,
    name="digits",
    title="6,000 + 1,000 digits of MNIST, in the package",
    train=6_000,
    test=1_000,
    sha256={
        "train-images-idx3-ubyte": "276107be590759c3f0926df722c4de39cdda1227591a1ecd47a184690a8ebf06",
        "train-labels-idx1-ubyte": "68a5c4f7f395a30b3c9c1866520c6eee961a3d0347446a56e17e4f65c8dfbbc6",
        "t10k-images-idx3-ubyte": "08212e895b958225f959f761e33da53e35faa44cebc75e329dcaa7b477fbddc0",
        "t10k-labels-idx1-ubyte": "a8455fc3bf4f53a12fd7fac83ac10b16241e37d6ab97bdfad5c2ebdffb543bea",
    },
    sources=(),
    embedded=FOLDER,
)


@register_dataset(INFO)
def _read(folder: Path, split: str) -> ImageSet | None:
    """Any folder but the package's own is not theirs."""
    return read_idx_set(folder, split, INFO.name, INFO.classes) if folder == FOLDER else None


def choose_digits(labels: Tensor, per_class: int) -> Tensor:
    """Which images are embedded, as `[classes · per_class]` ascending indices into `labels`, `[n]` in file order.

    Of the n images of a class those at positions floor(i·n / per_class) for i = 0 … per_class - 1. Even spacing reaches
    every writer, and both halves of the test file, which differ.
    """
    chosen = []
    for label in labels.unique():
        places = (labels == label).nonzero().flatten()
        chosen.append(places[torch.arange(per_class) * len(places) // per_class])
    return torch.cat(chosen).sort().values


def digits_files(mnist: Path) -> dict[str, bytes]:
    """The four IDX files of the embedded digits, uncompressed, by name, made from the folder of MNIST's own four."""
    files = {}
    for split, per_class in PER_CLASS.items():
        whole = read_idx_set(mnist, split, "mnist")
        chosen = choose_digits(whole.labels, per_class)
        files[f"{STEMS[split]}-images-idx3-ubyte"] = _idx(whole.images[chosen, 0])
        files[f"{STEMS[split]}-labels-idx1-ubyte"] = _idx(whole.labels[chosen].to(torch.uint8))
    return files


def _idx(array: Tensor) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, UNSIGNED_BYTE, array.ndim, *array.shape)
    return header + array.numpy().tobytes()
