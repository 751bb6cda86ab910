"""`torchrun` with several processes.

It starts this file too: all that one launch can show is done by one launch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import torchcaps
from checks import column
from e2e.commands import SMALL, flatten, launch
from torchcaps import plugins
from torchcaps.cli.main import run_command
from torchcaps.data._registry import DATASETS
from torchcaps.distributed import current, hard_exit, init
from torchcaps.models._registry import MODELS as REGISTERED_MODELS
from torchcaps.tasks._base import TASKS
from torchcaps.training import Interrupted, TrainConfig, train
from training.makers import TINY, contents, leftovers, stop_after, write_bars

THIS_FILE = Path(__file__).resolve()
ONLOOKER = THIS_FILE.with_name("onlooker.py")
WORLD_SIZES = [2, pytest.param(3, marks=pytest.mark.slow)]
# 28 steps: 4 epochs of 6 batches of 7 images and a batch of 1, fewer than there are processes.
SETTINGS = {
    "task": "onlooker",
    "epochs": 4,
    "epoch_size": 43,
    "batch_size": 7,
    "holdout": 7,
    "precision": "fp32",
}
MODELS = {"capsnet": TINY, "normed": {}}
PARTS = {"epochs": 2, "epoch_size": 42, "batch_size": 6}
STOP = 20  # steps before a run is interrupted
NUM_EPOCHS = 20  # of a run at the command line
FLAGS = f"--epochs {NUM_EPOCHS} --batch-size 6 --holdout 6 {SMALL}"


def make_config(data, model="capsnet", **changes):
    settings = SETTINGS | changes
    return TrainConfig.of(data=str(data), model=model, model_options=MODELS[model], **settings)


def record_training(folder, config, *, stop=None, resume=False):
    """Train; returns digests of the images of each step, those of all processes in one list.

    The last process alone is asked to stop.
    """
    import onlooker

    ranks = current()
    onlooker.digests.clear()
    is_last = ranks.rank == ranks.world_size - 1

    callbacks = [stop_after(stop)] if is_last else []
    try:
        train(config, folder, resume=resume, callbacks=callbacks)
    except Interrupted:
        assert stop is not None
    digests = ranks.gather(list(onlooker.digests))
    return [list(chain.from_iterable(step)) for step in zip(*digests, strict=True)]


def capture_command(*words):
    """Status, output and errors of a command, in a process that has joined the others already."""
    out = StringIO()
    err = StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run_command(list(flatten(words)))
    return status, out.getvalue(), err.getvalue()


# Work of the launched processes. What a function returns in each process comes back as JSON.


def train_models(folder):
    """Each model from start to end."""
    bars = folder / "bars.npz"
    return {name: record_training(folder / name, make_config(bars, name)) for name in MODELS}


def equal_parts(folder):
    """A run whose batches are divided evenly among the processes."""
    record_training(folder / "parts", make_config(folder / "bars.npz", **PARTS))


def stop_and_resume(folder):
    """A run that one process is asked to stop, and that goes on; the step it stopped at."""
    config = make_config(folder / "bars.npz")
    record_training(folder / "stopped", config, stop=STOP)
    current().broadcast(None)  # the file is complete
    step = read_rows(folder / "stopped", "step")[-1]["step"]
    record_training(folder / "stopped", config, resume=True)
    return step


def change_world_size(folder):
    """Continue a run of one process, and begin a run that one process continues."""
    config = make_config(folder / "bars.npz")
    record_training(folder / "of one", config, resume=True)
    record_training(folder / "to one", config, stop=STOP)


def hold_out_one(folder):
    """A validation set that is smaller than the number of processes."""
    record_training(folder / "few", make_config(folder / "bars.npz", epochs=1, holdout=1))


def train_on_made_data(folder):
    """Data that is not there yet."""
    record_training(folder / "made", make_config("made", epochs=1))


def train_on_files(folder):
    """Image files that stay on disk, and the same in memory; digests of the images of each step."""
    digests = {}
    for storage in ("disk", "memory"):
        config = make_config(folder / "files", storage=storage, workers=1)
        digests[storage] = record_training(folder / storage, config)
    return digests


def train_on_unlike_data(folder):
    """Different data in each process; the error."""
    try:
        record_training(folder / "unlike", make_config("unlike", epochs=1))
    except torchcaps.errors.TrainingError as error:
        return str(error)


def train_on_small_batches(folder):
    data = ("--data", folder / "bars.npz", "--output", folder / "small")
    return capture_command("train capsnet --batch-size 1", data)


def evaluate_run(folder):
    flags = ("--json --import", ONLOOKER, "--output", folder / "evaluated")
    return capture_command("evaluate", folder / "of one", flags)


def predict_pictures(folder):
    pictures = sorted(folder.glob("*.png"))
    return capture_command("predict", folder / "of one", pictures, "--import", ONLOOKER, "--json")


WORK = [
    train_models,
    equal_parts,
    stop_and_resume,
    change_world_size,
    hold_out_one,
    train_on_made_data,
    train_on_files,
    train_on_unlike_data,
    evaluate_run,
    predict_pictures,
    train_on_small_batches,
]


def attempt(function, folder):
    try:
        return {"outcome": function(folder)}
    except Exception:
        return {"failed": traceback.format_exc()}


def work_as_rank(folder):
    """Do all work in a process that torchrun started."""
    torch.set_num_threads(1)
    plugins.import_module(str(ONLOOKER))
    with init(os.environ, "cpu") as ranks:
        for function in WORK:
            outcomes = ranks.gather(attempt(function, folder))
            if ranks.is_main:
                (folder / f"{function.__name__}.json").write_text(json.dumps(outcomes))
    hard_exit(0)


def torchcaps_lines(text):
    """The lines of torchcaps; those of torchrun begin with the time or are in a frame."""
    return [line for line in text.splitlines() if line.startswith(("torchcaps:", "stop", "run: "))]


def write_pictures(bars, folder):
    """The images of an .npz as files in class folders."""
    content = np.load(bars)
    for number, (pixels, label) in enumerate(
        zip(content["images"], content["labels"], strict=True)
    ):
        path = folder / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


class Launch:
    """One launch of processes, beside the same work of a single process."""

    def __init__(self, world_size, folder, monkeypatch):
        self.world_size = world_size
        self.folder = folder
        self.single = folder / "single"
        self.single.mkdir()
        monkeypatch.setenv("MADE", str(folder))
        monkeypatch.syspath_prepend(THIS_FILE.parent)
        plugins.import_module(str(ONLOOKER))
        plugins._imported.clear()  # later tests of this process see it
        bars = write_bars(folder / "bars.npz")
        for number, pixels in enumerate(np.load(bars)["images"][:3]):
            Image.fromarray(pixels).save(folder / f"{number}.png")
        write_pictures(bars, folder / "files")
        self.steps = {}
        for name in MODELS:
            self.steps[name] = record_training(self.single / name, make_config(bars, name))
        batch_size = PARTS["batch_size"] // world_size
        parts = PARTS | {"batch_size": batch_size, "accumulate": world_size}
        record_training(self.single / "parts", make_config(bars, **parts))
        record_training(folder / "of one", make_config(bars), stop=STOP)
        process = launch(THIS_FILE, folder, world_size=world_size, cwd=folder, MADE=str(folder))
        self.printed = "".join(process.communicate(timeout=240))
        record_training(folder / "to one", make_config(bars), resume=True)

    def outcomes(self, function):
        """Return values of a function, by rank."""
        file = self.folder / f"{function.__name__}.json"
        assert file.exists(), self.printed
        outcomes = json.loads(file.read_text())
        for outcome in outcomes:
            assert "failed" not in outcome, outcome["failed"]
        return column(outcomes, "outcome")


@pytest.fixture(scope="module", params=WORLD_SIZES)
def launched(request, tmp_path_factory):
    registries = (TASKS, REGISTERED_MODELS, DATASETS)
    with pytest.MonkeyPatch.context() as monkeypatch, ExitStack() as restored:
        for registry in registries:
            restored.enter_context(registry.restored())
        monkeypatch.delitem(sys.modules, "onlooker", raising=False)
        yield Launch(request.param, tmp_path_factory.mktemp("launched"), monkeypatch)


def read_rows(run, kind="epoch"):
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == kind]


def reproducible_contents(run):
    """Files that are equal byte for byte, and metrics without the speed of each process."""
    parts = contents(run)
    for row in parts["metrics"]:
        row.pop("ranks", None)
    return parts


def assert_weights_near(run, expected_run, tolerance=1e-4):
    """Relative to the norm of each tensor."""
    tensors = load_file(run / "checkpoints" / "last.safetensors")
    expected_tensors = load_file(expected_run / "checkpoints" / "last.safetensors")
    assert tensors.keys() == expected_tensors.keys()
    for name, tensor in tensors.items():
        if name.startswith("model."):
            expected = expected_tensors[name].double()
            error = (tensor.double() - expected).norm() / expected.norm().clamp(1e-12)
            assert error <= tolerance, name


def assert_near(document, expected):
    """The same JSON, within rounding."""
    if isinstance(expected, dict):
        assert list(document) == list(expected)
        for name, part in expected.items():
            assert_near(document[name], part)
    elif isinstance(expected, list):
        assert len(document) == len(expected)
        for part, expected_part in zip(document, expected, strict=True):
            assert_near(part, expected_part)
    elif isinstance(expected, float):
        assert document == pytest.approx(expected, rel=1e-4, abs=1e-5)
    else:
        assert document == expected


def test_images_on_disk_are_those_in_memory(launched):
    """Each process decodes its own images alone, and trains to the bits of a set in memory."""
    for steps in launched.outcomes(train_on_files):
        assert steps["disk"] == steps["memory"]
    on_disk = reproducible_contents(launched.folder / "disk")
    in_memory = reproducible_contents(launched.folder / "memory")
    for part in ("model.safetensors", "metrics"):
        assert on_disk[part] == in_memory[part]


@pytest.mark.parametrize("model", MODELS)
def test_batches_are_those_of_one_process(launched, model):
    for steps in launched.outcomes(train_models):
        for step, expected in zip(steps[model], launched.steps[model], strict=True):
            # A process without an image of its own repeats the first one, which does not count.
            assert step[: len(expected)] == expected
            assert set(step) == set(expected)


@pytest.mark.parametrize("model", MODELS)
def test_weights_and_figures_are_those_of_one_process(launched, model):
    launched.outcomes(train_models)
    assert_weights_near(launched.folder / model, launched.single / model)
    rows = read_rows(launched.folder / model)
    for row, expected in zip(rows, read_rows(launched.single / model), strict=True):
        del row["ranks"]
        row["images_per_second"] = expected["images_per_second"]
        assert_near(row, {name: expected[name] for name in row})
        assert row.keys() == expected.keys()


def test_processes_have_the_weights_of_one_that_accumulates_their_gradients(launched):
    """Gradients of the same parts are summed, so that two processes end in the same bits."""
    launched.outcomes(equal_parts)
    tolerance = 0 if launched.world_size == 2 else 1e-6
    assert_weights_near(launched.folder / "parts", launched.single / "parts", tolerance)


def test_each_process_has_its_share(launched):
    launched.outcomes(train_models)
    for row in read_rows(launched.folder / "capsnet"):
        counts = column(row["ranks"], "images")
        assert sum(counts) == row["images"] == 43
        assert len(counts) == launched.world_size
        assert max(counts) - min(counts) <= 7
        for seconds in column(row["ranks"], "seconds"):
            assert 0 < seconds < 60


def test_a_run_that_was_stopped_ends_in_the_same_bytes(launched):
    assert launched.outcomes(stop_and_resume) == [STOP] * launched.world_size
    stopped = reproducible_contents(launched.folder / "stopped")
    assert stopped == reproducible_contents(launched.folder / "capsnet")
    assert leftovers(launched.folder) == []


@pytest.mark.parametrize("run", ["of one", "to one"])
def test_a_run_goes_on_with_another_number_of_processes(launched, run):
    launched.outcomes(change_world_size)
    assert read_rows(launched.folder / run)[-1]["step"] == 28
    assert_weights_near(launched.folder / run, launched.single / "capsnet")


def test_a_validation_set_may_be_smaller_than_the_processes(launched):
    launched.outcomes(hold_out_one)
    assert read_rows(launched.folder / "few")[0]["val_accuracy"] in (0, 1)


def test_data_is_made_by_the_first_process_alone(launched):
    launched.outcomes(train_on_made_data)
    assert (launched.folder / "train.makers").read_text() == "0"
    assert read_rows(launched.folder / "made")


def test_different_data_is_refused(launched):
    sentence = "data: expected the same images and labels in all processes, got different ones"
    assert launched.outcomes(train_on_unlike_data) == [sentence] * launched.world_size


def test_evaluation_is_that_of_one_process(launched):
    run = launched.folder / "of one"
    folder = launched.single / "evaluated"
    status, out, _ = capture_command("evaluate", run, "--output", folder, "--json")
    assert status == 0
    for rank_status, rank_out, _ in launched.outcomes(evaluate_run):
        assert rank_status == 0
        assert_near(json.loads(rank_out), json.loads(out))
    evaluation = json.loads((launched.folder / "evaluated" / "evaluation.json").read_text())
    assert_near(evaluation, json.loads((folder / "evaluation.json").read_text()))


def test_predictions_are_those_of_one_process(launched):
    pictures = sorted(launched.folder.glob("*.png"))
    run = launched.folder / "of one"
    status, out, _ = capture_command("predict", run, pictures, "--json")
    assert status == 0
    for rank_status, rank_out, _ in launched.outcomes(predict_pictures):
        assert rank_status == 0
        assert_near(json.loads(rank_out), json.loads(out))


def test_a_batch_smaller_than_the_processes_is_one_sentence(launched):
    outcomes = launched.outcomes(train_on_small_batches)
    assert column(outcomes, 0) == [1] * launched.world_size
    lines = "".join(column(outcomes, 2)).splitlines()
    assert [line for line in lines if not line.endswith(" ...")] == [
        f"torchcaps: error: batch_size: expected at least {launched.world_size}, got 1",
    ]
    assert not (launched.folder / "small").exists()


def launch_training(run, *words, world_size=2):
    """A run at the command line, whose processes are at work when this returns."""
    train_words = ("train capsnet --data", run.parent / "bars.npz", "--output", run)
    metrics = run / "metrics.jsonl"
    num_rows = len(read_rows(run)) if metrics.exists() else 0
    process = launch(
        "-m torchcaps", train_words, words, FLAGS, world_size=world_size, cwd=run.parent
    )
    while not metrics.exists() or len(read_rows(run)) <= num_rows:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def kill_rank(process, rank):
    """`kill -9` of one rank; the seconds until all have ended, and their errors."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            os.kill(int(child), signal.SIGKILL)
    start = time.monotonic()
    _, err = process.communicate(timeout=60)
    return time.monotonic() - start, err


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="finds a rank by its environment"
)
@pytest.mark.parametrize(
    ("world_size", "victims"), [(2, [0]), pytest.param(3, [1, 0, 2], marks=pytest.mark.slow)]
)
def test_a_run_that_loses_a_process_goes_on(tmp_path, world_size, victims):
    run = tmp_path / "run"
    write_bars(tmp_path / "bars.npz")
    for victim in victims:
        process = launch_training(run, "--resume", world_size=world_size)
        seconds, err = kill_rank(process, victim)
        assert seconds < 30
        [sentence] = torchcaps_lines(err)
        assert "error: a process of this run was lost (" in sentence
        assert "gloo" not in sentence
        assert "--resume continues" in sentence

    status, out, err = capture_command("train capsnet --resume --json --output", run)
    assert status == 0, err
    assert json.loads(out)["num_samples"] == 12
    assert column(read_rows(run), "epoch") == list(range(1, NUM_EPOCHS + 1))
    assert torchcaps_lines(err) == []
    assert leftovers(run) == []


@pytest.mark.slow
def test_a_run_that_the_terminal_interrupts_is_saved(tmp_path):
    write_bars(tmp_path / "bars.npz")
    process = launch_training(tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
    _, err = process.communicate(timeout=60)
    stopping, saved = torchcaps_lines(err)
    assert stopping == "stopping after this step; the state will be saved"
    assert "the state is saved; continue with: torchcaps train capsnet --output" in saved


WRONG_COMMANDS = {  # command line -> status, and the sentence or a part of it
    "train capsnet --data broken.npz": (1, "torchcaps: error: broken.npz: "),
    "train capsnet --epochz 2": (2, "--epochz"),
    "train capsnt": (2, "torchcaps: error: unknown recipe or model 'capsnt'; "),
    "doctor": (
        2,
        "torchcaps: error: doctor: expected one process, got 2; start it without torchrun",
    ),
    "train capsnet --device cuda:1": (1, "torchcaps: error: device: expected auto, cpu or cuda "),
}


@pytest.mark.slow
@pytest.mark.parametrize("line", WRONG_COMMANDS)
def test_an_error_is_printed_once(tmp_path, line):
    (tmp_path / "broken.npz").write_bytes(b"PK no")
    status, sentence = WRONG_COMMANDS[line]
    process = launch("-m torchcaps", line, cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert err.count(sentence) == 1, err
    assert len(torchcaps_lines(err)) == sentence.startswith("torchcaps"), err
    statuses = set(re.findall(r"exitcode *: (-?\d+)", err))
    # torchrun ends the other process by SIGTERM when it is slower.
    assert {str(status)} <= statuses <= {str(status), "143", "-15"}, err
    assert not (tmp_path / "runs").exists()


if __name__ == "__main__":
    work_as_rank(Path(sys.argv[1]))
