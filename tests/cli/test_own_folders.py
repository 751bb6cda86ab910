"""A person's own folder of class folders: train, predict and plots, with no code written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from torchcaps.training import load
from training.makers import left_behind


def write_signs(folder, classes, per_class, size, color):
    """Class folders of pictures of (height, width), each class with a bar at an angle and a shade of its own."""
    random = np.random.default_rng(0)
    height, width = size
    for k in range(classes):
        place = folder / f"sign {k:02d}"
        place.mkdir(parents=True)
        angle, shade = np.pi * k / classes, 90 + 165 * ((7 * k) % classes) // classes
        for number in range(per_class):
            noise = random.integers(0, 50, (height, width, 3), dtype=np.uint8)
            picture = Image.fromarray(noise)
            x, y = width / 2 + random.integers(-2, 3), height / 2 + random.integers(-2, 3)
            dx, dy = np.cos(angle) * width / 2, np.sin(angle) * height / 2
            fill = (shade, 255 - shade, (60 * k) % 256) if color else (shade,) * 3
            ImageDraw.Draw(picture).line((x - dx, y - dy, x + dx, y + dy), fill=fill, width=5)
            (picture if color else picture.convert("L")).save(place / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("classes", "per_class", "size", "color"),
    [pytest.param(43, 8, (32, 32), True, marks=pytest.mark.slow), (3, 15, (40, 28), False)],
)
def test_a_folder_of_class_folders_trains_predicts_and_plots(
    command, tmp_path, classes, per_class, size, color
):
    write_signs(tmp_path / "signs", classes, per_class, size, color)
    small = ("--option", "channels=16", "--option", "primary_types=4", "--lr", 0.003)
    run = ("--threads", 1, "--keep-memory", "no", "--batch-size", 16, "--shift", 0)
    trained = command("train", "capsnet", "--data", "signs", "--epochs", 8, *small, *run)
    assert trained.status == 0, trained.err
    run = tmp_path / "runs" / "capsnet-signs"
    assert len(list((run / "plots").glob("*.png"))) == 6
    assert left_behind(run) == []
    model = load(run)
    assert len(model.classes) == classes
    assert model.preprocess.to_dict() == {"img_size": list(size), "in_chans": 3 if color else 1}

    evaluation = json.loads((run / "evaluation.json").read_text())
    assert (
        evaluation["accuracy"] > 0.5 / classes + 0.15
    )  # far above chance, far below what these runs reach
    predicted = command("predict", "runs/capsnet-signs", "signs", "--json")
    found = json.loads(predicted.out)
    assert len(found) == classes * per_class
    assert {one["label"] for one in found} <= set(model.classes)
    assert command("reconstruct", "runs/capsnet-signs", "--per-class", 1).status == 0
