"""A data set that a tiny capsule network learns in a few steps, and a run on it of a second."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from torchcaps.models import create_model
from torchcaps.testing import seeded
from torchcaps.training import Callback, Interrupted, StopWhen, TrainConfig, train

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


def tiny_capsnet(**options):
    """The network of such a run, of a fixed seed."""
    sizes = {"num_classes": 3, "img_size": (18, 20)}
    return create_model("capsnet", generator=seeded(), **sizes, **TINY, **options)


def stop_after(count):
    """A callback that stops a training after this many steps."""
    steps = iter(range(1, 10_000))
    return StopWhen(lambda: next(steps) == count)


class PowerCut(BaseException):
    """An end that no handler of errors catches."""


class Watch(Callback):
    """Keeps what a training tells: numbers of steps, rows of epochs, and sentences.

    The functions are called with the trainer and the losses or the row.
    """

    def __init__(self, on_step=None, on_epoch=None):
        self.functions = on_step, on_epoch
        self.steps = []
        self.rows = []
        self.messages = []

    def on_start(self, trainer):
        self.messages = trainer.messages

    def on_step(self, trainer, losses):
        self.steps.append(losses["step"])
        if self.functions[0] is not None:
            self.functions[0](trainer, losses)

    def on_epoch(self, trainer, row):
        self.rows.append(row)
        if self.functions[1] is not None:
            self.functions[1](trainer, row)


def train_until(step, config, folder):
    """Train, and stop after this step."""
    with pytest.raises(Interrupted):
        train(config, folder, callbacks=[stop_after(step)])


def resume(folder, **arguments):
    """Continue a training with the settings that it was started with."""
    return train(TrainConfig(), folder, resume=True, **arguments)


def contents(folder):
    """The reproducible part of a run: files byte for byte, and metrics without their speed."""
    files = {name: (folder / name).read_bytes() for name in BYTE_FILES}
    rows = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        row.pop("images_per_second", None)
        rows.append(row)
    return files | {"metrics": rows}


def assert_resumes(config, folder, step):
    """A training that stops after `step` and goes on gives the bytes of an uninterrupted run.

    Returns the uninterrupted run.
    """
    run = train(config, folder / "run")
    torch.manual_seed(1)  # the state of the process has no effect, and stays
    before = torch.get_rng_state()
    with pytest.raises(Interrupted, match=f"stopped after step {step} of "):
        train(config, folder / "stopped", callbacks=[stop_after(step)])
    resume(folder / "stopped")
    assert contents(folder / "stopped") == contents(run.path), "the resumed run differs"
    assert torch.equal(torch.get_rng_state(), before)
    return run


def count_rows(run):
    """Rows of the metrics; -1 before there is a run."""
    if not (run / "config.json").exists():
        return -1
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def edit_config(folder, **changes):
    """Change entries of the configuration of a run."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def leftovers(folder):
    """Files that an interrupted write left."""
    return [file for file in folder.rglob(".*") if file.name != ".lock"]
