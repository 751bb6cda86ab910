"""Every setting reaches what it names: changed alone, it changes what is observed."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from torchcaps.data import load_dataset
from torchcaps.settings import TrainConfig, known_settings
from torchcaps.training import Run, fit, load, resolve_recipe, sampling, train
from torchcaps.training.files import load_tensors

from .makers import TINY, Watch, tiny

# Its network ends in a sigmoid and declares nothing.
pytestmark = pytest.mark.filterwarnings("ignore:Sequential declares nothing")

BASE = {"epochs": 2, "batch_size": 8, "holdout": 6, "loss": "cross_entropy", "precision": "fp32"}
# Settings that change the weights after a few steps, and what else some of them need.
WEIGHTS = {
    "accumulate": 2,
    "aspect": 0.3,
    "balance": True,
    "batch_size": 16,
    "class_weights": "auto",
    "clip": 0.01,
    "color_jitter": True,
    "crop": 16,
    "decay": 0.5,
    "degrees": 30.0,
    "ema": 0.9,
    "epoch_size": 16,
    "epochs": 3,
    "erase": 8,
    "extended_at": (1,),
    "flip": True,
    "freeze": ("0.*",),
    "holdout": 12,
    "label_smoothing": 0.2,
    "loss": "margin",
    "lr": 0.1,
    "lr_scale": {"0.*": 0.1},
    "milestones": (1,),
    "momentum": 0.5,
    "morphology": 0.9,
    "nesterov": True,
    "optimizer": "sgd",
    "optimizer_options": {"betas": [0.5, 0.9]},
    "per_class": 5,
    "precision": "bf16",
    "schedule": "constant",
    "seed": 1,
    "shear": 0.5,
    "shift": 3,
    "stop_at": 0.01,
    "weight_decay": 0.1,
    "zoom": 0.3,
}
REQUIREMENTS = {
    "decay": {"schedule": "exponential"},
    "epochs": {"schedule": "constant"},
    "milestones": {"schedule": "steps"},
    "momentum": {"optimizer": "sgd"},
    "nesterov": {"optimizer": "sgd"},
}
# Settings that `load_dataset` is given.
READING = {
    "data": "photos",
    "root": "elsewhere",
    "img_size": (20, 24),
    "max_bytes": 1 << 30,
    "storage": "disk",
    "workers": 3,
    "label_column": "kind",
    "value_column": "angle",
    "label_separator": "|",
    "group_column": "patient",
    "group_pattern": "(a)",
    "skip_damaged": True,
}
# Those that have a test of their own below or in the file that is named.
ELSEWHERE = {
    "model": "",
    "model_options": "",
    "reconstruction": "",
    "metrics": "",
    "callbacks": "",
    "deterministic": "",
    "graph": "../fakecuda/on_device/check_step_graph.py",
    "checkpoint_every": "",
    "keep_epochs": "",
    "log": "test_logs.py",
    "patience": "test_update.py",
    "init": "test_initial.py",
    "backbone": "test_features.py",
    "device": "test_device.py",
    "task": "../tasks/test_base.py",
    "folds": "../reproduction/test_folds.py",
    "fold": "../reproduction/test_folds.py",
}


@pytest.fixture(scope="module")
def images(bars):
    """Classes of different sizes."""
    images = load_dataset(bars, "train")
    return images.subset([*range(36), *(i for i in range(36, 48) if images.labels[i] == 0)])


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 3), nn.Sigmoid()
    )


def weights_of(images, settings):
    model, _ = fit(network(), images, verbose=False, **settings)
    return torch.cat([weight.flatten() for weight in model.parameters()])


@pytest.fixture(scope="module")
def expected(images):
    return weights_of(images, BASE)


def test_every_setting_is_tested():
    tested = [*WEIGHTS, *READING, *ELSEWHERE]
    assert sorted(tested) == sorted(known_settings())


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_setting_of_the_training_changes_the_weights(images, expected, name):
    settings = BASE | REQUIREMENTS.get(name, {})
    unchanged = weights_of(images, settings) if name in REQUIREMENTS else expected
    assert not torch.equal(weights_of(images, settings | {name: WEIGHTS[name]}), unchanged)


@pytest.mark.parametrize("name", READING)
def test_a_setting_of_the_data_reaches_the_reader(monkeypatch, name):
    calls = []

    def read(name, split, root, **options):
        calls.append({"name": name, "split": split, "root": root, **options})

    monkeypatch.setattr(sampling, "load_dataset", read)
    sampling.load_images(TrainConfig.of(**{name: READING[name]}), "test")
    assert calls[0]["name" if name == "data" else name] == READING[name]
    assert calls[0]["split"] == "test"


def test_settings_of_the_run_folder(bars, tmp_path):
    config = tiny(bars, reconstruction=0.5, metrics=("brier_score",), keep_epochs=True)
    run = train(config, tmp_path / "run")
    row = run.epochs[0]
    drawing = row["train_loss"] - row["train_margin"]
    assert drawing == pytest.approx(0.5 * row["train_reconstruction"] * 784 / 360, rel=0.5)
    assert "val_brier_score" in row
    assert len([*(run.path / "checkpoints").glob("epoch-*")]) == 2


@pytest.mark.parametrize(
    ("interval", "saved"),
    [(2, [0, 2, 2, 4, 4, 4]), (9, [0, 0, 0, 3, 3, 3])],
)
def test_checkpoints_come_at_their_interval(bars, tmp_path, interval, saved):
    """An epoch has 3 steps, and a checkpoint at its end, after its last step was reported."""
    steps = []

    def note(trainer, _losses):
        file = trainer.checkpoint
        steps.append(load_tensors(file)[1]["state"]["step"] if file.exists() else 0)

    train(tiny(bars, checkpoint_every=interval), tmp_path / "run", callbacks=[Watch(note)])
    assert steps == saved


def test_deterministic_is_in_force_while_a_training_runs(images):
    modes = []
    watch = Watch(lambda *_: modes.append(torch.get_deterministic_debug_mode()))
    fit(network(), images, deterministic=True, callbacks=[watch], verbose=False, **BASE)
    assert set(modes) == {2}


def test_a_model_by_its_name_shifts_its_images_and_a_configuration_does_not():
    config = resolve_recipe("capsnet")
    assert (config.augmentation.shift, config.origins["shift"]) == (2, "model")
    assert TrainConfig.of(model="capsnet").augmentation.shift is None
    recipe = resolve_recipe("capsnet-digits")
    assert (recipe.augmentation.shift, recipe.origins["shift"]) == (2, "recipe")


def test_the_configuration_of_a_run_folder_leaves_nothing_open(bars, tmp_path):
    run = train(tiny(bars, holdout=None, batch_size=None), tmp_path / "run")
    settings = json.loads((run.path / "config.json").read_text())
    assert Run(run.path).config == run.config
    assert settings["training"]["batch_size"] == 8
    assert settings["task"]["loss"] == "margin"
    assert settings["optimizer"]["clip"] == 1.0
    assert settings["data"]["holdout"] == 0.1
    assert settings["model"]["options"] == TINY
    assert len(load(run.path).conv.weight) == TINY["channels"]
