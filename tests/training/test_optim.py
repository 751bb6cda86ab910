from __future__ import annotations

import math

import pytest
import torch

from torchcaps.errors import RunError
from torchcaps.training import TrainConfig
from torchcaps.training.optim import (
    create_optimizer,
    has_bf16,
    learning_rate,
    resolve_device,
    resolve_precision,
)


def rates(total, **settings):
    config = TrainConfig.of(**{"lr": 1e-3, "schedule": "warmup_cosine"} | settings)
    return [learning_rate(config, step, total) for step in range(total)]


def test_the_short_schedule_rises_for_a_twentieth_and_falls_to_almost_nothing():
    found = rates(2000, schedule="warmup_cosine", lr=0.5)
    assert found[:100] == pytest.approx([0.005 * (k + 1) for k in range(100)])
    assert found[99] == found[100] == max(found) == 0.5
    assert all(later < earlier for earlier, later in zip(found[100:], found[101:], strict=False))
    assert found[1050] == pytest.approx(0.25)  # the middle of the fall
    assert 0 < found[-1] == pytest.approx(0.5 * 0.5 * (1 + math.cos(math.pi * 1899 / 1900)))


@pytest.mark.parametrize(
    ("total", "rise"), [(1000, 50), (800, 40), (200, 40), (79, 39), (10, 5), (2, 1), (1, 1)]
)
def test_short_runs_rise_for_forty_steps_or_half_of_them(total, rise):
    found = rates(total, lr=0.5)
    assert found[:rise] == pytest.approx([0.5 * (k + 1) / rise for k in range(rise)])
    assert max(found) == found[rise - 1] and all(rate <= 0.5 for rate in found)


@pytest.mark.parametrize("total", [1, 2, 3])
def test_the_shortest_runs_have_a_rate_above_zero_at_every_step(total):
    assert all(0 < rate <= 1e-3 for rate in rates(total))


def test_the_paper_schedule_is_the_authors_formula_with_its_floor():
    config = TrainConfig.of(schedule="paper", lr=0.001)
    for step in (999, 1000, 1999, 2000, 100_000):
        assert learning_rate(config, step, 300_000) == pytest.approx(
            0.001 * 0.96 ** (step / 2000), rel=1e-12
        )
    assert learning_rate(config, 10**6, 10**6) == 1e-6


def test_the_paper_schedule_rises_for_a_thousand_steps_or_a_twentieth():
    config = TrainConfig.of(schedule="paper", lr=0.001)
    assert learning_rate(config, 0, 300_000) == pytest.approx(1e-6)
    assert learning_rate(config, 499, 300_000) == pytest.approx(0.0005 * 0.96 ** (499 / 2000))
    found = rates(1000, schedule="paper", lr=0.001)
    assert found[0] == pytest.approx(0.00002) and found[49] == max(found) == pytest.approx(
        0.001, rel=2e-3
    )


def test_the_constant_schedule_rises_like_the_short_one_and_stays():
    found = rates(2000, schedule="constant", lr=0.25)
    assert found[:100] == rates(2000, schedule="warmup_cosine", lr=0.25)[:100]
    assert set(found[99:]) == {0.25}


@pytest.mark.parametrize("name", ["warmup_cosine", "cosine", "constant"])
def test_a_schedule_starts_anew_in_each_stage(name):
    config = TrainConfig.of(lr=1e-3, schedule=name)
    found = [learning_rate(config, step, 1000, (0.0, 0.7)) for step in range(1000)]
    assert found == rates(700, schedule=name) + rates(300, schedule=name)


@pytest.mark.parametrize("name", ["paper", "exponential", "steps"])
def test_schedules_of_whole_runs_know_no_stages(name):
    config = TrainConfig.of(lr=1e-3, epochs=10, schedule=name, milestones=(3,))
    found = [learning_rate(config, step, 100, (0.0, 0.7)) for step in range(100)]
    assert found == [learning_rate(config, step, 100) for step in range(100)]


def test_the_cosine_falls_from_the_start():
    found = rates(100, schedule="cosine", lr=0.5)
    assert found == pytest.approx(
        [0.25 * (1 + math.cos(math.pi * step / 100)) for step in range(100)]
    )


def test_the_rate_falls_at_milestones():
    found = rates(100, schedule="steps", lr=0.1, epochs=10, milestones=(5, 8), decay=0.1)
    assert found == pytest.approx([0.1] * 50 + [0.01] * 30 + [0.001] * 20)


def test_the_rate_falls_after_each_epoch_to_a_tenth():
    found = rates(40, schedule="exponential", lr=0.5, epochs=20, decay=0.8)
    assert found == pytest.approx(
        [0.5 * max(0.1, 0.8**epoch) for epoch in range(20) for _ in range(2)]
    )


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_every_optimizer_takes_its_settings(name):
    weight = torch.nn.Parameter(torch.ones(3))
    config = TrainConfig.of(optimizer=name, lr=0.5, weight_decay=0.25, momentum=0.8, nesterov=True)
    found = create_optimizer([weight], config)
    assert type(found).__name__.lower() == name
    group = found.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.25)
    if name == "sgd":
        assert (group["momentum"], group["nesterov"]) == (0.8, True)
    with pytest.raises(ValueError, match="unknown optimizer 'adan'; did you mean"):
        create_optimizer([weight], TrainConfig.of(optimizer="adan", lr=0.1))


def test_the_device_is_found_or_named_with_the_reason():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("nonsense", "meta", "cuda:99"):
        with pytest.raises(RunError, match=f"device: '{name}' cannot be used here"):
            resolve_device(name)


def test_auto_is_bf16_where_the_hardware_has_it(monkeypatch):
    cpu = torch.device("cpu")
    assert resolve_precision("fp32", cpu) == "fp32"
    assert resolve_precision("bf16", cpu) == "bf16"
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert not has_bf16(cpu)
    assert resolve_precision("auto", cpu) == "fp32"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert resolve_precision("auto", cpu) == "bf16"
