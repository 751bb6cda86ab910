"""Trainings in threads of one process do not disturb each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from torchcaps.training import Interrupted, train

from .makers import contents, stop_after, tiny

CNN = {"model": "cnn_smallnorb", "reconstruction": 0.0}


def config_of(bars, **changes):
    config = tiny(bars, **changes)
    if config.model.name == "capsnet":
        return config
    return config.updated(model_options={"channels": (4, 4), "hidden": (8,)})


def run_in_threads(jobs):
    """Run functions in a thread each."""

    def run(job):
        torch.set_num_threads(1)
        job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(run, jobs))


@pytest.mark.parametrize(
    ("settings", "settings_of_second"),
    [({}, {"seed": 1}), (CNN, {"precision": "bf16", "seed": 2})],
)
def test_a_training_beside_a_second_one_has_the_same_bits(
    bars, tmp_path, settings, settings_of_second
):
    config = config_of(bars, **settings)
    train(config, tmp_path / "expected")
    training = partial(train, config, tmp_path / "run")
    second = partial(train, config_of(bars, **settings_of_second), tmp_path / "second")
    run_in_threads([training, second])
    assert contents(tmp_path / "run") == contents(tmp_path / "expected")


def test_dropout_continues_where_a_training_stopped(bars, tmp_path):
    config = config_of(bars, **CNN)
    train(config, tmp_path / "uninterrupted")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", should_stop=stop_after(4))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    train(config, tmp_path / "run", resume=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert contents(tmp_path / "run") == contents(tmp_path / "uninterrupted")
