"""A folder of class folders is trained, predicted and plotted by commands alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from checks import column
from torchcaps.training import load
from training.makers import leftovers


def write_signs(folder, classes, per_class, size, color):
    """Class folders of pictures with a bar, whose angle and shade are the class."""
    random = np.random.default_rng(0)
    height, width = size
    for label in range(classes):
        place = folder / f"sign {label:02d}"
        place.mkdir(parents=True)
        angle = np.pi * label / classes
        dx = np.cos(angle) * width / 2
        dy = np.sin(angle) * height / 2
        shade = 90 + 165 * ((7 * label) % classes) // classes
        fill = (shade, 255 - shade, (60 * label) % 256)
        for number in range(per_class):
            noise = random.integers(0, 50, (height, width, 3), dtype=np.uint8)
            picture = Image.fromarray(noise)
            x = width / 2 + random.integers(-2, 3)
            y = height / 2 + random.integers(-2, 3)
            ImageDraw.Draw(picture).line((x - dx, y - dy, x + dx, y + dy), fill=fill, width=5)
            if not color:
                picture = picture.convert("L")
            picture.save(place / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("classes", "per_class", "size", "color"),
    [pytest.param(43, 8, (32, 32), True, marks=pytest.mark.slow), (3, 15, (40, 28), False)],
)
def test_a_folder_of_class_folders_trains_predicts_and_plots(
    command, tmp_path, classes, per_class, size, color
):
    write_signs(tmp_path / "signs", classes, per_class, size, color)
    small = "--option channels=16 --option primary_types=4 --lr 0.003 --epochs 8 --batch-size 16"
    flags = "--threads 1 --no-keep-memory --shift 0"
    trained = command(["train", "capsnet", "--data", "signs"], small.split(), flags.split())
    assert trained.status == 0, trained.err
    run = tmp_path / "runs" / "capsnet-signs"
    assert len(list((run / "plots").glob("*.png"))) == 6
    assert leftovers(run) == []
    model = load(run)
    assert len(model.classes) == classes
    assert model.preprocess.to_dict() == {"img_size": list(size), "in_chans": 1 + 2 * color}

    evaluation = json.loads((run / "evaluation.json").read_text())
    # Far above chance, far below what these runs reach.
    assert evaluation["accuracy"] > 0.5 / classes + 0.15
    rows = command("predict", "runs/capsnet-signs", "signs", "--json").document
    assert len(rows) == classes * per_class
    assert set(column(rows, "label")) <= set(model.classes)
    assert command("reconstruct", "runs/capsnet-signs", "--per-class", 1).status == 0
