"""Rebuild the embedded digits from MNIST's four original files.

    python tools/make_digits.py --source FOLDER_OF_MNIST

The rule is that of `choose_digits`. The files come out the same byte for byte wherever zlib is the
usual one; their decompressed bytes are the same everywhere, and are what the data set's SHA-256 speaks of.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import struct
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data import ReadRequest
from torchcaps.data.idx import MAGIC, STEMS, read_idx_set
from torchcaps.data.reading import read_bytes
from torchcaps.data.sets.mnist import FOLDER, INFO

PER_CLASS = {"train": 600, "test": 100}


def check_source(source: Path) -> None:
    for name, expected in INFO.sha256.items():
        path = next((p for p in (source / name, source / f"{name}.gz") if p.exists()), None)
        if path is None or hashlib.sha256(read_bytes(path)).hexdigest() != expected:
            raise SystemExit(f"{source}: {name} is not there, or is not MNIST's")


def choose_digits(labels: Tensor, per_class: int) -> Tensor:
    """Which images are embedded, as `[classes · per_class]` ascending indices into `labels`, `[n]` in file order.

    Of the n images of a class those at positions floor(i·n / per_class) for i = 0 … per_class - 1. Even spacing reaches
    every writer, and both halves of the test file, which differ.
    """
    selections = []
    for label in labels.unique():
        places = (labels == label).nonzero().flatten()
        selections.append(places[torch.arange(per_class) * len(places) // per_class])
    return torch.cat(selections).sort().values


def digits_files(mnist: Path) -> dict[str, bytes]:
    """The four IDX files of the embedded digits, uncompressed, by name, made from the folder of MNIST's own four."""
    files = {}
    for split, per_class in PER_CLASS.items():
        full_set = read_idx_set(mnist, ReadRequest(split), "mnist")
        indices = choose_digits(full_set.labels, per_class)
        files[f"{STEMS[split]}-images-idx3-ubyte"] = _idx(full_set.images[indices, 0])
        files[f"{STEMS[split]}-labels-idx1-ubyte"] = _idx(full_set.labels[indices].to(torch.uint8))
    return files


def _idx(array: Tensor) -> bytes:
    header = MAGIC + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape)
    return header + array.numpy().tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--source", type=Path, required=True, help="folder of MNIST's four IDX files, plain or .gz"
    )
    parser.add_argument(
        "--output", type=Path, default=FOLDER, help="where to write (default: the package)"
    )
    options = parser.parse_args()
    check_source(options.source)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, data in digits_files(options.source).items():
        path = options.output / f"{name}.gz"
        # No file name and no date in the gzip header: the same input gives the same file.
        with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
            packed.write(data)
        print(f"{path.name}  {path.stat().st_size:>9,} bytes  {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
