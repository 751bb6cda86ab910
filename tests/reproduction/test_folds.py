"""Cross-validation by run folders: each fold is tested on images that it was not trained on."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchcaps import cross_validate, evaluate, load
from torchcaps.data import load_dataset
from torchcaps.errors import ArgumentError, RunError
from torchcaps.reporting import open_task
from torchcaps.reporting.evaluated import evaluate_run
from torchcaps.reproduction import CrossValidation
from torchcaps.training import Interrupted, Run, train
from torchcaps.training.sampling import select_fold, split
from training.fixtures import bars as bars
from training.makers import contents, stop_after, tiny


def rows_of(images):
    """The images of a set, as bytes that tell them apart."""
    return [image.numpy().tobytes() for image in images.images]


@pytest.fixture(scope="module")
def folder(bars, tmp_path_factory):
    """A cross-validation of three folds."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("folds") / "cv"
    cross_validate(tiny(bars, epochs=1), folder, folds=3)
    return folder


def test_every_training_image_is_tested_once_and_never_trained_on_there(folder, bars):
    everything = rows_of(load_dataset(str(bars), "train"))
    tested = []
    for fold in (1, 2, 3):
        run = Run(folder / f"fold-{fold}")
        test_rows = rows_of(open_task(run)[1])
        images = load_dataset(str(bars), "train")
        train_images, val_images = split(images, run.config)
        used = rows_of(train_images) + rows_of(val_images)
        assert not {*used} & {*test_rows}
        assert {*used} | {*test_rows} == {*everything}
        assert run.epochs[0]["images"] == len(train_images)
        assert rows_of(open_task(run, split="train")[1]) == [
            row for row in everything if row in {*used}
        ]
        assert {*rows_of(evaluate_run(run.path).held_out_images())} == {*rows_of(val_images)}
        tested += test_rows
    assert sorted(tested) == sorted(everything)
    test_images = rows_of(load_dataset(str(bars), "test"))
    assert not {*tested} & {*test_images}


def test_the_figures_are_means_and_deviations_of_the_folds(folder):
    outcome = CrossValidation.read(folder)
    accuracies = []
    for fold in (1, 2, 3):
        run = folder / f"fold-{fold}"
        document = json.loads((run / "evaluation.json").read_text())
        assert document["num_samples"] == 16
        assert evaluate(run).accuracy == document["accuracy"]
        accuracies.append(document["accuracy"])
    mean = sum(accuracies) / 3
    assert outcome.mean["accuracy"] == pytest.approx(mean)
    squares = sum((accuracy - mean) ** 2 for accuracy in accuracies)
    assert outcome.std["accuracy"] == pytest.approx(math.sqrt(squares / 2))
    assert {"balanced_accuracy", "macro_f1", "auroc", "loss"} <= outcome.mean.keys()
    assert "num_samples" not in outcome.mean
    rows = outcome.table().rows
    assert rows[0][0] == "accuracy"
    assert rows[0][2:] == (f"{100 * min(accuracies):.2f} %", f"{100 * max(accuracies):.2f} %")
    document = json.loads((folder / "folds.json").read_text())
    assert document["mean"] == outcome.mean
    assert document["runs"] == [str(folder / f"fold-{fold}") for fold in (1, 2, 3)]
    assert outcome.summary == "3 folds of 48 images"


def test_a_stopped_cross_validation_goes_on_bit_for_bit(folder, bars, tmp_path):
    config = tiny(bars, epochs=1)
    with pytest.raises(Interrupted):
        cross_validate(config, tmp_path / "cv", folds=3, callbacks=[stop_after(3)])
    with pytest.raises(RunError, match="not finished"):
        CrossValidation.read(tmp_path / "cv")
    first_model = (tmp_path / "cv" / "fold-1" / "model.safetensors").stat().st_mtime_ns
    resumed = cross_validate("capsnet", tmp_path / "cv", resume=True)
    assert resumed.figures == CrossValidation.read(folder).figures
    assert resumed.config["training"]["device"] == "cpu"  # as it was started
    for fold in ("fold-1", "fold-2", "fold-3"):
        assert contents(tmp_path / "cv" / fold) == contents(folder / fold)
    model = tmp_path / "cv" / "fold-1" / "model.safetensors"
    assert model.stat().st_mtime_ns == first_model  # a fold that is done is not trained again


def test_a_folder_that_is_taken_or_settings_that_differ_are_refused(folder, bars):
    config = tiny(bars, epochs=1)
    with pytest.raises(RunError, match="there is a run or a cross-validation here already"):
        cross_validate(config, folder, folds=3)
    with pytest.raises(RunError, match="there is a run or a cross-validation here already"):
        cross_validate(config, folder / "fold-1", folds=3)
    with pytest.raises(ArgumentError, match="epochs: expected 1, as the run was started, got 2"):
        cross_validate("capsnet", folder, resume=True, epochs=2)


def test_a_cross_validation_that_cannot_begin_leaves_nothing(bars, tmp_path):
    with pytest.raises(ArgumentError, match="folds: expected at most 48, the images, got 49"):
        cross_validate(tiny(bars), tmp_path / "cv", folds=49)
    assert not (tmp_path / "cv").exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"folds": 3}, "fold: expected the numbers of folds and of one fold, got 3 and None"),
        ({"fold": 1}, "fold: expected the numbers of folds and of one fold, got None and 1"),
        ({"folds": 3, "fold": 4}, "fold: expected between 1 and 3, got 4"),
    ],
)
def test_one_training_needs_both_numbers(bars, tmp_path, settings, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        train(tiny(bars, epochs=1), tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "config.json").exists()


def test_one_fold_can_be_trained_alone(folder, bars, tmp_path):
    run = train(tiny(bars, epochs=1), tmp_path / "run", folds=3, fold=2)
    assert contents(run.path) == contents(folder / "fold-2")
    assert load(run.path).classes == ("0", "1", "2")


def test_groups_stay_together(bars):
    images = load_dataset(str(bars), "train")
    groups = torch.arange(len(images)) // 4
    images = replace(images, targets=images.targets | {"track": groups}, groups=groups)
    tested = []
    for fold in (1, 2, 3):
        config = tiny(bars, folds=3, fold=fold)
        inside = {*select_fold(images, config, is_tested=True).targets["track"].tolist()}
        train_images, val_images = split(images, config)
        outside = {*train_images.targets["track"].tolist(), *val_images.targets["track"].tolist()}
        assert not inside & outside
        tested += inside
    assert sorted(tested) == sorted({*groups.tolist()})


@pytest.mark.parametrize(
    ("model", "targets", "figure"),
    [
        ("capsnet_small", {"y": np.eye(3)[np.arange(24) % 3] + [1, 0, 0] > 0}, "exact"),
        ("capsnet_small", {"y": np.linspace(-1, 1, 48).reshape(24, 2)}, "mae"),
        ("segcaps_small", {"masks": np.tri(20, dtype=np.uint8)[None].repeat(24, 0)}, "dice"),
    ],
)
def test_folds_of_other_targets(tmp_path, model, targets, figure):
    images = np.random.default_rng(0).integers(0, 256, (24, 20, 20), dtype=np.uint8)
    arrays = dict.fromkeys(("images", "x"), images) | targets
    np.savez(tmp_path / "own.npz", **arrays)
    settings = {"data": str(tmp_path / "own.npz"), "folds": 2, "epochs": 1, "batch_size": 8}
    outcome = cross_validate(model, tmp_path / "cv", **settings)
    everything = load_dataset(tmp_path / "own.npz", "train")
    assert sum(outcome.num_samples) == len(everything)
    for run in outcome.runs:
        _, tested = open_task(Run(run))
        [target] = set(everything.targets) & set(tested.targets)
        rows = dict(zip(rows_of(everything), everything.targets[target].tolist(), strict=True))
        expected = list(map(rows.__getitem__, rows_of(tested)))
        assert tested.targets[target].tolist() == expected
    assert len(outcome.by_figure[figure]) == 2
