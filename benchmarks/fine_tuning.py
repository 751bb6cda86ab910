"""Twenty images of each of five classes: from scratch, and from a network trained on the other five.

    python -m benchmarks.fine_tuning mnist 0,1,2,3,4 --root data/ [--seeds 3] [--init capsnet_small]

The network is capsnet_small. Its first training sees 12,000 images of the classes that are named.
Each seed then draws 20 training images of each of the other classes; both rows train on the same
images, in the same order, for 100 steps. The test images are read once by each training.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import torch

import torchcaps as tc
from torchcaps.data import Dataset, few_labels, load_dataset

MODEL = "capsnet_small"
PER_CLASS = 20
SOURCE_SETTINGS: dict[str, Any] = {"epochs": 1, "epoch_size": 12_000, "batch_size": 64, "shift": 1}
TARGET_SETTINGS: dict[str, Any] = {"epochs": 20, "batch_size": 20, "shift": 1}


def select_classes(images: Dataset, classes: Sequence[int]) -> Dataset:
    """The images of some classes, whose labels are counted from 0."""
    is_selected = torch.isin(images.labels, torch.tensor(classes))
    subset = images.subset(is_selected.nonzero().flatten())
    labels = torch.tensor([classes.index(label) for label in subset.labels.tolist()])
    names = tuple(images.classes[label] for label in classes)
    return Dataset(subset.images, {"label": labels}, names, images.name)


def create(seed: int, num_classes: int) -> torch.nn.Module:
    """A fresh network."""
    generator = torch.Generator().manual_seed(seed)
    return tc.create_model(MODEL, num_classes=num_classes, generator=generator)


def train_source(train: Dataset, test: Dataset, folder: Path) -> float:
    """Save a network that is trained on the first classes; return its accuracy."""
    model, _ = tc.fit(create(0, train.num_classes), train, **SOURCE_SETTINGS)
    tc.save(model, folder)
    return float(tc.evaluate(model, test).to_dict()["accuracy"])


def train_target(train: Dataset, test: Dataset, seed: int, init: str | None) -> float:
    """Accuracy of a network that is trained on few images; they also choose its epoch."""
    few = train.subset(few_labels(train.labels, PER_CLASS, seed))
    model = create(seed, few.num_classes)
    tc.fit(model, few, validation=few, init=init, seed=seed, **TARGET_SETTINGS)
    return float(tc.evaluate(model, test).to_dict()["accuracy"])


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="name of a data set")
    parser.add_argument("classes", help="numbers of the classes of the first training")
    parser.add_argument("--root", help="where the data set is looked for first")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--init", help="in place of the first training: a run, file or model")
    options = parser.parse_args(arguments)

    sets = {split: load_dataset(options.data, split, options.root) for split in ("train", "test")}
    first = [int(number) for number in options.classes.split(",")]
    others = [label for label in range(sets["train"].num_classes) if label not in first]
    source_train, source_test = (select_classes(images, first) for images in sets.values())
    train, test = (select_classes(images, others) for images in sets.values())
    with TemporaryDirectory() as folder:
        init = options.init
        if init is None:
            init = folder
            accuracy = train_source(source_train, source_test, Path(folder))
            print(json.dumps({"first training": accuracy}), flush=True)
        for name, weights in (("from scratch", None), ("fine-tuned", init)):
            accuracies = [train_target(train, test, seed, weights) for seed in range(options.seeds)]
            spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
            row = {"row": name, "each": accuracies, "mean": mean(accuracies), "std": spread}
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
