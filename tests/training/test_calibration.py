"""`calibration.json`, which a training leaves in its run folder."""

from __future__ import annotations

import json

import pytest

from torchcaps.data import load_dataset
from torchcaps.errors import RunError
from torchcaps.evaluation import calibrate
from torchcaps.evaluation.forward import image_activations
from torchcaps.training import Interrupted, Run, TrainConfig, load, train
from torchcaps.training.calibration import read_calibration
from torchcaps.training.sampling import split

from .fixtures import run as run, trained as trained
from .makers import stop_after, tiny


def test_it_is_of_the_best_model_and_the_held_out_images(bars, trained):
    run = Run(trained)
    images = load_dataset(str(bars), "train")
    _, val_images = split(images, run.config)
    activations = image_activations(load(run.path), val_images.float_images())
    expected = calibrate(activations, val_images.labels)
    assert read_calibration(run.path) == expected
    assert read_calibration(run.model_path) == expected
    assert expected.num_samples == 6


def test_a_run_that_is_not_finished_has_none(bars, tmp_path):
    with pytest.raises(Interrupted):
        train(tiny(bars), tmp_path / "run", callbacks=[stop_after(4)])
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert read_calibration(tmp_path / "run") is None
    (tmp_path / "run" / "calibration.json").write_text("of a training before")
    train(TrainConfig(), tmp_path / "run", resume=True)
    assert read_calibration(tmp_path / "run").num_samples == 6


def test_a_task_without_classes_has_none(bars, tmp_path):
    options = {"capsules": 2, "recognition": 3, "generation": 3}
    config = tiny(bars, model="transforming_autoencoder", model_options=options, epochs=1, shift=0)
    run = train(config, tmp_path / "run")
    assert read_calibration(run.path) is None


@pytest.mark.parametrize("content", ["[]", '{"format": 1}'])
def test_a_damaged_file_is_named(run, content):
    (run / "calibration.json").write_text(content)
    with pytest.raises(RunError, match=r"calibration\.json: is no readable calibration"):
        read_calibration(run)


def test_another_file_of_weights_has_none(run):
    assert json.loads((run / "calibration.json").read_text())["format"] == 1
    other = run / "other.safetensors"
    (run / "model.safetensors").rename(other)
    assert read_calibration(other) is None
