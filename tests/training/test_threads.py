"""Trainings in threads of one process do not meet: each gives the bits that it gives alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from torchcaps.training import Interrupted, train

from .makers import contents, stop_after, tiny

CNN = {"model": "cnn_smallnorb", "reconstruction": 0.0}
SETTINGS = ({}, {"seed": 1}, CNN, {"precision": "bf16", "seed": 2})


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


@pytest.mark.parametrize("first", [0, 2])
def test_trainings_at_once_give_what_each_gives_alone(bars, tmp_path, first):
    configs = [config_of(bars, **SETTINGS[n]) for n in (first, first + 1)]
    torch.manual_seed(first)  # what the process drew before has no say
    train(configs[0], tmp_path / "expected")
    jobs = [partial(train, config, tmp_path / str(n)) for n, config in enumerate(configs)]
    run_in_threads(jobs)
    assert contents(tmp_path / "0") == contents(tmp_path / "expected")


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
