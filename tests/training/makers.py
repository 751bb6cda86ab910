"""A data set that a tiny capsule network learns in a few steps, and a run on it of a second."""

from __future__ import annotations

import json

import numpy as np

from torchcaps.training import TrainConfig

TINY = {"channels": 8, "primary_types": 2}
BYTE_FILES = ("model.safetensors", "checkpoints/last.safetensors")


def write_bars(path, count=60, classes=3, size=(18, 20), seed=0):
    """An .npz of noise; class k has a bright upright bar in the k-th part of the width."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = random.integers(0, 40, (count, *size), dtype=np.uint8)
    bar_width = size[1] // classes
    for image, label in zip(images, labels, strict=True):
        image[:, label * bar_width : (label + 1) * bar_width] += 180
    np.savez(path, images=images, labels=labels)
    return path


def tiny(data, **changes):
    """A run of 6 steps: 2 epochs of 3 batches."""
    settings = {
        "model": "capsnet",
        "model_options": TINY,
        "epochs": 2,
        "batch_size": 16,
        "holdout": 6,
        "shift": 1,
        "checkpoint_every": 2,
        "device": "cpu",
    }
    return TrainConfig.of(data=str(data), **(settings | changes))


def stop_after(step):
    """A `should_stop` that says so once, after this many steps."""
    steps = iter(range(1, 10_000))
    return lambda: next(steps) == step


def contents(folder):
    """The reproducible part of a run: files byte for byte, and metrics without their speed."""
    files = {name: (folder / name).read_bytes() for name in BYTE_FILES}
    rows = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        row.pop("images_per_second", None)
        rows.append(row)
    return files | {"metrics": rows}


def edit_config(folder, **changes):
    """Change entries of the configuration of a run."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def leftovers(folder):
    """Files that an interrupted write left."""
    return [file for file in folder.rglob(".*") if file.name != ".lock"]
