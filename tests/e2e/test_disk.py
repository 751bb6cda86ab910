"""Training from files on disk: signals leave no worker behind, and `--resume` gives the same bytes."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from data.makers import write_folder
from training.makers import contents, count_rows, leftovers

from .commands import PLAIN, SMALL, run_command, start_command, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
FLAGS = "--img-size 18 --batch-size 6 --holdout 6 --epochs 6 --checkpoint-every 5"
# In a group of its own, so that its workers can be counted.
GROUPED = (sys.executable, "-c", "import os; os.setsid(); " + PLAIN[2])


def train_words(folder, workers):
    options = f"--storage disk --workers {workers} --output run"
    return ("train capsnet --data", folder, SMALL, FLAGS, options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("disk") / "own", count=60, size=(40, 40))


def count_processes(group):
    """Living members of a group of processes; those that ended may wait for init to notice it."""
    num_processes = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended meanwhile
            state, _, member_of = stat.read_text().rpartition(")")[2].split()[:3]
            num_processes += int(member_of) == group and state != "Z"
    return num_processes


@pytest.mark.slow
def test_killed_and_interrupted_with_workers_it_resumes_to_the_same_bytes(folder, tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    process = run_command(train_words(folder, 0), cwd=whole, program=PLAIN)
    assert process.returncode == 0, process.stderr

    # A kill, after which the lock is free at once although there were workers.
    process = start_command(train_words(folder, 2), cwd=tmp_path, program=GROUPED)
    assert wait_for(lambda: count_rows(tmp_path / "run") >= 1, process)
    process.kill()
    process.communicate()
    time.sleep(0.05)
    assert count_processes(process.pid) == 0

    # Ctrl-C, which the terminal sends to all processes of the group.
    process = start_command("train capsnet --output run --resume", cwd=tmp_path, program=GROUPED)
    rows = count_rows(tmp_path / "run")
    assert wait_for(lambda: count_rows(tmp_path / "run") > rows, process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "continue with: torchcaps train capsnet --output run --resume" in err
    assert "Traceback" not in err
    assert count_processes(process.pid) == 0
    assert leftovers(tmp_path / "run") == []

    words = ("train", "capsnet", "--output", "run", "--resume", "--workers", 1)
    process = run_command(words, cwd=tmp_path, program=PLAIN)
    assert process.returncode == 0, process.stderr
    resumed = contents(tmp_path / "run")
    expected = contents(whole / "run")
    assert resumed["model.safetensors"] == expected["model.safetensors"]
    assert resumed["metrics"] == expected["metrics"]
