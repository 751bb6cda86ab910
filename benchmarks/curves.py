"""What accuracy costs: every system after 15 seconds, one minute and eight minutes of one thread.

    python -m benchmarks.curves --run --root data/ [--data mnist] [--seconds 15]
    python -m benchmarks.curves              how many trainings there are, and how many are missing
    python tools/make_results.py             the tables and the pictures of docs/results.md

A budget is a number of images: what a system trains with in a minute, which the recipes `field-*`
have for each of their rows (measured alone), a quarter of it, and eight times as many. So a slower
machine gives the same figures later. Each training leaves a file below benchmarks/results/curves;
one that was stopped is continued. Eight minutes are for the `NUM_BEST` systems with the fewest
errors after one.
"""

import argparse
import json
import math
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.report import write_json
from torchcaps.reproduction.run import measure_run, slug, train_or_resume
from torchcaps.training import Run, keep_memory, load_recipe
from torchcaps.training.recipes import Recipe, Row

DATA = ("mnist", "fashion-mnist")
SECONDS = (15, 60, 480)
SEEDS = 3
NUM_BEST = 6
LARGEST_EPOCH = 59_000  # images: 60,000 without the 1,000 that are held out
MINUTE = "hour"  # the recipes' budget of a minute a row
UNIFORM = ", uniform coupling"  # the same system without routing, in the name of a row
RESULTS = Path(__file__).parent / "results" / "curves"


class Training(NamedTuple):
    """One of all: a system, for some seconds, from one seed."""

    recipe: Recipe
    row: Row
    seconds: int
    seed: int

    @property
    def path(self) -> Path:
        """Of its result."""
        data = self.recipe.name.removeprefix("field-")
        return RESULTS / data / f"{slug(self.row.name)}-{self.seconds}s-{self.seed}.json"


def trainings(data: str, seconds: int) -> Iterator[Training]:
    """Those of one budget; none of the longest one before all of a minute are there."""
    recipe = load_recipe(f"field-{data}")
    rows = [row for row in recipe.rows_of(MINUTE) if UNIFORM not in row.name]
    if seconds > 60:
        rows = best_rows(recipe, rows)
    for seed in range(SEEDS):
        for row in rows:
            yield Training(recipe, row, seconds, seed)


def best_rows(recipe: Recipe, rows: list[Row]) -> list[Row]:
    """The rows with the fewest errors after a minute; none while one of them has no result."""
    errors = defaultdict(list)
    for row in rows:
        for seed in range(SEEDS):
            path = Training(recipe, row, 60, seed).path
            if not path.exists():
                return []
            errors[row.name].append(json.loads(path.read_text(encoding="utf-8"))["error"])
    return sorted(rows, key=lambda row: statistics.mean(errors[row.name]))[:NUM_BEST]


def train(training: Training, root: str | None, work: Path) -> None:
    """Train with the images of the budget, read the test images once, and write the result."""
    recipe, row, seconds, seed = training
    minute = recipe.resolve(row, MINUTE)
    images = minute.training.epochs * (minute.data.epoch_size or LARGEST_EPOCH) * seconds / 60
    epochs = math.ceil(images / LARGEST_EPOCH)
    sizes = {"epochs": epochs, "epoch_size": round(images / epochs)}
    config = recipe.resolve(row, MINUTE, seed=seed, root=root, **sizes)
    run = Run(work / training.path.parent.name / training.path.stem)
    train_or_resume(run, config)
    result, _ = measure_run(run, config, recipe, row, MINUTE)
    training.path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "system": row.name,
        "seconds": seconds,
        "seed": seed,
        "images": epochs * sizes["epoch_size"],
        "parameters": result.parameters,
        "error": result.figures["error"],
        "training_seconds": round(result.seconds, 1),
        "machine": result.machine,
        "torch": result.torch,
        "settings": config.flat() | {"root": None},
    }
    write_json(training.path, document)
    shutil.rmtree(run.path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true", help="train what is missing")
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--seconds", nargs="+", type=int, choices=SECONDS, default=SECONDS)
    parser.add_argument("--root", help="folder that is searched first for a data set")
    parser.add_argument("--work", type=Path, default=Path("runs/curves"), help="folder of the runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    for seconds in args.seconds:
        for data in args.data:
            planned = list(trainings(data, seconds))
            for training in planned if args.run else ():
                if not training.path.exists():
                    train(training, args.root, args.work)
            there = sum(training.path.exists() for training in planned)
            missing = "" if planned else ", after those of a minute"
            print(f"{data}, {seconds} s: {there} of {len(planned)} trainings{missing}", flush=True)


if __name__ == "__main__":
    main()
