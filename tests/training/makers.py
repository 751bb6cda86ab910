"""A data set that a tiny capsule network learns in a few steps, and a run on it that takes a second."""

from __future__ import annotations

import json

import numpy as np

from torchcaps.training import TrainConfig

TINY = {"channels": 8, "primary_types": 2}


def write_bars(path, count=60, classes=3, size=(18, 20), seed=0):
    """An .npz of noise, in which an image of class k has a bright upright bar in the k-th part of its width."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = random.integers(0, 40, (count, *size), dtype=np.uint8)
    wide = size[1] // classes
    for image, label in zip(images, labels, strict=True):
        image[:, label * wide : (label + 1) * wide] += 180
    np.savez(path, images=images, labels=labels)
    return path


def tiny(data, **changes):
    """A run of 6 steps: 2 epochs of 3 batches."""
    settings = {
        "model": "capsnet",
        "epochs": 2,
        "batch_size": 16,
        "holdout": 6,
        "shift": 1,
        "checkpoint_every": 2,
    }
    settings["device"] = "cpu"
    return TrainConfig.of(data=str(data), model_options=TINY, **(settings | changes))


def contents(folder):
    """Every file of a run that must come out the same, byte for byte; of the metrics all but the speed."""
    files = {
        file: (folder / file).read_bytes()
        for file in ("model.safetensors", "checkpoints/last.safetensors")
    }
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return files | {
        "metrics": [{k: v for k, v in row.items() if k != "images_per_second"} for row in rows]
    }


def left_behind(folder):
    """Files that an interrupted write left."""
    return [file for file in folder.rglob(".*") if file.name != ".lock"]
