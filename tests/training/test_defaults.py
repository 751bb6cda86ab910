"""Decisions of a training: the batch size, and a second start."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from checks import column
from torchcaps.errors import ArgumentError
from torchcaps.settings import OptimizerSettings
from torchcaps.tasks import collapse
from torchcaps.tasks._config import (
    default_batch_size,
)
from torchcaps.training import TrainConfig, register_optimizer, train
from torchcaps.training.optimizers import OPTIMIZERS, create_optimizer

from .makers import Watch, contents, resume, tiny, train_until

RESTARTED = "the training starts again, once, with a tenth of the learning rate (0.0001)"


@pytest.mark.parametrize(
    ("num_images", "batch_size"),
    [(1, 8), (1150, 8), (1600, 16), (5400, 32), (12_799, 64), (12_800, 128), (10**7, 128)],
)
def test_batches_are_as_large_as_leaves_enough_steps(num_images, batch_size):
    assert default_batch_size(num_images) == batch_size


def plant_states(monkeypatch, *states):
    """Make `collapse_state` return these states in a cycle, and record the sizes of its input."""
    sizes = []
    cycle = itertools.cycle(states)

    def collapse_state(lengths):
        sizes.append(tuple(lengths.shape))
        return next(cycle)

    monkeypatch.setattr(collapse, "collapse_state", collapse_state)
    monkeypatch.setattr(collapse, "collapse_warnings", lambda *_: [])
    return sizes


@pytest.fixture
def saturated(monkeypatch):
    """Every network is saturated after its first step; a training asks in steps 1 and 3."""
    return plant_states(monkeypatch, None, "saturated")


def test_a_network_that_is_stuck_starts_again_once_at_a_tenth_of_the_rate(
    bars, tmp_path, saturated
):
    watch = Watch()
    run = train(tiny(bars), tmp_path / "run", callbacks=[watch])
    assert saturated == [(16, 3), (10, 3)]  # of 42 images
    reason = f"every class capsule was saturated after step 3; {RESTARTED}"
    assert run.notes == [reason]
    assert column(run.epochs, "restart") == [reason, reason]
    assert (len(watch.steps), len(watch.rows)) == (3 + 6, 2)


def test_the_second_attempt_is_the_run_with_a_tenth_of_the_rate(bars, tmp_path, monkeypatch):
    plant_states(monkeypatch, None)
    train(tiny(bars, lr=1e-4), tmp_path / "slow")
    plant_states(monkeypatch, None, "dead")
    train(tiny(bars), tmp_path / "restarted")
    restarted = contents(tmp_path / "restarted")
    expected = contents(tmp_path / "slow")
    assert restarted["model.safetensors"] == expected["model.safetensors"]
    note, *rows = restarted["metrics"]
    assert note["kind"] == "note"
    for row in rows:
        assert row.pop("restart")
    assert rows == expected["metrics"]


def test_networks_without_capsules_are_not_asked_for_a_collapse(bars, tmp_path, saturated):
    train(tiny(bars, model="cnn_matched", epochs=1), tmp_path / "run")
    assert saturated == []


def test_stopped_around_the_second_start_a_run_ends_in_the_same_bytes(bars, tmp_path, saturated):
    expected = contents(train(tiny(bars), tmp_path / "uninterrupted").path)
    for step in (1, 3, 5):
        folder = tmp_path / str(step)
        train_until(step, tiny(bars), folder)
        run = resume(folder)
        assert contents(run.path) == expected
        assert len(run.notes) == 1


@pytest.mark.parametrize(
    ("state", "num_restarts"),
    [
        ("dead", 0),
        ("saturated", 1),
    ],
)
def test_a_network_that_began_dead_does_not_start_again_for_that(
    bars, tmp_path, monkeypatch, state, num_restarts
):
    plant_states(monkeypatch, "dead", state)
    train_until(2, tiny(bars, checkpoint_every=1), tmp_path / "run")
    run = resume(tmp_path / "run")
    assert len(run.notes) == num_restarts


@pytest.mark.slow
def test_a_network_with_short_lengths_at_first_learns_from_few_images(tmp_path):
    """The lengths of this network are below 0.05 at first, and no state is planted."""
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
    assert run.notes == []
    start, end = column(run.epochs, "train_margin")
    assert end < start


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"momentum": 0.5}, "momentum: has no effect with the optimizer adam, got 0.5; leave it "
                            "out, or take it with sgd"),
        ({"milestones": [1]}, r"milestones: .* with the schedule warmup_cosine, got \(1,\)"),
        ({"decay": 0.1, "schedule": "cosine"}, "decay: .* or take it with steps or exponential"),

    ],
)  # fmt: skip
def test_a_setting_that_is_not_read_is_refused(bars, tmp_path, settings, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        train(tiny(bars, **settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_optimizer_or_schedule_comes_with_its_own_defaults(bars, tmp_path):
    recipe = tiny(
        bars,
        epochs=1,
        optimizer="sgd",
        momentum=0.5,
        nesterov=True,
        weight_decay=0.1,
        schedule="steps",
        milestones=[3],
    )
    changed = recipe.updated(optimizer="adam", schedule="exponential")
    assert (changed.optimizer.momentum, changed.optimizer.nesterov) == (None, False)
    assert (changed.optimizer.weight_decay, changed.schedule.milestones) == (0.1, ())
    run = train(changed, tmp_path / "run")
    assert (run.config.optimizer.momentum, run.config.schedule.decay) == (None, 0.1)
    repeat = recipe.updated(optimizer="sgd", schedule="steps")
    assert repeat == recipe
    assert recipe.updated(optimizer="adam", momentum=0.3).optimizer.momentum == 0.3


def test_a_weight_decay_that_an_optimizer_does_not_apply_is_refused():
    def plain(parameters, lr, settings):
        return torch.optim.SGD([weight for _, weight in parameters], lr)

    def decaying(parameters, lr, settings):
        weights = [{"params": [weight]} for _, weight in parameters]
        weights[0]["weight_decay"] = settings.weight_decay
        return torch.optim.SGD(weights, lr)

    with OPTIMIZERS.restored():
        OPTIMIZERS.add("plain", plain)
        OPTIMIZERS.add("decaying", decaying)
        with pytest.raises(ArgumentError, match="weight_decay: has no effect with the .* plain, g"):
            create_optimizer(nn.Linear(2, 2), OptimizerSettings(name="plain", weight_decay=0.1))
        create_optimizer(nn.Linear(2, 2), OptimizerSettings(name="plain"))
        create_optimizer(nn.Linear(2, 2), OptimizerSettings(name="decaying", weight_decay=0.1))


def test_an_optimizer_declares_what_it_reads(bars, tmp_path):
    momenta = []

    def heavy(parameters, lr, settings):
        momenta.append(settings.momentum)
        return torch.optim.SGD([weight for _, weight in parameters], lr)

    with OPTIMIZERS.restored():
        register_optimizer("heavy", reads=("momentum",))(heavy)
        train(tiny(bars, epochs=1, optimizer="heavy"), tmp_path / "default")
        train(tiny(bars, epochs=1, optimizer="heavy", momentum=0.3), tmp_path / "setting")
        register_optimizer("heavy", replace=True)(heavy)
        with pytest.raises(ArgumentError, match="momentum: has no effect with the optimizer heavy"):
            train(tiny(bars, epochs=1, optimizer="heavy", momentum=0.3), tmp_path / "refused")
    assert momenta == [0.9, 0.3]
