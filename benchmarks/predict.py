"""Prediction of many image files: memory and speed of `torchcaps predict`.

    python -m benchmarks.predict [--files 100000] [--side 224] [--folder /tmp/predict]

Makes JPEG files of 200 distinct pictures in ten folders (the others are hard links), which are
deleted afterwards, and predicts 1 %, 10 % and all of them with the network of the package, each
time in a new process; and 10 % with two workers. Memory is the largest resident set of the process
(workers have their own). The result goes to benchmarks/results/predict.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from torchcaps.bench.timing import machine
from torchcaps.cli.console import print_table

RESULT = Path(__file__).parent / "results" / "predict.json"
NUM_PICTURES = 200
NUM_FOLDERS = 10


def write_files(folder: Path, num_files: int, side: int) -> None:
    """Write the pictures, and link the other files to them."""
    random = np.random.default_rng(0)
    pictures = folder / "pictures"
    pictures.mkdir(parents=True)
    for index in range(NUM_PICTURES):
        coarse = random.integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        picture.save(pictures / f"{index}.jpg", quality=85)
    files = folder / "files"
    for number in range(num_files):
        path = files / str(number % NUM_FOLDERS) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(pictures / f"{number % NUM_PICTURES}.jpg", path)


def start(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """A command of the package in a process of its own."""
    line = [sys.executable, "-m", "torchcaps", "predict", *words, "--csv"]
    with open(folder / "stdout.csv", "wb") as stdout:
        return subprocess.Popen(line, stdout=stdout, stderr=subprocess.DEVNULL)


def measure(words: list[str], folder: Path) -> dict[str, Any]:
    """Run a command to its end; its time and memory."""
    begin = time.perf_counter()
    process = start(words, folder)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"predict {' '.join(words)} failed")
    seconds = time.perf_counter() - begin
    return {"seconds": round(seconds, 1), "peak_mb": round(usage.ru_maxrss / 1000)}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=224, help="of the files in pixels")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/torchcaps-predict"))
    options = parser.parse_args()
    options.folder.mkdir()
    try:
        write_files(options.folder, options.files, options.side)
        everything = str(options.folder / "files")
        part = f"{everything}/*/*0.jpg"  # 10 %
        flags = ["--threads", str(options.threads)]
        num_part = options.files // 10
        rows: dict[str, dict[str, Any]] = {
            f"{num_part // 10:,} files": measure(
                [f"{everything}/*/*00.jpg", *flags], options.folder
            ),
            f"{num_part:,} files": measure([part, *flags], options.folder),
            "with 2 workers": measure([part, *flags, "--workers", "2"], options.folder),
            f"{options.files:,} files": measure([everything, *flags], options.folder),
        }
    finally:
        shutil.rmtree(options.folder)
    document = {
        "machine": machine(),
        "load": os.getloadavg(),
        "files": options.files,
        "side": options.side,
        "rows": rows,
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    table = [["", "seconds", "peak MB"]]
    for name, row in rows.items():
        table.append([name, f"{row['seconds']:.1f}", str(row["peak_mb"])])
    print_table(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
