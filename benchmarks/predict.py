"""Prediction of many image files: memory and speed of `torchcaps predict`.

Makes JPEG files of 200 distinct pictures in ten folders (the others are hard links), which are
deleted afterwards, and predicts 1 %, 10 % and all of them with the network of the package, each
time in a new process; and 10 % with two workers. Memory is the largest resident set of the process
(workers have their own).
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.report import Row, finish, make_parser, parse, positive, run

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


def measure(words: Sequence[str]) -> Row:
    """Run `torchcaps predict` to its end; its time and memory."""
    begin = time.perf_counter()
    line = [sys.executable, "-m", "torchcaps", "predict", *words, "--csv"]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise ValueError(f"predict {' '.join(words)}: failed")
    seconds = time.perf_counter() - begin
    return {"seconds": round(seconds, 1), "peak MB": round(usage.ru_maxrss / 1000)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "predict", threads=1)
    parser.add_argument("--files", type=positive, default=100_000)
    parser.add_argument("--side", type=positive, default=224, help="of the files in pixels")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/torchcaps-predict"))
    options = parse(parser, arguments)
    options.folder.mkdir()
    rows: list[Row] = []
    try:
        write_files(options.folder, options.files, options.side)
        for pattern, share, workers in (
            ("files/*/*00.jpg", 100, 0),
            ("files/*/*0.jpg", 10, 0),
            ("files/*/*0.jpg", 10, 2),
            ("files", 1, 0),
        ):
            words = [str(options.folder / pattern), "--threads", str(options.threads)]
            words += ["--workers", str(workers)]
            files = options.files // share
            rows.append({"files": files, "workers": workers, **measure(words)})
    finally:
        shutil.rmtree(options.folder)
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)
