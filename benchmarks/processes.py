"""Images per second of one process and of several, of one thread each, on a training step of CapsNet.

    python -m benchmarks.processes [--world 2] [--steps 10] [--rounds 5] [--batch-size 128]

One starts after the other, in turn, so that what else the machine does meets both; the medians are reported. The batch
is the same in all, as in training. The result goes to benchmarks/results/processes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import torchcaps
from torchcaps.data import load_dataset
from torchcaps.distributed import hard_exit, init
from torchcaps.training import Callback, Trainer, fit
from torchcaps.training.environment import environment

RESULT = Path(__file__).parent / "results" / "processes.json"
WARM = 3  # steps that do not count


class Clock(Callback):
    """Notes when each step is done."""

    def __init__(self, times: list[float]) -> None:
        self.times = times

    def on_step(self, trainer: Trainer, losses: dict[str, float]) -> None:
        self.times.append(time.perf_counter())


def work(output: Path, steps: int, size: int) -> None:
    """Train in this process, one of those that torchrun started; the first one writes the images per second."""
    torch.set_num_threads(1)
    images, times = load_dataset("digits", "train"), [time.perf_counter()]
    with init(os.environ, "cpu") as ranks:
        model = torchcaps.create_model("capsnet", img_size=images.img_size, in_chans=1)
        fit(
            model,
            images,
            epochs=1,
            epoch_size=(WARM + steps) * size,
            batch_size=size,
            holdout=10,
            callbacks=[Clock(times)],
        )
        if ranks.is_main:
            seconds = [
                after - before
                for before, after in zip(times[WARM:], times[WARM + 1 :], strict=False)
            ]
            output.write_text(json.dumps(size / median(seconds)), encoding="utf-8")
    hard_exit(0)


def measure(world: int, options: argparse.Namespace) -> float:
    """Images per second of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "speed.json"
        line = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={world}",
            "-m",
        ]
        line += [
            "benchmarks.processes",
            "--steps",
            str(options.steps),
            "--batch-size",
            str(options.batch_size),
        ]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([*line, "--work", str(output)], env=environ, check=True, capture_output=True)
        return float(json.loads(output.read_text(encoding="utf-8")))


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", type=int, default=2, help="processes beside one")
    parser.add_argument(
        "--steps", type=int, default=10, help="of each start, beside 3 that do not count"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work is not None:
        work(options.work, options.steps, options.batch_size)
    rounds = [
        {world: measure(world, options) for world in (1, options.world)}
        for _ in range(options.rounds)
    ]
    report: dict[str, Any] = {"batch_size": options.batch_size, "load": os.getloadavg()}
    for world in (1, options.world):
        speeds = [one[world] for one in rounds]
        report[f"{world} processes"] = {"images_per_second": median(speeds), "rounds": speeds}
    report["speedup"] = median(one[options.world] / one[1] for one in rounds)
    report["environment"] = environment()
    RESULT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    json.dump(report, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
