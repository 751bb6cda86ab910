"""Runs of the task that draws transformed images: folders, resuming, figures, early settings."""

import json
import os

import numpy as np
import pytest

import torchcaps as tc
from checks import column
from tasks.makers import SHORT_RUN
from torchcaps.errors import TrainingError
from torchcaps.reporting import evaluate
from torchcaps.training import TrainConfig, train
from training.makers import assert_resumes

MODEL = {"capsules": 2, "recognition": 3, "generation": 3}


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    path = tmp_path_factory.mktemp("noise") / "noise.npz"
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 10), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(40) % 2)
    return path


def config_of(data, options=None, **changes):
    settings = {
        "model": "transforming_autoencoder",
        "model_options": MODEL | (options or {}),
        "data": str(data),
    }
    return TrainConfig.of(**SHORT_RUN | settings | changes)


def test_a_run_can_be_used_and_resumed(noise, tmp_path):
    run = assert_resumes(config_of(noise, {"pose": "affine"}, seed=4), tmp_path, step=3)
    assert column(run.rows, "epoch") == [1, 2, 3]
    for row in run.rows:
        assert row["score"] == "correlation"
        assert row["train_loss"] == row["train_reconstruction"] > 0
        assert {"val_loss", "val_correlation"} <= row.keys()
    assert (run.config.task.name, run.config.optimizer.clip) == ("transform", 0.0)
    model = tc.load(run.path)
    assert (model.in_chans, model.img_size, model.classes) == (1, (8, 10), ())
    evaluation = evaluate(run, output=run.path)
    figures = json.loads((run.path / "evaluation.json").read_text())
    assert figures == json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    plots = {"scatter.png", "triplets.png", "generation.png"}
    assert plots <= set(os.listdir(run.path / "plots"))
    assert evaluate(run).to_dict() == evaluation.to_dict()  # the same pairs again


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"lr": 1e30, "schedule": "constant", "checkpoint_every": 100}, TrainingError, "became"),
        ({"degrees": 5.0}, ValueError, "degrees: expected 0 for poses that are moved by shifts"),
        ({"model_options": {"pose": "afine"}}, ValueError, "unknown pose 'afine'; did you mean"),
    ],
)
def test_a_run_that_cannot_start_leaves_no_folder(noise, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        train(config_of(noise, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
