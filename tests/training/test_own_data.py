"""Training on data as people have it: official validation splits, several labels an image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from data.makers import write_medmnist
from torchcaps import evaluate, predict
from torchcaps.data import load_dataset
from torchcaps.evaluation import MultiLabel
from torchcaps.training import load, train
from torchcaps.training.sampling import read_images

from .makers import Watch, tiny


@pytest.fixture
def medmnist(tmp_path):
    write_medmnist(tmp_path / "own.npz", side=18)
    return tmp_path / "own.npz"


def train_quickly(config, folder):
    """Train, and return the run and its messages."""
    watch = Watch()
    run = train(config, folder, callbacks=[watch])
    return run, watch.messages


def test_an_official_validation_split_is_used_and_said(medmnist, tmp_path):
    run, messages = train_quickly(tiny(medmnist, holdout=None, epochs=1), tmp_path / "run")
    assert any("own: validation with its official split of 9 images" in text for text in messages)
    config, images, val_images = read_images(run.config)
    assert (len(images), len(val_images), config.data.holdout) == (24, 9, None)
    assert val_images.images.equal(load_dataset(medmnist, "val").images)
    train(run.config, run.path, resume=True)  # it reads the same images again


@pytest.mark.parametrize(
    ("changes", "num_val"), [({"holdout": 6}, 6), ({"folds": 3, "fold": 1}, 3)]
)
def test_a_holdout_or_folds_come_before_the_official_split(medmnist, tmp_path, changes, num_val):
    config = tiny(medmnist, epochs=1, **({"holdout": None} | changes))
    run, messages = train_quickly(config, tmp_path / "run")
    assert not any("official" in text for text in messages)
    assert len(read_images(run.config)[2]) == num_val


@pytest.fixture
def halves(tmp_path):
    """A CSV of pictures of which one half, or all, is red or blue: a color, and mostly a side."""
    rows = ["file,color,side,tags"]
    sides = (("left", slice(0, 9)), ("right", slice(9, 18)), ("", slice(0, 18)))
    for index in range(60):
        red = index % 2
        side, half = sides[index // 2 % 3]
        color = ("blue", "red")[red]
        pixels = np.zeros((18, 18, 3), np.uint8)
        pixels[:, half] = (255, 0, 0) if red else (0, 0, 255)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
        tags = f"{color};{side}" if side else color
        rows.append(f"{index}.png,{color},{side},{tags}")
    (tmp_path / "own.csv").write_text("\n".join(rows))
    return tmp_path / "own.csv"


def test_several_labels_an_image_are_learned(halves, tmp_path):
    options = {"label_column": "tags", "label_separator": ";"}
    config = tiny(halves, **options, epochs=12, lr=0.01, shift=0)
    run, messages = train_quickly(config, tmp_path / "run")
    assert any("48 of them in the train split" in text for text in messages)
    assert run.config.task.name == "multilabel"
    assert run.config.task.reconstruction == 0
    model = load(run.path)
    assert model.classes == ("blue", "left", "red", "right")
    test = load_dataset(halves, "test", **options)
    evaluation = evaluate(run)
    assert isinstance(evaluation, MultiLabel)
    assert evaluation.num_samples == len(test) == 12
    assert evaluation.auroc > 0.8
    by_columns = load_dataset(halves, "test", label_column="color,side")
    assert torch.equal(by_columns.labels, test.labels)

    for row in predict(run, [halves.with_name(f"{index}.png") for index in range(4)]):
        present = [name for name, length in row["activations"].items() if length >= 0.5]
        assert row["label"] == " + ".join(present)
