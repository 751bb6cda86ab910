from __future__ import annotations

import itertools

import pytest
import torch

from torchcaps.tasks import classify as classify_module
from torchcaps.tasks.collapse import collapse_state
from torchcaps.training import Interrupted, Run, TrainConfig, train
from torchcaps.training.defaults import (
    MIN_STEPS,
    MAX_BATCH_SIZE,
    MIN_BATCH_SIZE,
    default_batch_size,
)

from .makers import contents, tiny

RESTARTED = "the training starts again, once, with a tenth of the learning rate (0.0001)"


def notes(folder):
    return Run.open(folder).notes


def stop_after(step):
    count = iter(range(1, 10_000))
    return lambda: next(count) == step


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (1, 8),
        (800, 8),
        (1150, 8),
        (1600, 16),
        (5400, 32),
        (12_799, 64),
        (12_800, 128),
        (10**7, 128),
    ],
)
def test_batches_are_as_large_as_leaves_enough_steps(images, expected):
    assert default_batch_size(images) == expected


def test_the_rule_of_batches_holds_for_any_number_of_images():
    for images in range(1, 20_000, 37):
        size = default_batch_size(images)
        assert MIN_BATCH_SIZE <= size <= MAX_BATCH_SIZE and size & (size - 1) == 0
        assert size == MIN_BATCH_SIZE or images / size >= MIN_STEPS
        assert size == MAX_BATCH_SIZE or images / (2 * size) < MIN_STEPS


def test_the_run_folder_holds_what_the_rules_gave(bars, tmp_path):
    run = train(tiny(bars, batch_size=None, epochs=1), tmp_path / "run")
    assert (run.config.training.batch_size, run.config.optimizer.clip) == (8, 1.0)


def test_what_is_given_stays(bars, tmp_path):
    run = train(tiny(bars, batch_size=20, clip=0, epochs=1), tmp_path / "run")
    assert (run.config.training.batch_size, run.config.optimizer.clip) == (20, 0)
    spread = train(tiny(bars, loss="spread", reconstruction=0, epochs=1), tmp_path / "spread")
    assert spread.config.optimizer.clip == 0


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (torch.full((4, 10), 0.04), "dead"),
        (torch.full((4, 10), 0.95), "saturated"),
        (torch.full((4, 10), 0.3), None),
        (torch.eye(10), None),
        (torch.tensor([[0.97, 0.04], [0.03, 0.99]]), None),
        (torch.full((1, 3), 1.0), "saturated"),
    ],
)
def test_only_lengths_that_tell_nothing_are_stuck(lengths, expected):
    assert collapse_state(lengths) == expected


@pytest.fixture
def never_starts(monkeypatch):
    """Every network counts as saturated after its first step. Each training asks twice, there and in step 3."""
    return asked_in_turn(monkeypatch, None, "saturated")


def asked_in_turn(monkeypatch, *answers):
    """Make `collapse_state` give these answers, again and again; what it was asked about."""
    asked, given = [], itertools.cycle(answers)
    monkeypatch.setattr(
        classify_module,
        "collapse_state",
        lambda activation: asked.append(activation) or next(given),
    )
    return asked


def test_a_network_that_does_not_start_starts_again_once_at_a_tenth_of_the_rate(
    bars, tmp_path, never_starts
):
    rates = []
    train(tiny(bars), tmp_path / "run", emit=lambda row: rates.append(row["kind"]))
    assert [tuple(lengths.shape) for lengths in never_starts] == [(16, 3), (10, 3)]  # of 42 images
    reason = f"every class capsule was saturated after step 3; {RESTARTED}"
    assert notes(tmp_path / "run") == [reason]
    assert [row["restart"] for row in Run(tmp_path / "run").epochs] == [reason, reason]
    assert rates.count("tick") == 3 + 6 and rates.count("epoch") == 2


def test_the_second_attempt_is_the_run_with_a_tenth_of_the_rate(bars, tmp_path, monkeypatch):
    train(tiny(bars, lr=1e-4), tmp_path / "slow")
    asked_in_turn(monkeypatch, None, "dead")
    train(tiny(bars), tmp_path / "again")
    found, expected = contents(tmp_path / "again"), contents(tmp_path / "slow")
    assert found["model.safetensors"] == expected["model.safetensors"]
    rows = [row for row in found["metrics"] if row["kind"] != "note"]
    assert all(row.pop("restart") for row in rows)
    assert rows == expected["metrics"]


@pytest.mark.parametrize("step", range(1, 9))
def test_stopped_before_or_after_the_second_start_it_ends_in_the_same_bytes(
    bars, tmp_path, never_starts, step
):
    train(tiny(bars), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(tiny(bars), tmp_path / "run", should_stop=stop_after(step))
    train(TrainConfig(), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert len(notes(tmp_path / "run")) == 1


@pytest.mark.parametrize(("later", "again"), [("dead", 0), ("saturated", 1), (None, 0)])
def test_a_network_that_began_dead_does_not_start_again_for_that(
    bars, tmp_path, monkeypatch, later, again
):
    asked_in_turn(monkeypatch, "dead", later)
    with pytest.raises(Interrupted):
        train(tiny(bars, checkpoint_every=1), tmp_path / "run", should_stop=stop_after(2))
    train(TrainConfig(), tmp_path / "run", resume=True)
    assert len(notes(tmp_path / "run")) == again


def test_a_network_with_short_lengths_at_first_learns_from_few_images(tmp_path):
    # Nothing is planted: lengths of this network are below 0.05 at first, and 100 images are 13 steps an epoch.
    config = TrainConfig.of(
        data="digits",
        per_class=10,
        model="efficient_capsnet",
        model_options={"decoder": False},
        epochs=2,
        precision="fp32",
        device="cpu",
    )
    run = train(config, tmp_path / "run")
    epochs = [row for row in run.rows if row["kind"] == "epoch"]
    assert notes(run.path) == [] and epochs[1]["train_margin"] < epochs[0]["train_margin"]
    assert epochs[1]["warnings"] == [] or "train longer" in epochs[1]["warnings"][0]


def test_networks_without_capsules_do_not_start_again(bars, tmp_path, never_starts):
    config = tiny(bars, model="cnn_matched")
    train(config, tmp_path / "run")
    assert never_starts == []


def test_a_rate_that_saturates_every_capsule_is_noticed(bars, tmp_path):
    # Nothing is planted here: the first steps at this rate are too large for this network.
    torch.set_num_threads(1)
    run = train(tiny(bars, lr=0.3, clip=0, epochs=4), tmp_path / "run")
    assert [text.split(";")[0] for text in notes(run.path)] == [
        "every class capsule was saturated after step 6"
    ]
