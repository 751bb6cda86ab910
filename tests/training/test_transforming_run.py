"""Runs of a transforming auto-encoder: folders, resuming, what is read back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from torchcaps.data import load_dataset
from torchcaps.errors import RunError, TrainingError
from torchcaps.models import TransformingAutoencoder
from torchcaps.training import (
    Interrupted,
    RunFolder,
    TransformingConfig,
    load,
    load_transforming,
    run_transforming,
    train_transforming,
)
from torchcaps.training.transforming_run import transforming_config


@pytest.fixture
def config(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (21, 8, 10), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(21) % 2)
    return TransformingConfig(
        data=str(tmp_path / "noise.npz"), capsules=2, recognition=3, generation=3, epochs=3, batch_size=8,
        checkpoint_every=2, device="cpu",
    )  # fmt: skip


def stop_after(count):
    calls = iter(range(1, 100))
    return lambda: next(calls) == count


def test_a_run_leaves_what_is_needed_to_use_and_repeat_it(config, tmp_path):
    told = []
    run = run_transforming(config, tmp_path / "run", listener=told.append)
    rows = run.rows()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row for row in told if row["kind"] == "epoch"] == rows
    assert [row["step"] for row in told if row["kind"] == "tick"] == list(range(1, 10))
    assert transforming_config(run) == config
    assert run.environment()["threads"] == torch.get_num_threads()
    model = load_transforming(run.path)
    assert not model.training
    assert (model.in_chans, model.img_size, model.num_capsules) == (1, (8, 10), 2)


def test_it_is_the_training_of_images_in_memory(config, tmp_path):
    run = run_transforming(config, tmp_path / "run")
    torch.manual_seed(config.seed)
    model = TransformingAutoencoder(1, (8, 10), capsules=2, recognition=3, generation=3)
    images = load_dataset(config.data).float_images()
    losses = train_transforming(model, images, epochs=3, batch_size=8, lr=config.lr, seed=config.seed)
    assert [row["train_loss"] for row in run.rows()] == pytest.approx(losses)
    for found, truth in zip(load_transforming(run.path).parameters(), model.parameters(), strict=True):
        assert torch.equal(found, truth)


@pytest.mark.parametrize("pose", ["translation", "affine"])
@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_stopped_run_continues_bit_for_bit(config, tmp_path, pose, step):
    config = TransformingConfig(**(config.__dict__ | {"pose": pose, "seed": 4}))
    whole = run_transforming(config, tmp_path / "whole")
    with pytest.raises(Interrupted, match=f"stopped after step {step} of 9"):
        run_transforming(config, tmp_path / "stopped", should_stop=stop_after(step))
    stopped = run_transforming(TransformingConfig(), tmp_path / "stopped", resume=True)
    assert stopped.model.read_bytes() == whole.model.read_bytes()
    assert stopped.last.read_bytes() == whole.last.read_bytes()
    losses = [[row["train_loss"] for row in run.rows()] for run in (stopped, whole)]
    assert losses[0] == losses[1]


def test_a_finished_run_stays_as_it_is(config, tmp_path):
    run = run_transforming(config, tmp_path / "run")
    before = run.model.read_bytes()
    run_transforming(config, tmp_path / "run", resume=True)
    assert run.model.read_bytes() == before
    with pytest.raises(RunError, match="there is a run here already"):
        run_transforming(config, tmp_path / "run")


def test_other_data_is_refused_when_a_run_goes_on(config, tmp_path):
    with pytest.raises(Interrupted):
        run_transforming(config, tmp_path / "run", should_stop=stop_after(2))
    np.savez(config.data, images=np.zeros((9, 8, 10), np.uint8), labels=np.arange(9) % 2)
    with pytest.raises(RunError, match="images was 17 when the run was stopped, and is 7 now"):
        run_transforming(config, tmp_path / "run", resume=True)


def test_other_pixels_or_settings_are_refused_when_a_run_goes_on(config, tmp_path):
    with pytest.raises(Interrupted):
        run_transforming(config, tmp_path / "run", should_stop=stop_after(2))
    file = tmp_path / "run" / "config.json"
    settings = file.read_text()
    file.write_text(json.dumps(json.loads(settings) | {"lr": 0.5}))
    with pytest.raises(RunError, match=r"lr was 0\.002 when the run was stopped, and is 0\.5 now"):
        run_transforming(config, tmp_path / "run", resume=True)
    file.write_text("[" * 100_000)
    with pytest.raises(RunError, match="is no readable configuration of this kind"):
        run_transforming(config, tmp_path / "run", resume=True)
    file.write_text(settings)
    np.savez(config.data, images=np.zeros((21, 8, 10), np.uint8), labels=np.arange(21) % 2)
    with pytest.raises(RunError, match="the images or labels are not those that were there when the run was stopped"):
        run_transforming(config, tmp_path / "run", resume=True)


def test_from_a_damaged_checkpoint_a_run_goes_on_from_the_one_before_it(config, tmp_path):
    whole = run_transforming(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run_transforming(config, tmp_path / "run", should_stop=stop_after(5))
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-1] + b"?")
    told = []
    run = run_transforming(config, tmp_path / "run", resume=True, listener=told.append)
    assert (told[0]["kind"], told[0]["step"]) == ("note", 4)
    assert run.model.read_bytes() == whole.model.read_bytes()
    assert run.last.read_bytes() == whole.last.read_bytes()


def test_nothing_is_left_of_a_run_that_could_not_start(config, tmp_path):
    for change, error, words in (
        ({"lr": 1e30}, TrainingError, "the loss became"), ({"epochs": 0}, ValueError, "epochs: expected at least 1"),
        ({"data": str(tmp_path / "none.npz")}, Exception, "none.npz"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            run_transforming(TransformingConfig(**(config.__dict__ | change)), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_configurations_of_other_kinds(config, tmp_path):
    (tmp_path / "run").mkdir()
    for content, words in (
        ({"model": "capsnet"}, "does not belong to a transforming auto-encoder"),
        (config.to_dict() | {"capsule": 3}, "unknown setting 'capsule'; did you mean 'capsules'"),
        (config.to_dict() | {"seed": -1}, "seed: expected at least 0"),
    ):
        (tmp_path / "run" / "config.json").write_text(json.dumps(content))
        with pytest.raises(RunError, match=words):
            run_transforming(config, tmp_path / "run", resume=True)


def test_only_its_own_models_are_read(config, tmp_path):
    with pytest.raises(RunError, match="is no readable checkpoint"):
        load_transforming(tmp_path)
    run = run_transforming(config, tmp_path / "run")
    with pytest.raises(RunError, match="it is no transforming auto-encoder"):
        load_transforming(RunFolder(run.path).last)
    with pytest.raises(RunError, match="holds a transforming autoencoder, not a classifier"):
        load(run.path)
