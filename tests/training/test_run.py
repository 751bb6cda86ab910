from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys

import pytest
import torch

from torchcaps.errors import RunError, TrainingError
from torchcaps.training import Run, TrainConfig, folder
from torchcaps.training.files import exclusive
from torchcaps.training.folder import append_metrics, truncate_metrics

from .makers import PowerCut

ROW = {"kind": "step", "step": 20, "loss": 0.5}
ROWS = [ROW, ROW | {"step": 40}, ROW | {"step": 60}]


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "deep" / "run")
    with folder.hold(run, TrainConfig.of(epochs=3)):
        pass
    return run


def test_a_run_begins_with_its_configuration_and_environment(run):
    assert run.config == TrainConfig.of(epochs=3)
    assert run.environment["torch"] == torch.__version__
    assert run.environment["threads"] == torch.get_num_threads()
    assert Run.open(run.path).config == run.config
    assert run.rows == []


@pytest.mark.parametrize(
    "name",
    [
        "environment.json",
        "model.safetensors",
        "checkpoints/epoch-0001.safetensors",
    ],
)
def test_a_file_that_a_run_would_replace_is_in_the_way(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=f"{name}: is in the way"):
        folder.check_new(Run(tmp_path))
    assert (tmp_path / name).read_text() == "mine"


def test_a_run_without_model_and_checkpoint_is_discarded_and_other_files_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    run = Run(tmp_path)
    with pytest.raises(ValueError, match="planted"), folder.hold(run, TrainConfig.of(epochs=3)):
        append_metrics(run, ROWS[0])
        raise ValueError("planted")
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("attribute", ["model_path", "checkpoint_path", "previous_checkpoint_path"])
def test_a_run_with_model_or_checkpoint_is_never_discarded(tmp_path, attribute):
    run = Run(tmp_path)
    with pytest.raises(ValueError, match="planted"), folder.hold(run, TrainConfig.of(epochs=3)):
        getattr(run, attribute).write_bytes(b"something")
        raise ValueError("planted")
    assert run.config == TrainConfig.of(epochs=3)
    assert getattr(run, attribute).read_bytes() == b"something"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "Expecting"),
        ('{"epochs": 3}', "expected format 1, got None"),
        ('{"format": 1, "epoch": 3}', "unknown setting 'epoch'; did you mean 'epochs'"),
        ('{"model_options": ' + 100_000 * "[", "nested too deep"),
    ],
)
def test_a_damaged_configuration_is_named_with_its_fault(run, content, complaint):
    (run.path / "config.json").write_text(content)
    file = run.path / "config.json"
    with pytest.raises(RunError, match=f"^{file}: is no readable configuration .*{complaint}"):
        _ = run.config


def test_a_row_that_is_written_only_in_part_is_removed(run, monkeypatch):
    append_metrics(run, ROWS[0])

    class FullDisk(io.FileIO):
        def write(self, line):
            super().write(line[:10].encode())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder, "open", lambda path, *_, **__: FullDisk(path, "ab"), raising=False)
    with pytest.raises(
        TrainingError, match=r"metrics\.jsonl: cannot be written \(No space left on device\)"
    ):
        append_metrics(run, ROWS[1])
    monkeypatch.undo()
    assert run.rows == [ROWS[0]]
    truncate_metrics(run, ROWS[0]["step"])  # as the run does that goes on
    append_metrics(run, ROWS[2])
    assert run.rows == [ROWS[0], ROWS[2]]


def test_epochs_notes_and_the_end_of_a_run(tmp_path):
    run = Run(tmp_path)
    with folder.hold(run, TrainConfig.of(epochs=2, stop_at=0.9)):
        epoch = {"kind": "epoch", "step": 3, "epoch": 1, "score": "accuracy", "val_accuracy": 0.5}
        epoch["best"] = True
        assert (run.epochs, run.notes, run.is_finished) == ([], [], False)
        append_metrics(run, {"kind": "note", "step": 0, "text": "again"})
        append_metrics(run, epoch)
        assert (run.epochs, run.notes, run.is_finished) == ([epoch], ["again"], False)
        append_metrics(run, epoch | {"step": 6, "epoch": 2})
        assert run.is_finished
        truncate_metrics(run, 3)
        append_metrics(run, epoch | {"step": 6, "val_accuracy": 0.9})
        assert run.is_finished


def test_a_last_line_that_a_crash_cut_is_left_out(run):
    append_metrics(run, ROWS[0])
    for cut in ('{"kind": "st', '{"kind": "step", "step": 40}', "{", '{"kind": "caf\u00e9"'):
        run.metrics_path.write_text(json.dumps(ROWS[0]) + "\n" + cut)
        assert run.rows == [ROWS[0]]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        '{"kind": "step", "step": true}',
        "[" * 100_000,
    ],
)
def test_a_damaged_line_in_the_middle_is_an_error(run, line):
    run.metrics_path.write_text(f"{json.dumps(ROWS[0])}\n{line}\n{json.dumps(ROWS[1])}\n")
    with pytest.raises(
        RunError, match=r"metrics\.jsonl: is no readable list of one JSON object a line"
    ):
        _ = run.rows


def test_truncating_removes_later_rows_a_cut_line_and_partial_files(run):
    for row in ROWS:
        append_metrics(run, row)
    with run.metrics_path.open("a") as file:
        file.write('{"kind": "st')
    partial_metrics = run.path / ".metrics.jsonl.12-3.partial"
    partial_checkpoint = run.checkpoint_path.with_name(".last.safetensors.12-3.partial")
    live_report = run.path / f".report.html.{os.getpid()}-0.partial"  # a process is writing it
    for file in (partial_metrics, partial_checkpoint, live_report):
        file.write_text("half of")
    truncate_metrics(run, 40)
    assert run.rows == ROWS[:2]
    assert not partial_metrics.exists()
    assert not partial_checkpoint.exists()
    assert live_report.exists()
    truncate_metrics(run, 0)
    assert run.metrics_path.read_text() == ""


def test_killed_between_its_first_two_files_a_run_can_start_again(tmp_path, monkeypatch):
    write_json = folder.write_json
    names = []

    def killed(path, value):
        if names:
            raise PowerCut
        write_json(path, value)
        names.append(path.name)

    monkeypatch.setattr(folder, "write_json", killed)
    with pytest.raises(PowerCut), folder.hold(Run(tmp_path / "run"), TrainConfig()):
        pass
    monkeypatch.undo()
    assert names == ["environment.json"]  # the configuration, which makes it a run, comes last
    with folder.hold(Run(tmp_path / "run"), TrainConfig.of(epochs=3)):
        assert Run.open(tmp_path / "run").config == TrainConfig.of(epochs=3)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, None])
def test_an_environment_that_is_lost_is_empty_until_the_run_goes_on(run, content):
    file = run.path / "environment.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert run.environment == {}
    with folder.hold(run, run.config, is_new=False):
        assert run.environment["torch"] == torch.__version__
    assert run.environment["threads"] == torch.get_num_threads()


HOLD = """
import sys
from torchcaps.training.files import exclusive
with exclusive(__import__("pathlib").Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(run):
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
    run, holder, tmp_path
):
    refusal = (
        f"{run.path}: process {holder.pid} is training here; "
        "wait for its end or stop it, or name another --output"
    )
    for hold in (
        lambda: folder.hold(run, run.config, is_new=False),
        lambda: folder.hold(run, TrainConfig()),
    ):
        with pytest.raises(RunError, match=refusal), hold():
            pass
    with pytest.raises(RunError, match=refusal):
        folder.check_new(run)
    holder.kill()
    holder.wait()
    with folder.hold(run, run.config, is_new=False):
        assert (run.path / ".lock").read_text() == str(os.getpid())


def test_one_process_does_not_hold_a_folder_twice(run):
    with (
        folder.hold(run, run.config, is_new=False),
        pytest.raises(RunError, match=f"process {os.getpid()} is training here"),
        folder.hold(run, run.config, is_new=False),
    ):
        pass


def test_the_time_of_a_run_needs_the_speed_of_every_epoch(tmp_path):
    run = Run(tmp_path)

    def add_epoch(number, val_accuracy, images_per_second):
        row = {
            "kind": "epoch",
            "score": "accuracy",
            "images": 60 * number,
            "best": True,
            "step": 3 * number,
            "epoch": number,
            "val_accuracy": val_accuracy,
            "images_per_second": images_per_second,
        }
        append_metrics(run, row)

    with folder.hold(run, TrainConfig.of(epochs=3)):
        assert run.seconds is None
        add_epoch(1, val_accuracy=0.5, images_per_second=30.0)
        add_epoch(2, val_accuracy=0.25, images_per_second=20.0)
        assert run.seconds == 2.0 + 6.0
        assert "50.00 %" in repr(run)
        add_epoch(3, val_accuracy=0.25, images_per_second=None)
        assert run.seconds is None


def test_a_folder_that_cannot_be_held_is_not_left_behind(tmp_path, monkeypatch):
    def refuse(lock):
        raise OSError(30, "read-only file system")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with pytest.raises(TrainingError, match="cannot be written"), exclusive(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
