"""Rebuild the embedded digits from MNIST's four original files.

    python tools/make_digits.py --source FOLDER_OF_MNIST

The rule is `torchcaps.data.sets.digits.choose_digits`. The files come out the same byte for byte wherever zlib is the
usual one; their decompressed bytes are the same everywhere, and are what the data set's SHA-256 speaks of.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
from pathlib import Path

from torchcaps.data.budget import read_bytes
from torchcaps.data.sets.digits import FOLDER, digits_files
from torchcaps.data.sets.mnist import INFO


def check_source(source: Path) -> None:
    for name, expected in INFO.sha256.items():
        path = next((p for p in (source / name, source / f"{name}.gz") if p.exists()), None)
        if path is None or hashlib.sha256(read_bytes(path)).hexdigest() != expected:
            raise SystemExit(f"{source}: {name} is not there, or is not MNIST's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="folder of MNIST's four IDX files, plain or .gz")
    parser.add_argument("--output", type=Path, default=FOLDER, help="where to write (default: the package)")
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
