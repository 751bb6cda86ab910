"""Trainings in threads of one process do not meet: each gives the bits that it gives alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from torchcaps.training import Interrupted, train

from .makers import contents, tiny

CNN = {"model": "cnn_smallnorb", "reconstruction": 0.0}
SETTINGS = ({}, {"seed": 1}, CNN, {"precision": "bf16", "seed": 2})


def config(bars, **changes):
    made = tiny(bars, **changes)
    return (
        made.updated(model_options={"channels": (4, 4), "hidden": (8,)})
        if made.model.name != "capsnet"
        else made
    )


def at_once(jobs):
    """Outcomes of functions that run in a thread each."""

    def run(job):
        torch.set_num_threads(1)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


@pytest.mark.parametrize("attempt", range(4))
def test_trainings_at_once_give_what_each_gives_alone(bars, tmp_path, attempt):
    alone = tmp_path / "alone"
    together = [
        (config(bars, **SETTINGS[n]), tmp_path / f"{n}")
        for n in (attempt, (attempt + 1) % len(SETTINGS))
    ]
    torch.manual_seed(attempt)  # what the process drew before has no say
    train(together[0][0], alone)
    at_once([lambda each=each: train(*each) for each in together])
    assert contents(tmp_path / f"{attempt}") == contents(alone)


def test_dropout_goes_on_where_a_training_stopped(bars, tmp_path):
    train(config(bars, **CNN), tmp_path / "whole")
    steps = iter(range(1, 100))
    with pytest.raises(Interrupted):
        train(config(bars, **CNN), tmp_path / "run", should_stop=lambda: next(steps) == 4)
    torch.manual_seed(1)
    train(config(bars, **CNN), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_training_leaves_the_global_generator_alone(bars, tmp_path):
    before = torch.get_rng_state()
    train(config(bars, **CNN, epochs=1), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
