from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from torchcaps.errors import RunError, TrainingError
from torchcaps.training import RunFolder, TrainConfig
from torchcaps.training import run_folder as module
from torchcaps.training.lock import exclusive

ROWS = [{"kind": "step", "step": 20 * k, "loss": 0.5} for k in range(1, 4)]


@pytest.fixture
def run(tmp_path):
    run = RunFolder.fresh(tmp_path / "deep" / "run")
    run.start(TrainConfig.of(epochs=3))
    return run


def test_a_run_begins_with_its_configuration_and_environment(run):
    assert run.config() == TrainConfig.of(epochs=3)
    assert run.environment()["torch"] == torch.__version__
    assert run.environment()["threads"] == torch.get_num_threads()
    assert RunFolder.open(run.path).config() == run.config()
    assert run.rows() == []


def test_fresh_makes_nothing(tmp_path):
    RunFolder.fresh(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_in_the_same_folder_is_refused(run):
    with pytest.raises(RunError, match="there is a run here already; continue it with --resume"):
        RunFolder.fresh(run.path)


@pytest.mark.parametrize(
    "name",
    [
        "environment.json",
        "metrics.jsonl",
        "model.safetensors",
        "checkpoints/previous.safetensors",
        "checkpoints/epoch-0001.safetensors",
    ],
)
def test_a_file_that_a_run_would_replace_is_in_the_way(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=f"{name}: is in the way"):
        RunFolder.fresh(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_other_files_in_the_folder_are_not_in_the_way_and_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    run = RunFolder.fresh(tmp_path)
    run.start(TrainConfig())
    run.discard_empty()
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_without_model_and_checkpoint_is_discarded_whole(run):
    run.append(ROWS[0])
    run.discard_empty()
    assert not run.path.exists()


@pytest.mark.parametrize("kept", ["model", "last", "previous"])
def test_a_run_with_model_or_checkpoint_is_never_discarded(run, kept):
    getattr(run, kept).write_bytes(b"something")
    run.discard_empty()
    assert run.config() == TrainConfig.of(epochs=3)
    assert getattr(run, kept).read_bytes() == b"something"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="file/run: the folder cannot be made"):
        RunFolder.fresh(tmp_path / "file" / "run").start(TrainConfig())


def test_what_is_no_run_is_not_opened(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RunError, match=f"{path}: no run folder"):
            RunFolder.open(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "Expecting"),
        ("[]", "expected names with values"),
        ('{"epoch": 3}', "unknown setting 'epoch'; did you mean 'epochs'"),
        ('{"epochs": "many"}', "epochs: expected a whole number, got 'many'"),
        ('{"lr": -1}', "lr: expected a number above 0, got -1"),
        ("\x00\x01", "Expecting"),
        ('{"model_options": ' + 100_000 * "[", "recursion"),
    ],
)
def test_a_damaged_configuration_is_named_with_its_fault(run, content, complaint):
    (run.path / "config.json").write_text(content)
    with pytest.raises(RunError) as raised:
        run.config()
    assert str(raised.value).startswith(
        f"{run.path / 'config.json'}: is no readable configuration ("
    )
    assert complaint in str(raised.value)


@pytest.mark.parametrize("content", ["{", "[]", None])
def test_an_environment_that_is_lost_is_empty(run, content):
    (run.path / "environment.json").unlink()
    if content is not None:
        (run.path / "environment.json").write_text(content)
    assert run.environment() == {}


def test_a_row_is_one_write_at_the_end_of_the_file(run, monkeypatch):
    writes = []
    write = os.write
    monkeypatch.setattr(
        os, "write", lambda handle, data: writes.append(data) or write(handle, data)
    )
    for row in ROWS:
        run.append(row)
    assert [json.loads(data) for data in writes] == ROWS
    assert all(data.endswith(b"\n") for data in writes)
    assert run.metrics.read_bytes() == b"".join(writes)
    assert run.rows() == ROWS


def test_a_row_that_the_disk_takes_only_in_part_is_taken_back(run, monkeypatch):
    run.append(ROWS[0])
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:10]))
    with pytest.raises(
        TrainingError, match=r"metrics\.jsonl: cannot be written \(No space left on device\)"
    ):
        run.append(ROWS[1])
    monkeypatch.undo()
    run.append(ROWS[2])
    assert run.rows() == [ROWS[0], ROWS[2]]


def test_a_last_line_that_a_crash_cut_is_left_out(run):
    run.append(ROWS[0])
    for cut in ('{"kind": "st', '{"kind": "step", "step": 40}', "{", '{"kind": "caf\u00e9"'):
        run.metrics.write_text(json.dumps(ROWS[0]) + "\n" + cut)
        assert run.rows() == [ROWS[0]]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "nonsense",
        "3",
        "{}",
        '{"step": 3}',
        '{"kind": "step", "step": null}',
        '{"kind": "step", "step": 1.5}',
        '{"kind": "step", "step": true}',
        "[" * 100_000,
    ],
)
def test_a_damaged_line_in_the_middle_is_an_error(run, line):
    run.metrics.write_text(f"{json.dumps(ROWS[0])}\n{line}\n{json.dumps(ROWS[1])}\n")
    with pytest.raises(
        RunError, match=r"metrics\.jsonl: is not readable as one JSON object a line"
    ):
        run.rows()


def test_rewinding_forgets_later_rows_a_cut_line_and_partial_files(run):
    for row in ROWS:
        run.append(row)
    with run.metrics.open("a") as file:
        file.write('{"kind": "st')
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = [".last.safetensors.partial", f".last.safetensors.{dead.pid}-3.partial"]
    leftovers = [folder / name for folder in (run.path, run.last.parent) for name in names]
    living = run.path / f".report.html.{os.getpid()}-0.partial"
    for leftover in (*leftovers, living):
        leftover.write_text("half of")
    run.rewind(40)
    assert run.rows() == ROWS[:2]
    assert not any(leftover.exists() for leftover in leftovers)
    assert living.exists()
    run.rewind(0)
    assert run.metrics.read_text() == ""


class Killed(BaseException):
    """What no handler of errors catches."""


def test_killed_between_its_first_two_files_a_run_can_start_again(tmp_path, monkeypatch):
    write, written = module.write_json, []

    def killed(path, value):
        if written:
            raise Killed
        write(path, value)
        written.append(path.name)

    monkeypatch.setattr(module, "write_json", killed)
    with pytest.raises(Killed), RunFolder(tmp_path / "run").begun(TrainConfig()):
        pass
    monkeypatch.undo()
    assert written == ["environment.json"]  # the configuration, which makes it a run, comes last
    with RunFolder.fresh(tmp_path / "run").begun(TrainConfig.of(epochs=3)):
        assert RunFolder.open(tmp_path / "run").config() == TrainConfig.of(epochs=3)


@pytest.mark.parametrize("content", ["{", "[]", "{}", "[" * 100_000, None])
def test_an_environment_that_was_lost_is_written_anew_when_the_run_goes_on(run, content):
    test_an_environment_that_is_lost_is_empty(run, content)
    with run.continued():
        assert run.environment()["torch"] == torch.__version__
    assert run.threads() == torch.get_num_threads()


HOLD = """
import sys
from torchcaps.training.lock import exclusive
with exclusive(__import__("pathlib").Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(run):
    """A process that holds the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, run.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_that_another_process_holds_is_refused_by_its_id_until_that_process_dies(
    run, held, tmp_path
):
    refusal = f"{run.path}: process {held.pid} is training here; wait for its end or stop it, or name another --output"
    for hold in (run.continued, lambda: run.begun(TrainConfig())):
        with pytest.raises(RunError) as raised, hold():
            pass
        assert str(raised.value) == refusal
    with pytest.raises(RunError) as raised:
        RunFolder.fresh(run.path)
    assert str(raised.value) == refusal
    held.kill()
    held.wait()
    with run.continued():
        assert (run.path / ".lock").read_text() == str(os.getpid())
    assert not (run.path / ".lock").exists()


def test_one_process_does_not_hold_a_folder_twice(run):
    with (
        run.continued(),
        pytest.raises(RunError, match=f"process {os.getpid()} is training here"),
        run.continued(),
    ):
        pass


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """The holder ends between the moment this one opens the file and the moment it locks it."""
    opened, first = os.open, exclusive(tmp_path)
    first.__enter__()

    def late(path, *arguments):
        handle = opened(path, *arguments)
        monkeypatch.undo()
        first.__exit__(None, None, None)
        return handle

    monkeypatch.setattr(os, "open", late)
    with (
        exclusive(tmp_path),
        pytest.raises(RunError, match="is training here"),
        exclusive(tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
