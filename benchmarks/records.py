"""Records: how well a capsule network classifies the test images within so many seconds, or so many parameters.

    python -m benchmarks.records mnist-25s --root data/ [--runs 5] [--threads 2]
    python -m benchmarks.records mnist-25s --search --root data/        # held-out images, never the test images

A record is a file benchmarks/records/NAME.toml: its claim (mean test accuracy; seconds, parameters or both) and the
settings of the run.
The clock is the wall's, over the steps of training with all that they need (order, augmentation, optimizer);
validation after epochs is left out. Each run reads the test images once. The log goes to benchmarks/records/NAME.json,
a run at a time; runs with other settings are another record's and are refused. A record counts when every run is within
the seconds and the parameters, and the mean of all runs is above the accuracy with p < 0.01 (one-sided t-test over
runs).
"""

import argparse
import json
import math
import sys
import time
import tomllib
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import torchcaps
from benchmarks.report import machine, write_json
from torchcaps.data import Dataset, load_dataset
from torchcaps.training import Callback, TrainConfig, Trainer, keep_memory

FOLDER = Path(__file__).parent / "records"
LEVEL = 0.01


class Clock(Callback):
    """Seconds of training: from the first step of an epoch to its last one, batches included."""

    def __init__(self) -> None:
        self.seconds, self.since = 0.0, time.perf_counter()

    def on_step(self, trainer: Trainer, losses: dict[str, float]) -> None:
        """A step is done."""
        now = time.perf_counter()
        self.seconds += now - self.since
        self.since = now

    def on_epoch(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """An epoch was validated, which does not count."""
        self.since = time.perf_counter()


def run(record: dict[str, Any], images: Dataset, tested: Dataset, seed: int) -> dict[str, Any]:
    """Train once and classify the images of `tested` once."""
    config = TrainConfig.of(**record["run"], seed=seed)
    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "num_classes": len(images.classes),
        "in_chans": images.in_chans,
        "img_size": images.img_size,
    }
    model = torchcaps.create_model(config.model.name, **options, **config.model.options)
    clock = Clock()
    model, history = torchcaps.fit(model, images, config=config, callbacks=[clock])
    return {
        "seed": seed,
        "seconds": round(clock.seconds, 2),
        "accuracy": accuracy(model, tested, record.get("views", 0)),
        "validation": history[-1]["val_accuracy"],
        "images": sum(row["images"] for row in history),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def accuracy(model: torch.nn.Module, tested: Dataset, views: int) -> float:
    """Share of images that are classified as labeled, by the sum of activations over shifts of `views` pixels.

    An image is seen as it is and moved up, down, left and right; 0 is as it is only.
    """
    moves = [(0, 0)] + [
        (y * views, x * views) for y, x in ((-1, 0), (1, 0), (0, -1), (0, 1)) if views
    ]
    right = 0
    with torch.inference_mode():
        for pictures, labels in zip(
            tested.images.split(500), tested.labels.split(500), strict=True
        ):
            pictures = pictures.float() / (255 if pictures.dtype == torch.uint8 else 1)
            activations = sum(model(torch.roll(pictures, move, (2, 3))) for move in moves)
            right += int((activations.argmax(1) == labels).sum())
    return right / len(tested)


def verdict(claim: dict[str, float], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation, the test's p, and whether the record counts."""
    from scipy.stats import t as student

    accuracies = [one["accuracy"] for one in runs]
    slowest = max(one["seconds"] for one in runs)
    within = all(
        one[quantity] <= claim.get(quantity, math.inf)
        for one in runs
        for quantity in ("seconds", "parameters")
    )
    if len(accuracies) < 2:
        return {"runs": len(accuracies), "mean": accuracies[0], "slowest": slowest, "counts": False}
    spread = stdev(accuracies)
    distance = (mean(accuracies) - claim["accuracy"]) / max(
        spread / math.sqrt(len(accuracies)), 1e-12
    )
    p = float(student.sf(distance, len(accuracies) - 1))
    counts = within and p < LEVEL
    return {
        "runs": len(accuracies),
        "mean": mean(accuracies),
        "std": spread,
        "slowest": slowest,
        "p": p,
        "counts": counts,
    }


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of a file in benchmarks/records/")
    parser.add_argument("--root", help="where the data set is looked for first")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--search", action="store_true", help="test on held-out training images; nothing is written"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    keep_memory()
    record = tomllib.loads((FOLDER / f"{options.name}.toml").read_text(encoding="utf-8"))
    training_images = load_dataset(record["data"], "train", root=options.root)
    if options.search:
        order = torch.randperm(len(training_images), generator=torch.Generator().manual_seed(0))
        images, tested = (
            training_images.subset(order[10000:].tolist()),
            training_images.subset(order[:10000].tolist()),
        )
    else:
        images, tested = training_images, load_dataset(record["data"], "test", root=options.root)
    log, runs = FOLDER / f"{options.name}.json", []
    if log.exists() and not options.search:
        previous = json.loads(log.read_text(encoding="utf-8"))
        if (previous["record"], previous["threads"]) != (record, options.threads):
            print(f"{log}: was written with other settings; remove it first", file=sys.stderr)
            return 1
        runs = previous["runs"]
    for seed in range(len(runs), options.runs):
        runs.append(run(record, images, tested, seed))
        judgment = verdict(record["claim"], runs)
        print(json.dumps(runs[-1]), json.dumps(judgment), flush=True)
        if not options.search:
            facts = {"record": record, "threads": options.threads, "environment": machine()}
            write_json(log, {**facts, "verdict": judgment, "runs": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
