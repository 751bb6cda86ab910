from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torchcaps.errors import ArgumentError
from torchcaps.training import TrainConfig, register_schedule
from torchcaps.training.optimizers import create_optimizer
from torchcaps.training.schedules import SCHEDULES, learning_rate_factor


def factors(total, lr_restarts=(0.0,), **settings):
    config = TrainConfig.of(**{"lr": 1e-3, "schedule": "warmup_cosine"} | settings)
    return [learning_rate_factor(config, step, total, lr_restarts) for step in range(total)]


def test_the_default_rises_for_a_twentieth_and_falls_to_almost_nothing():
    rates = factors(2000)
    assert rates[:100] == pytest.approx(0.01 * np.arange(1, 101))
    assert rates[99] == rates[100] == max(rates) == 1
    assert np.diff(rates[100:]).max() < 0
    assert rates[1050] == pytest.approx(0.5)  # the middle of the fall
    assert 0 < rates[-1] == pytest.approx(0.5 * (1 + math.cos(math.pi * 1899 / 1900)))


@pytest.mark.parametrize(
    ("total", "rise"), [(1000, 50), (800, 40), (200, 40), (79, 39), (10, 5), (2, 1), (1, 1)]
)
def test_short_runs_rise_for_forty_steps_or_half_of_them(total, rise):
    rates = factors(total)
    assert rates[:rise] == pytest.approx(np.arange(1, rise + 1) / rise)
    assert max(rates) == rates[rise - 1] <= 1
    assert min(rates) > 0


def test_the_paper_schedule_is_the_authors_formula_with_its_floor():
    config = TrainConfig.of(schedule="paper", lr=0.001)
    for step in (999, 1000, 1999, 2000, 100_000):
        expected = 0.96 ** (step / 2000)
        assert learning_rate_factor(config, step, 300_000) == pytest.approx(expected, rel=1e-12)
    assert 0.001 * learning_rate_factor(config, 10**6, 10**6) == pytest.approx(1e-6)


def test_the_paper_schedule_rises_for_a_thousand_steps_or_a_twentieth():
    config = TrainConfig.of(schedule="paper", lr=0.001)
    assert learning_rate_factor(config, 0, 300_000) == pytest.approx(1e-3)
    assert learning_rate_factor(config, 499, 300_000) == pytest.approx(0.5 * 0.96 ** (499 / 2000))
    rates = factors(1000, schedule="paper")
    assert rates[0] == pytest.approx(0.02)
    assert rates[49] == max(rates) == pytest.approx(1, rel=2e-3)


def test_the_constant_schedule_rises_like_the_default_and_stays():
    rates = factors(2000, schedule="constant")
    assert rates[:100] == factors(2000)[:100]
    assert set(rates[99:]) == {1}


@pytest.mark.parametrize("name", ["warmup_cosine", "cosine", "constant"])
def test_a_schedule_starts_anew_in_each_stage(name):
    rates = factors(1000, (0.0, 0.7), schedule=name)
    assert rates == factors(700, schedule=name) + factors(300, schedule=name)


@pytest.mark.parametrize("name", ["paper", "exponential", "steps"])
def test_schedules_of_a_complete_run_ignore_stages(name):
    settings = {"epochs": 10, "schedule": name, "milestones": (3,), "decay": 0.1}
    assert factors(100, (0.0, 0.7), **settings) == factors(100, **settings)


def test_the_cosine_falls_from_the_start():
    expected = 0.5 * (1 + np.cos(np.pi * np.arange(100) / 100))
    assert factors(100, schedule="cosine") == pytest.approx(expected)


def test_the_rate_falls_at_milestones():
    rates = factors(100, schedule="steps", epochs=10, milestones=(5, 8), decay=0.1)
    assert rates == pytest.approx([1] * 50 + [0.1] * 30 + [0.01] * 20)


def test_an_extension_leaves_the_milestones_before_it_where_they_were():
    settings = {"schedule": "steps", "milestones": (4,), "decay": 0.1}
    extended = factors(100, **settings, epochs=10, extended_at=(5,))
    assert extended[:50] == factors(50, **settings, epochs=5)


def test_the_rate_falls_after_each_epoch_to_a_tenth():
    rates = factors(40, schedule="exponential", epochs=20, decay=0.8)
    rate_of_epoch = np.maximum(0.1, 0.8 ** np.arange(20))
    assert rates == pytest.approx(rate_of_epoch.repeat(2))


def test_a_schedule_can_be_registered():
    with SCHEDULES.restored():

        @register_schedule("linear")
        def linear(step, total_steps, config):
            return 1 - step / total_steps

        assert factors(4, schedule="linear") == [1, 0.75, 0.5, 0.25]
        assert factors(4, (0.0, 0.5), schedule="linear") == [1, 0.5, 1, 0.5]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_every_optimizer_takes_its_settings(name):
    config = TrainConfig.of(
        optimizer=name, lr=0.5, weight_decay=0.25, momentum=0.8, nesterov=True
    ).updated(optimizer_options={"foreach": False, "fused": False})
    optimizer = create_optimizer(torch.nn.Linear(3, 1), config.optimizer)
    assert type(optimizer).__name__.lower() == name
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["fused"]) == (0.5, 0.25, False)
    if name == "sgd":
        assert (group["momentum"], group["nesterov"]) == (0.8, True)


@pytest.mark.parametrize("options", [{"beta": [0.9, 0.99]}, {"betas": [0.9, 1.5]}])
def test_options_that_an_optimizer_does_not_take_are_refused(options):
    config = TrainConfig.of(lr=0.1, optimizer_options=options)
    with pytest.raises(ArgumentError, match="^optimizer_options: "):
        create_optimizer(torch.nn.Linear(3, 1), config.optimizer)
