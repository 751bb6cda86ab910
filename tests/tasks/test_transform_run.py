"""Runs of the task that draws transformed images: folders, resuming, figures, early settings."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.errors import TrainingError
from torchcaps.reporting import evaluate
from torchcaps.training import Interrupted, TrainConfig, load_recipe, train

MODEL = {"capsules": 2, "recognition": 3, "generation": 3}


@pytest.fixture
def settings(tmp_path):
    """Of 9 steps: 3 epochs of 3 batches."""
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 10), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(40) % 2)
    return {
        "model": "transforming_autoencoder",
        "model_options": MODEL,
        "data": str(tmp_path / "noise.npz"),
        "epochs": 3,
        "batch_size": 8,
        "holdout": 11,
        "checkpoint_every": 2,
        "device": "cpu",
    }


def stop_after(count):
    calls = iter(range(1, 100))
    return lambda: next(calls) == count


def contents(folder):
    """Every file of a run that must come out the same, byte for byte; of the metrics all but the speed."""
    files = {
        file: (folder / file).read_bytes()
        for file in ("model.safetensors", "checkpoints/last.safetensors")
    }
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return files | {
        "metrics": [{k: v for k, v in row.items() if k != "images_per_second"} for row in rows]
    }


def test_a_run_leaves_what_is_needed_to_use_and_repeat_it(settings, tmp_path):
    run = train(TrainConfig.of(**settings), tmp_path / "run")
    rows = run.rows
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["score"] == "correlation"
        assert row["train_loss"] == row["train_reconstruction"] > 0
        assert {"val_loss", "val_correlation"} <= row.keys()
    config = run.config
    assert (config.task.name, config.task.loss, config.optimizer.clip) == (
        "transform",
        "reconstruction",
        0.0,
    )
    model = tc.load(run.path)
    assert (model.in_chans, model.img_size, model.num_capsules, model.classes) == (
        1,
        (8, 10),
        2,
        (),
    )
    assert not model.training


@pytest.mark.parametrize(
    ("pose", "step"), [("translation", 1), ("translation", 5), ("affine", 3), ("affine", 8)]
)
def test_stopped_and_resumed_it_ends_in_the_same_bytes(settings, tmp_path, pose, step):
    config = TrainConfig.of(**settings | {"model_options": MODEL | {"pose": pose}, "seed": 4})
    train(config, tmp_path / "whole")
    with pytest.raises(Interrupted, match=f"stopped after step {step} of 9"):
        train(config, tmp_path / "stopped", should_stop=stop_after(step))
    train(TrainConfig(), tmp_path / "stopped", resume=True)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_the_seed_decides(settings, tmp_path):
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        torch.manual_seed(ord(name[0]))
        train(TrainConfig.of(**settings, seed=seed), tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "again")
    assert (
        contents(tmp_path / "one")["model.safetensors"]
        != contents(tmp_path / "other")["model.safetensors"]
    )


@pytest.mark.parametrize("pose", ["translation", "affine"])
def test_a_run_gets_its_figures_and_plots(settings, tmp_path, pose):
    run = train(
        TrainConfig.of(**settings | {"model_options": MODEL | {"pose": pose}}), tmp_path / "run"
    )
    found = evaluate(run, output=run.path)
    written = json.loads((run.path / "evaluation.json").read_text())
    assert written == json.loads(json.dumps(found.to_dict(), allow_nan=False))
    plots = {path.name: path.read_bytes() for path in (run.path / "plots").iterdir()}
    assert plots.keys() >= {"scatter.png", "triplets.png", "generation.png"}
    assert all(content.startswith(b"\x89PNG") for content in plots.values())
    assert evaluate(run, output=run.path).to_dict() == found.to_dict()  # the same pairs again


def test_nothing_is_left_of_a_run_that_could_not_start(settings, tmp_path):
    for change, error, words in (
        ({"lr": 1e30, "schedule": "constant"}, TrainingError, "became"),
        (
            {"degrees": 5.0},
            ValueError,
            r"degrees: expected 0 for poses that are moved by shifts, got 5\.0",
        ),
        (
            {"model_options": {"pose": "afine"}},
            ValueError,
            "unknown pose 'afine'; did you mean 'affine'",
        ),
    ):
        with pytest.raises(error, match=words):
            train(TrainConfig.of(**settings | change | {"checkpoint_every": 100}), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_the_recipe_shows_figures_that_the_evaluation_has(settings, tmp_path):
    recipe = load_recipe("transforming-autoencoder")
    found: set[str] = set()
    for row in recipe.rows:
        options = recipe.resolve(row, "small").model.options
        config = TrainConfig.of(**settings | {"model_options": MODEL | options, "epochs": 1})
        figures = evaluate(train(config, tmp_path / row.name)).to_dict()
        assert row.published.keys() <= figures.keys()
        found |= figures.keys()
    assert set(recipe.figures) <= found
