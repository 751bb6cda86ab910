"""The number of threads; and trainings in threads of one process do not disturb each other."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch.__config__ import parallel_info

from torchcaps.training import Interrupted, Run, device, train

from .makers import TINY, Watch, assert_resumes, contents, resume, stop_after, tiny

CPU = torch.device("cpu")


def config_of(bars):
    """A network with dropout."""
    options = {"channels": (4, 4), "hidden": (8,)}
    return tiny(bars, model="cnn_smallnorb", reconstruction=0.0, model_options=options)


def run_in_threads(jobs):
    """Run functions in a thread each."""

    def run(job):
        torch.set_num_threads(1)
        job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(run, jobs))


def test_a_training_beside_a_second_one_has_the_same_bits(bars, tmp_path):
    config = config_of(bars)
    train(config, tmp_path / "expected")
    training = partial(train, config, tmp_path / "run")
    second = partial(train, tiny(bars, precision="bf16", seed=2), tmp_path / "second")
    run_in_threads([training, second])
    assert contents(tmp_path / "run") == contents(tmp_path / "expected")


@pytest.mark.parametrize("source", ["dropout", "router"])
def test_random_numbers_continue_where_a_training_stopped(bars, tmp_path, source):
    config = config_of(bars)
    if source == "router":
        options = TINY | {"routing": "slot_attention", "decoder": (4, 4)}
        config = tiny(bars, model_options=options)  # whose poses draw
    assert_resumes(config, tmp_path, step=4)


@pytest.fixture
def four_threads(monkeypatch):
    """Two threads of torch's choice, all of which take 25 times as long as one."""
    monkeypatch.setattr(device, "_default", 2)
    monkeypatch.setattr(device, "measure_slowdown", lambda: 25.0)
    words = re.sub("OMP_NUM_THREADS : .*", "OMP_NUM_THREADS : [not set]", parallel_info())
    assert "OMP_NUM_THREADS" in words  # as torch writes it
    monkeypatch.setattr(torch.__config__, "parallel_info", lambda: words)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_one_thread_is_taken_where_all_are_far_slower(four_threads, monkeypatch):
    with device.training_threads(CPU) as sentence:
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    assert sentence.startswith("one thread in place of 2: ")
    assert "25 times as long" in sentence
    monkeypatch.setattr(device, "measure_slowdown", lambda: 2.5)
    with device.training_threads(CPU) as sentence:
        assert (torch.get_num_threads(), sentence) == (2, "")
    with device.training_threads(torch.device("cuda")) as sentence:
        assert (torch.get_num_threads(), sentence) == (2, "")


@pytest.mark.parametrize("way", ["flag", "torch", "variable"])
def test_a_number_of_threads_that_was_set_stays(four_threads, monkeypatch, way):
    if way == "flag":
        device.set_threads("--threads", 2)
    elif way == "torch":
        torch.set_num_threads(3)
    else:
        monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "OMP_NUM_THREADS : 2")
    count = torch.get_num_threads()
    with device.training_threads(CPU) as sentence:
        assert (torch.get_num_threads(), sentence) == (count, "")


def test_interruptions_do_not_count_as_slow_threads(monkeypatch):
    rounds = iter([[2.0, 900.0, 2.0, 2.0, 900.0], [4.0, 4.0, 0.1, 4.0, 4.0]] * 3)
    monkeypatch.setattr(device, "repeat", lambda *_, **__: next(rounds))
    assert device.measure_slowdown() == 0.5


def test_the_slowest_of_three_moments_counts(monkeypatch):
    rounds = iter([[1.0], [2.0], [50.0], [2.0], [3.0], [2.0]])
    monkeypatch.setattr(device, "repeat", lambda *_, **__: next(rounds))
    assert device.measure_slowdown() == 25.0


def test_the_measurement_leaves_the_number_of_threads():
    assert device.measure_slowdown() > 0.1
    assert torch.get_num_threads() == 1


def test_a_run_goes_on_with_the_threads_that_were_chosen(four_threads, bars, tmp_path, monkeypatch):
    watch = Watch()
    with pytest.raises(Interrupted):
        train(tiny(bars), tmp_path, callbacks=[stop_after(2), watch])
    assert any("one thread in place of 2" in text for text in watch.messages)
    assert Run(tmp_path).environment["threads"] == 1
    monkeypatch.setattr(device, "measure_slowdown", lambda: 0.5)
    counts = []
    watch = Watch(lambda *_: counts.append(torch.get_num_threads()))
    resume(tmp_path, callbacks=[watch])
    assert set(counts) == {1}
    assert torch.get_num_threads() == 2
