"""A disk that is full or read-only: one sentence, status 1, and nothing lost."""

from __future__ import annotations

from training.makers import contents, left_behind

from .commands import PLAIN, SMALL, typed

RUN = ("train", "capsnet", "--epochs", 2, "--batch-size", 12, "--holdout", 6, "--checkpoint-every", 2, *SMALL)


def sentence(done):
    """The one error that a failed command said, after the lines of its epochs."""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("torchcaps: error: ")
    return last


def test_a_disk_that_fills_up_keeps_the_last_checkpoint_and_the_run_goes_on_when_there_is_room(
    bars, tmp_path, small_disk
):
    assert typed(*RUN, "--data", bars, "--output", "whole", cwd=tmp_path, command=PLAIN).returncode == 0
    state = (tmp_path / "whole" / "checkpoints" / "last.safetensors").stat().st_size
    disk = small_disk(int(1.6 * state))  # one state fits, the next beside it does not
    done = typed(*RUN, "--data", bars, "--output", disk / "run", cwd=tmp_path, command=PLAIN)
    last = disk / "run" / "checkpoints" / "last.safetensors"
    assert f"{last}: cannot be written (No space left on device); what was there before is unchanged" in sentence(done)
    assert left_behind(disk) == []
    assert last.stat().st_size > 0.9 * state
    again = typed("train", "capsnet", "--output", disk / "run", "--resume", cwd=tmp_path, command=PLAIN)
    assert "No space left on device" in sentence(again)
    small_disk(8 * state)
    freed = typed("train", "capsnet", "--output", disk / "run", "--resume", cwd=tmp_path, command=PLAIN)
    assert freed.returncode == 0, freed.stderr
    assert contents(disk / "run") == contents(tmp_path / "whole")


def test_a_disk_that_is_full_at_the_start_has_no_run_on_it_afterwards(bars, tmp_path, small_disk):
    disk = small_disk("8k")
    (disk / "filler").write_bytes(bytes(4096))
    done = typed(*RUN, "--data", bars, "--output", disk / "run", cwd=tmp_path, command=PLAIN)
    assert "No space left on device" in sentence(done)
    assert [path.name for path in disk.iterdir()] == ["filler"]


def test_a_read_only_disk_is_named(bars, tmp_path, small_disk):
    disk = small_disk("1m", "ro")
    done = typed(*RUN, "--data", bars, "--output", disk / "run", cwd=tmp_path, command=PLAIN)
    assert sentence(done).endswith(f"{disk / 'run'}: the run folder cannot be made (Read-only file system)")


def test_a_run_on_a_read_only_disk_is_still_evaluated_and_predicts(bars, tmp_path, small_disk):
    disk = small_disk("64m")
    assert typed(*RUN, "--data", bars, "--output", disk / "run", cwd=tmp_path, command=PLAIN).returncode == 0
    small_disk("64m", "ro")
    done = typed("evaluate", disk / "run", cwd=tmp_path, command=PLAIN)
    assert "all " in done.stdout
    assert f"{disk / 'run' / 'evaluation.json'}: cannot be written (Read-only file system)" in sentence(done)
    assert typed("evaluate", disk / "run", "--output", "here", cwd=tmp_path, command=PLAIN).returncode == 0
