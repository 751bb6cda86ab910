"""Small files for the tests of the data room, and where the real data sets are."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def needs_shared(*folders):
    """Mark and skip a test unless these folders of real data are there."""
    missing = [name for name in folders if not (SHARED / name).is_dir()]
    skip = pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)} in the shared data folder {SHARED}")
    return lambda test: pytest.mark.needs_data(skip(test))


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_set(folder, train=20, test=10, shape=(6, 5), classes=10, gz=False):
    """The four files of MNIST's layout, with labels 0, 1, …; returns the arrays by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    arrays = {}
    for stem, count in (("train", train), ("t10k", test)):
        arrays[f"{stem}-images-idx3-ubyte"] = random.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"{stem}-labels-idx1-ubyte"] = (np.arange(count) % classes).astype(np.uint8)
    for name, array in arrays.items():
        data = idx_bytes(array)
        (folder / (f"{name}.gz" if gz else name)).write_bytes(gzip.compress(data) if gz else data)
    return arrays


def picture(size=(8, 6), colour=True, seed=0):
    """A random picture of (height, width)."""
    shape = (*size, 3) if colour else size
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def write_folder(root, classes=("cat", "dog"), count=5, size=(8, 6), colour=True, levels=("",)):
    """`count` pictures per class, each its own, under `root/<level>/<class>/`."""
    for level in levels:
        for c, name in enumerate(classes):
            (root / level / name).mkdir(parents=True)
            for i in range(count):
                picture(size, colour, seed=1000 * c + i).save(root / level / name / f"{i}.png")
    return Path(root)
