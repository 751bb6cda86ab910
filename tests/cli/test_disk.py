"""A disk that is full or read-only: one sentence, status 1, and nothing lost."""

from __future__ import annotations

import os

import pytest

from training.makers import contents, leftovers

from .conftest import RESUME, first_words

pytestmark = pytest.mark.usefixtures("no_plots")


def sentence(outcome):
    """The one error that a failed command prints, after the lines on the training and its epochs."""
    assert outcome.status == 1
    *epochs, error = outcome.err.splitlines()
    assert set(first_words(epochs)) <= {"reading", "training", "capsnet:", "epoch", "evaluating"}
    assert error.startswith("torchcaps: error: ")
    return error


def test_a_disk_that_fills_up_keeps_the_last_checkpoint_and_the_run_goes_on_when_there_is_room(
    command, start, tmp_path, small_disk
):
    start = (start, "--checkpoint-every", 2)
    assert command(start, "--output complete").status == 0
    state_size = (tmp_path / "complete" / "checkpoints" / "last.safetensors").stat().st_size
    disk = small_disk(int(1.6 * state_size))  # one state fits, the next beside it does not
    last = disk / "run" / "checkpoints" / "last.safetensors"
    full = "cannot be written (No space left on device); what was there before is unchanged"
    assert f"{last}: {full}" in sentence(command(start, "--output", disk / "run"))
    assert leftovers(disk) == []
    state = last.read_bytes()
    resume = (start, "--output", disk / "run", "--resume")
    assert full in sentence(command(resume))
    assert last.read_bytes() == state
    small_disk(8 * state_size)
    assert command(resume).status == 0
    assert contents(disk / "run") == contents(tmp_path / "complete")


def test_a_disk_that_is_full_at_the_start_has_no_run_on_it_afterwards(command, start, small_disk):
    disk = small_disk("8k")
    (disk / "filler").write_bytes(bytes(4096))
    assert "No space left on device" in sentence(command(start, "--output", disk / "run"))
    assert os.listdir(disk) == ["filler"]


def test_a_read_only_disk_is_named(command, start, small_disk):
    disk = small_disk("1m", "ro")
    error = sentence(command(start, "--output", disk / "run"))
    assert error.endswith(f"{disk / 'run'}: the folder cannot be made (Read-only file system)")


def test_a_run_on_a_read_only_disk_is_measured_and_can_be_written_about_elsewhere(
    command, start, small_disk
):
    disk = small_disk("64m")
    assert command(start, "--output", disk / "run").status == 0
    small_disk("64m", "ro")
    outcome = command("evaluate", disk / "run")
    assert f"{disk / 'run'}: cannot be written to (Read-only file system)" in sentence(outcome)
    assert outcome.out == ""
    resumed = sentence(command(RESUME, "--output", disk / "run"))
    assert "cannot be written (Read-only file system)" in resumed
    assert command("evaluate", disk / "run", "--output here").status == 0
