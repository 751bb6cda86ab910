"""Training on many image files: memory, speed, and the same weights however they are read.

Makes JPEG files of ten classes in a folder that is deleted afterwards: a few hundred distinct
pictures, each file with bytes of its own. Trains a small capsule network on them at 32 px, each
time in a new process: with 0 and with 2 workers, killed and resumed, and by two processes of
torchrun; and on the first 1,000 files alone, to tell the memory of the files from that of the
model. Memory is the largest sum over the processes of a run of their proportional set sizes
(Linux), read every 50 ms.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.torch import load_file

from benchmarks.report import Row, finish, make_parser, parse, positive, run
from torchcaps.training import Run

NUM_CLASSES = 10
PICTURES_PER_CLASS = 30
FEW_FILES = 1000
LAST_STATE = "checkpoints/last.safetensors"
INTERVAL = 0.05  # seconds between two readings of memory
BATCH_SIZE = 32
EPOCHS = 2
# Adam turns the rounding of a gradient near zero into a step of full size, in any training.
SETTINGS = """
    --option channels=16 --option primary_types=4 --option decoder=false --img-size 32
    --storage disk --holdout 0.005 --optimizer sgd --lr 0.01 --precision fp32 --device cpu
    --checkpoint-every 50 --threads 1
"""


def make_picture(label: int, index: int, side: int) -> bytes:
    """A JPEG picture of a class: a smooth pattern of its own frequency with noise."""
    random = np.random.default_rng(1000 * label + index)
    rows, columns = np.mgrid[0:side, 0:side] / side
    phases = random.uniform(0, 2 * np.pi, 3)
    waves = [np.sin(2 * np.pi * (label + 1) * (rows + columns * shift) + shift) for shift in phases]
    pixels = 128 + 80 * np.stack(waves, axis=2) + random.normal(0, 12, (side, side, 3))
    stream = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def write_files(folder: Path, num_files: int, side: int) -> int:
    """Write JPEG files of all classes; returns their bytes. Each ends with its number."""
    num_bytes = 0
    for label in range(NUM_CLASSES):
        class_folder = folder / f"class-{label}"
        class_folder.mkdir(parents=True)
        pictures = [make_picture(label, index, side) for index in range(PICTURES_PER_CLASS)]
        for number in range(num_files // NUM_CLASSES):
            content = pictures[number % PICTURES_PER_CLASS] + number.to_bytes(8, "big")
            (class_folder / f"{number:06}.jpg").write_bytes(content)
            num_bytes += len(content)
    return num_bytes


def measure(
    data: Path, run: Path, options: argparse.Namespace, *, workers: int = 0, world: int = 1
) -> Row:
    """Train in a new process; its time, speed and memory."""
    start = time.perf_counter()
    with started(data, run, options, workers, world) as process, MemoryMeter(process.pid) as meter:
        process.wait()
    if process.returncode:
        raise RuntimeError(f"the training of {run.name} failed")
    epochs = Run(run).epochs
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "images_per_second": epochs[-1]["images_per_second"],
        "val_accuracy": epochs[-1]["val_accuracy"],
        "peak_mb": round(meter.peak / 1e6),
    }


@contextmanager
def started(
    data: Path, run: Path, options: argparse.Namespace, workers: int, world: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A training in a process of its own, or in several of torchrun."""
    line = [sys.executable, "-m"]
    if world > 1:
        line += ["torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m"]
    line += ["torchcaps", "train", "capsnet", "--data", str(data), *SETTINGS.split()]
    line += ["--batch-size", str(BATCH_SIZE), "--epochs", str(EPOCHS)]
    line += ["--epoch-size", str(options.steps * BATCH_SIZE // EPOCHS)]
    line += ["--workers", str(workers), "--output", str(run), *["--resume"] * run.exists()]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(line, env=environ, stdout=subprocess.DEVNULL) as process:
        yield process


def kill_and_resume(data: Path, run: Path, options: argparse.Namespace) -> Row:
    """A training with two workers, killed after half of its steps and resumed at once."""
    metrics = run / "metrics.jsonl"
    with started(data, run, options, workers=2, world=1) as process:
        while not (metrics.exists() and '"kind": "epoch"' in metrics.read_text()):
            if process.poll() is not None:
                raise RuntimeError("the training ended before it was killed")
            time.sleep(INTERVAL)
        process.kill()
    return measure(data, run, options, workers=2)


class MemoryMeter:
    """The largest memory of a process and its descendants, in bytes, while a block runs."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.peak = 0
        self.is_done = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "MemoryMeter":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.is_done.wait(INTERVAL):
            self.peak = max(self.peak, sum(map(proportional_memory, family(self.process))))


def family(process: int) -> Iterator[int]:
    """A process and its descendants."""
    yield process
    with suppress(OSError):  # it ended meanwhile
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def proportional_memory(process: int) -> int:
    """Bytes of a process; what it shares with others counts by its part."""
    with suppress(OSError, IndexError):
        smaps = Path(f"/proc/{process}/smaps_rollup").read_text()
        return 1024 * int(smaps.split("\nPss:")[1].split()[0])
    return 0


def largest_difference(first: Path, second: Path) -> float:
    """The largest difference of a weight between the last states of two runs."""
    weights = load_file(first / LAST_STATE)
    others = load_file(second / LAST_STATE)
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the files, train in every way, and compare."""
    data = folder / "images"
    few = folder / "few"
    num_bytes = write_files(data, options.files, options.side)
    write_files(few, min(FEW_FILES, options.files), options.side)
    runs = {
        "few files": measure(few, folder / "few files", options),
        "0 workers": measure(data, folder / "0 workers", options),
        "2 workers": measure(data, folder / "2 workers", options, workers=2),
        "killed and resumed": kill_and_resume(data, folder / "killed and resumed", options),
        "torchrun": measure(data, folder / "torchrun", options, workers=1, world=2),
    }
    for name in ("2 workers", "killed and resumed", "torchrun"):
        runs[name]["difference"] = largest_difference(folder / "0 workers", folder / name)
    return {"bytes": num_bytes, "rows": [{"run": name, **row} for name, row in runs.items()]}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "files", threads=1)
    parser.add_argument("--files", type=positive, default=100_000)
    parser.add_argument("--side", type=positive, default=224, help="of the files in pixels")
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/torchcaps-files"))
    options = parse(parser, arguments)
    options.folder.mkdir()
    try:
        figures = compare(options.folder, options)
    finally:
        shutil.rmtree(options.folder)
    return finish(options, figures)


if __name__ == "__main__":
    run(main)
