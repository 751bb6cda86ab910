"""`kill -9` and signals, then --resume: the run ends in the same bytes as one that went through."""

from __future__ import annotations

import random
import shutil
import signal
import time

import pytest

from torchcaps.cli.main import main
from torchcaps.reporting import api
from torchcaps.training import device
from training.makers import contents, count_rows, leftovers

from .commands import SMALL, flatten, start_command, wait_for

EPOCHS = 8
STEPS = 56  # of all epochs
TRAIN = f"train capsnet --output run --epochs {EPOCHS} --batch-size 6 --holdout 6"
SEED = 20_171_026


def train_words(bars):
    return (TRAIN, SMALL, "--checkpoint-every 5 --data", bars)


def run_here(words):
    """Train in this process, without plots."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(api, "can_plot", lambda: False)
        monkeypatch.setattr(device, "_default", 1)  # as in a new process
        assert main(list(flatten([words, "--no-keep-memory --threads 1"]))) == 0


@pytest.fixture(scope="module")
def expected(bars, tmp_path_factory):
    """What the run that nothing stopped ends in."""
    cwd = tmp_path_factory.mktemp("whole")
    run_here((train_words(bars), "--output", cwd / "run"))
    return contents(cwd / "run")


def check_resumed(words, expected, cwd):
    """Resume to the end, and compare."""
    run_here((words, "--output", cwd / "run"))
    assert contents(cwd / "run") == expected
    assert leftovers(cwd) == []


def kill(bars, cwd, num_rows, delay):
    """Resume the run, and kill it so many seconds after it has this many rows.

    Returns whether that came before its end.
    """
    process = start_command(train_words(bars), "--resume", cwd=cwd)
    has_rows = wait_for(lambda: count_rows(cwd / "run") >= num_rows, process)
    time.sleep(delay)
    process.kill()
    process.communicate()
    return has_rows and process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_and_resumed_it_ends_in_the_same_bytes(bars, expected, tmp_path, kills):
    """The first kill is before the first checkpoint, each other one further on."""
    numbers = random.Random(SEED + kills)
    # A row every 20 steps and every epoch; the last fifth is left out, or the run may end first.
    max_rows = int(0.8 * (STEPS // 20 + EPOCHS))
    for _ in range(5):
        targets = sorted(numbers.sample(range(1, max_rows), kills - 1))
        were_killed = [kill(bars, tmp_path, 0, delay=0)]
        for num_rows in targets:
            were_killed.append(kill(bars, tmp_path, num_rows, delay=numbers.uniform(0, 0.03)))
        if all(were_killed):
            break
        shutil.rmtree(tmp_path / "run")
    else:
        pytest.fail("the run ended before it could be killed, five times")
    check_resumed((train_words(bars), "--resume"), expected, tmp_path)
