"""The calibration that a training leaves in its run folder and with its weights."""

from __future__ import annotations

import json

import pytest
import torch

import torchcaps as tc
from torchcaps.data import Dataset, load_dataset
from torchcaps.data.form import measure_form
from torchcaps.evaluation import HeldOutCalibration, calibrate, reconstruction_distances
from torchcaps.evaluation.base import image_activations
from torchcaps.training import Interrupted, Run, StopWhen, load, train
from torchcaps.training.calibration import preprocessing
from torchcaps.training.sampling import split
from torchcaps.types import model_metadata

from .fixtures import trained as trained
from .makers import resume, stop_after, tiny


def kept(path):
    return model_metadata(load(path)).calibration


def test_it_is_of_the_best_model_and_the_held_out_images(bars, trained):
    run = Run(trained)
    images = load_dataset(str(bars), "train")
    _, val_images = split(images, run.config)
    activations = image_activations(load(run.path), val_images.float_images())
    errors = reconstruction_distances(load(run.path), val_images.float_images())
    expected = calibrate(activations, val_images.labels, errors)
    assert HeldOutCalibration.from_dict(kept(run.path)) == expected
    assert expected.num_samples == 6
    file = json.loads((run.path / "calibration.json").read_text())
    assert file == {"format": 1} | expected.to_dict()


def test_a_fit_keeps_both_through_a_file(tmp_path):
    digits = load_dataset("digits", "train").subset(range(600))
    model, _ = tc.fit(
        tc.create_model("capsnet_small"), digits, epochs=1, holdout=150, verbose=False
    )
    metadata = model_metadata(model)
    assert metadata.calibration["num_samples"] == 150
    assert {*metadata.calibration["limits"]} == {"unchanged", "changed"}
    loaded = model_metadata(load(tc.save(model, tmp_path / "model.safetensors")))
    assert loaded.calibration == metadata.calibration
    assert loaded.preprocess == metadata.preprocess
    assert metadata.preprocess.form.deviation < 0.1
    assert model_metadata(load(tmp_path / "model.safetensors", 3)).calibration is None
    [row] = tc.predict(model, digits.images[0])
    if row["label"] != "unknown":
        assert sum(row["probabilities"].values()) == pytest.approx(1)


def test_images_of_another_kind_have_no_form(trained):
    assert load(trained).preprocess.form is None  # bars in noise
    digits = load_dataset("digits", "train").subset(range(40))
    assert preprocessing(digits).form == measure_form(digits.float_images())
    assert preprocessing(digits, crop=20).form is None
    masks = {"mask": torch.zeros(40, 28, 28, dtype=torch.uint8)}
    assert preprocessing(Dataset(digits.images, masks, ("a", "b"), "masks")).form is None
    colored = torch.cat([digits.images, digits.images, 255 - digits.images], dim=1)
    assert preprocessing(Dataset(colored, digits.targets, digits.classes, "colors")).form is None


def test_a_run_that_is_not_finished_has_none(bars, tmp_path):
    evaluated = []  # a stopped training ends at once

    class Watched(StopWhen):
        def on_end(self, trainer):
            trainer.model.primary.register_forward_hook(lambda *_: evaluated.append(True))

    stopped = stop_after(4)
    with pytest.raises(Interrupted):
        train(tiny(bars), tmp_path / "run", callbacks=[Watched(stopped.condition)])
    assert evaluated == []
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert kept(tmp_path / "run") is None
    (tmp_path / "run" / "calibration.json").write_text("of a training before")
    resume(tmp_path / "run")
    assert kept(tmp_path / "run")["num_samples"] == 6


def test_a_task_without_classes_has_none(bars, tmp_path):
    options = {"capsules": 2, "recognition": 3, "generation": 3}
    config = tiny(bars, model="transforming_autoencoder", model_options=options, epochs=1, shift=0)
    run = train(config, tmp_path / "run")
    assert kept(run.path) is None
    assert not (run.path / "calibration.json").exists()
