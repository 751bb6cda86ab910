"""Training on many image files: memory, speed, and the same weights however they are read.

    python -m benchmarks.files [--files 100000] [--side 224] [--steps 300] [--folder /tmp/files]

Makes JPEG files of ten classes in a folder that is deleted afterwards: a few hundred distinct
pictures, each file with bytes of its own. Trains a small capsule network on them at 32 px, each
time in a new process: with 0 and with 2 workers, killed and resumed, and by two processes of
torchrun; and on the first 1,000 files alone, to tell the memory of the files from that of the
model. Memory is the largest sum over the processes of a run of their proportional set sizes
(Linux), read every 50 ms. The result goes to benchmarks/results/files.json.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from torchcaps.distributed import hard_exit, init
from torchcaps.training import TrainConfig, train
from torchcaps.training.environment import environment

RESULT = Path(__file__).parent / "results" / "files.json"
NUM_CLASSES = 10
PICTURES_PER_CLASS = 30
FEW_FILES = 1000
LAST_STATE = "checkpoints/last.safetensors"
INTERVAL = 0.05  # seconds between two readings of memory
BATCH_SIZE = 32
SETTINGS: dict[str, Any] = {
    "model": "capsnet",
    "model_options": {"channels": 16, "primary_types": 4, "decoder": False},
    "img_size": 32,
    "storage": "disk",
    "batch_size": BATCH_SIZE,
    "epochs": 2,
    "holdout": 0.005,
    # Adam turns the rounding of a gradient near zero into a step of full size, in any training.
    "optimizer": "sgd",
    "lr": 0.01,
    "precision": "fp32",
    "device": "cpu",
    "checkpoint_every": 50,
}


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


def work(options: argparse.Namespace) -> None:
    """Train in this process, which `measure` or torchrun started."""
    torch.set_num_threads(1)
    config = TrainConfig.of(
        **SETTINGS,
        data=str(options.data),
        workers=options.workers,
        epoch_size=options.steps * BATCH_SIZE // SETTINGS["epochs"],
    )
    with init(os.environ, "cpu"):
        train(config, options.work, resume=(options.work / "config.json").exists())
    hard_exit(0)


def measure(
    data: Path, run: Path, options: argparse.Namespace, *, workers: int = 0, world: int = 1
) -> dict[str, Any]:
    """Train in a new process; its time, speed and memory."""
    start = time.perf_counter()
    with started(data, run, options, workers, world) as process, MemoryMeter(process.pid) as meter:
        process.wait()
    if process.returncode:
        raise RuntimeError(f"the training of {run.name} failed")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [row for row in rows if row["kind"] == "epoch"]
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
    line += ["benchmarks.files", "--work", str(run), "--data", str(data)]
    line += ["--workers", str(workers), "--steps", str(options.steps)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(line, env=environ) as process:
        yield process


def kill_and_resume(data: Path, run: Path, options: argparse.Namespace) -> dict[str, Any]:
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

    def __enter__(self) -> MemoryMeter:
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
    report: dict[str, Any] = {"files": options.files, "side": options.side, "steps": options.steps}
    report["bytes"] = write_files(data, options.files, options.side)
    few = folder / "few"
    write_files(few, min(FEW_FILES, options.files), options.side)
    report["few files"] = measure(few, folder / "run-few", options)
    report["0 workers"] = measure(data, folder / "run-0", options)
    report["2 workers"] = measure(data, folder / "run-2", options, workers=2)
    report["killed and resumed"] = kill_and_resume(data, folder / "run-killed", options)
    report["torchrun"] = measure(data, folder / "run-ranks", options, workers=1, world=2)
    for name in ("2", "killed", "ranks"):
        difference = largest_difference(folder / "run-0", folder / f"run-{name}")
        report[f"difference of {name}"] = difference
    return report


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=224, help="of the files in pixels")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/torchcaps-files"))
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work is not None:
        work(options)
    options.folder.mkdir()
    try:
        report = compare(options.folder, options)
    finally:
        shutil.rmtree(options.folder)
    report["load"] = os.getloadavg()
    report["environment"] = environment()
    options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    json.dump(report, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
