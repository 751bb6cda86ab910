"""The speed of a training by its first steps, and advice on threads."""

import pytest
import torch

from torchcaps.training.speed import SpeedReport, advise_threads, thread_advice, time_threads


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def sentences(step_seconds, total_steps=1000, images_per_step=32):
    """What is said after each of these steps."""
    clock = Clock()
    report = SpeedReport(total_steps, images_per_step, clock)
    texts = []
    for step, seconds in enumerate(step_seconds, start=1):
        clock.now += seconds
        texts.append(report.after_step(step))
    return texts


def test_the_speed_is_said_once_without_the_first_step():
    texts = sentences([60.0, 0.5, 0.5, 0.5, 0.5])
    # Three steps of half a second: 64 images a second, 996 steps to go.
    assert texts == ["", "", "", "about 64 images/s: 8 min to go, without validation", ""]


def test_nothing_is_said_before_a_second():
    assert not any(sentences([0.01] * 50))


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "40 s"), (7.2, "12 min"), (100.0, "2 h 47 min")]
)
def test_the_rest_in_words(seconds, words):
    assert f": {words} to go" in "".join(sentences([seconds] * 4, total_steps=104))


def test_one_thread_is_advised_where_all_are_much_slower():
    text = advise_threads(2, [25e-3] * 5, [1e-3] * 5)
    assert text.startswith("an operation takes 25 times as long with 2 threads as with one")
    assert "--threads 1" in text
    assert "torch.set_num_threads(1)" in text


@pytest.mark.parametrize(
    "together",
    [
        [0.5e-3] * 5,  # a quiet machine
        [0.5e-3, 80e-3, 0.6e-3, 90e-3, 0.5e-3],  # two interruptions
        [2.5e-3] * 5,  # slower, but not by much
    ],
)
def test_nothing_is_advised_without_a_clear_loss(together):
    assert advise_threads(2, together, [1e-3] * 5) == ""


def test_one_thread_needs_no_advice():
    assert torch.get_num_threads() == 1
    assert thread_advice(torch.device("cpu")) == ""


def test_threads_are_timed_and_not_changed():
    torch.set_num_threads(2)
    together, alone = time_threads()
    assert torch.get_num_threads() == 2
    assert len(together) == len(alone) > 3
    assert min(together + alone) > 0
