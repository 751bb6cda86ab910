"""A run is measured on images that it was not trained on: all of them, also of some classes."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest

from data.makers import picture, write_folder
from torchcaps import evaluate
from torchcaps.errors import DamagedImageError
from torchcaps.training import load, train
from training.makers import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was trained on a folder without splits, of cats, dogs and owls."""
    root = tmp_path_factory.mktemp("other")
    write_folder(root / "own", ("cat", "dog", "owl"), count=10, size=(18, 18))
    return train(tiny(root / "own", epochs=1), root / "run")


def measure(run, data, **options):
    """Number of images, and what is said of them."""
    sentences = []
    evaluation = evaluate(run, data, emit=sentences.append, **options)
    return evaluation.num_samples, sentences


def test_of_the_folder_that_it_was_trained_on_the_test_part_is_measured(run, monkeypatch):
    root = run.path.parent
    expected = (6, ["own: 30 images of 3 classes, 6 of them in the test split"])
    assert measure(run, None) == expected
    assert measure(run, root / "own") == expected
    monkeypatch.chdir(root / "own" / "cat")
    assert measure(run, "../../own/") == expected


def test_of_another_folder_all_images_are_measured(run, tmp_path):
    shutil.copytree(run.path.parent / "own", tmp_path / "new")
    sentence = "new: 30 images of 3 classes, all of them measured, because it is not divided into "
    assert measure(run, tmp_path / "new") == (30, [f"{sentence}train and test"])
    # Whether a model alone has seen a folder is not known.
    assert measure(load(run.path), tmp_path / "new")[0] == 6


def test_of_a_folder_with_splits_the_test_split_is_measured(run, tmp_path):
    write_folder(tmp_path / "new", ("cat", "dog"), count=3, levels=("train", "test"))
    number, sentences = measure(run, tmp_path / "new")
    assert number == 6
    assert "6 of them in the test split" in sentences[0]


def test_a_folder_of_one_class_is_measured(run, tmp_path):
    write_folder(tmp_path / "new", ("dog",), count=4)
    number, sentences = measure(run, tmp_path / "new")
    assert number == 4
    assert sentences[0].startswith("new: 4 images of 1 classes, all of them")
    evaluation = evaluate(run, tmp_path / "new")
    assert evaluation.labels.tolist() == [1] * 4
    assert evaluation.classes == ("cat", "dog", "owl")


def test_damaged_files_of_another_folder_are_left_out_if_asked(run, tmp_path):
    root = write_folder(tmp_path / "new", ("dog",), count=4)
    (root / "dog" / "0.png").write_bytes(b"junk")
    with pytest.raises(DamagedImageError):
        evaluate(run, root)
    number, sentences = measure(run, root, skip_damaged=True)
    assert number == 3
    assert "left out 1 of 4 images that cannot be read" in sentences[1]


def test_tables_and_arrays_are_measured_whole(run, tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    with (tmp_path / "new.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("file", "animal"))
        for index in range(5):
            picture((18, 18), seed=index).save(pictures / f"{index}.png")
            rows.writerow((f"pictures/{index}.png", "owl"))
    assert measure(run, tmp_path / "new.csv", label_column="animal")[0] == 5

    arrays = {"images": np.zeros((12, 18, 18, 3), np.uint8), "labels": np.arange(12) % 3}
    np.savez(tmp_path / "new.npz", **arrays, classes=np.array(["cat", "dog", "owl"]))
    assert measure(run, tmp_path / "new.npz")[0] == 12
