"""`kill -9` at any moment, then --resume: the run ends in the same bytes as one that nothing stopped."""

from __future__ import annotations

import random
import shutil
import signal
import time

import pytest

from training.makers import contents, left_behind

from .commands import PLAIN, SMALL, begun, typed, until

EPOCHS, STEPS = 24, 168  # of the run below
RUN = (
    "train",
    "capsnet",
    "--output",
    "run",
    "--epochs",
    EPOCHS,
    "--batch-size",
    6,
    "--holdout",
    6,
    *SMALL,
)
SEED = 20_171_026


def words(bars):
    return (*RUN, "--data", bars, "--checkpoint-every", 5)


@pytest.fixture(scope="module")
def whole(bars, tmp_path_factory):
    """The run that nothing stopped."""
    cwd = tmp_path_factory.mktemp("whole")
    done = typed(*words(bars), cwd=cwd, command=PLAIN)
    assert done.returncode == 0, done.stderr
    return contents(cwd / "run")


def kill(bars, cwd, trigger, delay):
    """Start or resume the run, and kill it some milliseconds after the trigger; whether that came before its end."""
    process = begun(*words(bars), "--resume", cwd=cwd)
    came = until(lambda: trigger(cwd / "run"), process)
    time.sleep(delay)
    process.kill()
    process.communicate()
    return came and process.returncode == -signal.SIGKILL


def rows(run):
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def check_kills(bars, whole, cwd, kills):
    """Kill one run so many times, further on each time and first before its first checkpoint, then let it end."""
    luck = random.Random(SEED + kills)
    for _ in range(5):
        # Rows come every 20 steps and every epoch. The last fifth is left, for the run not to end first.
        last = int(0.8 * (STEPS // 20 + EPOCHS))
        targets = sorted(luck.sample(range(1, last), kills - 1))
        begins = [
            lambda run: (run / "config.json").exists(),
            *(lambda run, t=t: rows(run) >= t for t in targets),
        ]
        delays = [0, *(luck.uniform(0, 0.03) for _ in targets)]
        if all(kill(bars, cwd, begin, delay) for begin, delay in zip(begins, delays, strict=True)):
            break
        shutil.rmtree(cwd / "run")
    else:
        pytest.fail("the run ended before it could be killed, five times")
    done = typed(*words(bars), "--resume", cwd=cwd, command=PLAIN)
    assert done.returncode == 0, done.stderr
    assert contents(cwd / "run") == whole
    assert left_behind(cwd) == []


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_and_resumed_it_ends_in_the_same_bytes(bars, whole, tmp_path, kills):
    check_kills(bars, whole, tmp_path, kills)


def stop(number, cwd, after, *line):
    """Start or resume a run, send it a signal after so many rows, and return its status and what it said."""
    process = begun(*line, cwd=cwd)
    assert until(lambda: rows(cwd / "run") >= after, process)
    process.send_signal(number)
    _, err = process.communicate()
    return process.returncode, err


@pytest.mark.slow
def test_stopped_by_signals_it_saves_and_resumes_to_the_same_bytes(bars, whole, tmp_path):
    again = ("train", "capsnet", "--output", "run", "--resume")
    for number, after, line in ((signal.SIGINT, 5, words(bars)), (signal.SIGTERM, 20, again)):
        status, err = stop(number, tmp_path, after, *line)
        assert status == 128 + number
        assert (
            "the state is saved; continue with: torchcaps train capsnet --output run --resume"
            in err
        )
        assert "Traceback" not in err
        assert (tmp_path / "run" / "checkpoints" / "last.safetensors").exists()
        assert left_behind(tmp_path) == []
    done = typed(*again, cwd=tmp_path, command=PLAIN)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "run") == whole


def test_more_signals_after_the_state_is_saved_do_not_change_the_status(bars, tmp_path):
    process = begun(*words(bars), cwd=tmp_path)
    assert until(lambda: rows(tmp_path / "run") >= 5, process)
    process.send_signal(signal.SIGINT)
    while "the state is saved" not in process.stderr.readline():
        assert process.poll() is None
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    assert process.returncode == 130
    assert process.communicate()[1] == ""
