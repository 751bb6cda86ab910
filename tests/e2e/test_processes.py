"""`torchrun` with several processes. It starts this file too, for all that one start of them can show."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import torchcaps
from torchcaps import plugins
from torchcaps.distributed import current, hard_exit, init
from torchcaps.training import Interrupted, TrainConfig, train
from training.makers import TINY, left_behind, write_bars

HERE = Path(__file__).resolve()
ONLOOKER = HERE.with_name("onlooker.py")
WORLDS = [2, pytest.param(3, marks=pytest.mark.slow)]
# 56 steps: 8 epochs of 6 batches of 7 images and a batch of 1, which is less than there are processes.
RUN = {
    "task": "onlooker",
    "epochs": 8,
    "epoch_size": 43,
    "batch_size": 7,
    "holdout": 7,
    "precision": "fp32",
}
MODELS = {"capsnet": TINY, "normed": {}}
EPOCHS = 20
SIZES = (
    "--epochs",
    EPOCHS,
    "--batch-size",
    6,
    "--holdout",
    6,
    *chain(*(("--option", f"{k}={v}") for k, v in TINY.items())),
)
STOP = 20  # steps before a run is interrupted


def config(data, model="capsnet", **changes):
    return TrainConfig.of(
        data=str(data), model=model, model_options=MODELS[model], **(RUN | changes)
    )


def started(folder, settings, *, stop=None, resume=False):
    """Train; of each step what the images were, by their rows. It may be asked to stop, in the last process alone."""
    import onlooker

    ranks, steps = current(), []
    onlooker.seen.clear()
    last = ranks.rank == ranks.world_size - 1
    try:
        train(
            settings,
            folder,
            resume=resume,
            should_stop=lambda: last and len(steps) + 1 == stop,
            emit=lambda row: steps.append(row["step"]) if row["kind"] == "tick" else None,
        )
    except Interrupted:
        assert stop is not None
    return [list(chain(*step)) for step in zip(*ranks.gather(list(onlooker.seen)), strict=True)]


def told(*words):
    """Status, output and errors of a command, in a process that has joined the others already."""
    from torchcaps.cli import main

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main.run_command([str(word) for word in words])
    return status, out.getvalue(), err.getvalue()


def trained(folder):
    """The same batches, weights and figures as in one process."""
    return {model: started(folder / model, config(folder / "bars.npz", model)) for model in MODELS}


def interrupted(folder):
    """A run that one of the processes is asked to stop, and that goes on."""
    settings = config(folder / "bars.npz")
    started(folder / "stopped", settings, stop=STOP)
    current().broadcast(None)  # the file is whole
    step = rows(folder / "stopped", "step")[-1]["step"]
    started(folder / "stopped", settings, resume=True)
    return step


def handed_over(folder):
    """To another number of processes, and from it."""
    started(folder / "of one", config(folder / "bars.npz"), resume=True)
    started(folder / "to one", config(folder / "bars.npz"), stop=STOP)


def few_held_out(folder):
    """A validation set that is smaller than the number of processes."""
    started(folder / "few", config(folder / "bars.npz", epochs=1, holdout=1))


def made(folder):
    """Data that is not there yet."""
    started(folder / "made", config("made", epochs=1))


def unlike(folder):
    """Other data in other processes."""
    try:
        started(folder / "unlike", config("unlike", epochs=1))
    except torchcaps.errors.TrainingError as error:
        return str(error)


def small_batch(folder):
    words = (
        "train",
        "capsnet",
        "--data",
        folder / "bars.npz",
        "--batch-size",
        "1",
        "--output",
        folder / "small",
    )
    return told(*words)


def evaluated(folder):
    return told(
        "evaluate",
        folder / "of one",
        "--import",
        ONLOOKER,
        "--output",
        folder / "evaluated",
        "--json",
    )


def predicted(folder):
    return told(
        "predict", folder / "of one", *sorted(folder.glob("*.png")), "--import", ONLOOKER, "--json"
    )


WORK = [
    trained,
    interrupted,
    handed_over,
    few_held_out,
    made,
    unlike,
    evaluated,
    predicted,
    small_batch,
]


def attempt(work, folder):
    try:
        return {"result": work(folder)}
    except Exception:
        return {"failed": traceback.format_exc()}


def work(folder):
    """What a process that torchrun started does."""
    torch.set_num_threads(1)
    plugins.import_module(str(ONLOOKER))
    with init(os.environ, "cpu") as ranks:
        for one in WORK:
            found = ranks.gather(attempt(one, folder))
            if ranks.is_main:
                (folder / f"{one.__name__}.json").write_text(json.dumps(found))
    hard_exit(0)


def environment():
    folders = [str(Path(torchcaps.__file__).parents[1]), str(HERE.parents[1]), str(HERE.parent)]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)}


def launched(*words, world=2, cwd, **more):
    """Start processes, in a group of their own, as a terminal does."""
    line = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={world}",
    ]
    return subprocess.Popen(
        [*line, *map(str, words)],
        cwd=cwd,
        env=environment() | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ours(text):
    """What we said: torchrun has its own report, with the time in front or in a frame."""
    return [line for line in text.splitlines() if line.startswith(("torchcaps:", "stop", "run: "))]


def write_pictures(folder):
    from PIL import Image

    with np.load(folder / "bars.npz") as found:
        for k in range(3):
            Image.fromarray(found["images"][k]).save(folder / f"{k}.png")


class Together:
    """What the processes of one launch found, beside one process alone."""

    def __init__(self, world, folder, monkeypatch):
        self.world, self.folder, self.alone = world, folder, folder / "alone"
        self.alone.mkdir()
        monkeypatch.setenv("MADE", str(folder))
        monkeypatch.syspath_prepend(HERE.parent)
        plugins.import_module(str(ONLOOKER))
        plugins._imported.clear()  # what later tests of this process see
        write_bars(folder / "bars.npz")
        write_pictures(folder)
        settings = config(folder / "bars.npz")
        self.steps = {
            model: started(self.alone / model, config(folder / "bars.npz", model))
            for model in MODELS
        }
        started(folder / "of one", settings, stop=STOP)
        done = launched(HERE, folder, world=world, cwd=folder, MADE=str(folder))
        self.printed = "".join(done.communicate(timeout=240))
        started(folder / "to one", settings, resume=True)

    def found(self, one):
        """By rank."""
        file = self.folder / f"{one.__name__}.json"
        assert file.exists(), self.printed
        found = json.loads(file.read_text())
        for result in found:
            assert "failed" not in result, result["failed"]
        return [result["result"] for result in found]


@pytest.fixture(scope="module", params=WORLDS)
def together(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Together(request.param, tmp_path_factory.mktemp("together"), monkeypatch)


def rows(run, kind="epoch"):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["kind"] == kind]


def bytes_of(run):
    """What must come out the same, byte for byte; of the metrics all but the speed."""
    files = [
        (run / file).read_bytes() for file in ("model.safetensors", "checkpoints/last.safetensors")
    ]
    timed = ("images_per_second", "ranks")
    return [
        *files,
        *(
            {k: v for k, v in row.items() if k not in timed}
            for row in rows(run) + rows(run, "step")
        ),
    ]


def weights(run):
    return {
        n: t
        for n, t in load_file(run / "checkpoints" / "last.safetensors").items()
        if n.startswith("model.")
    }


def check_alike(ours, expected, tolerance=1e-4):
    """Relative to the norm of each tensor."""
    assert ours.keys() == expected.keys()
    for name, tensor in ours.items():
        difference = (tensor.double() - expected[name].double()).norm() / expected[
            name
        ].double().norm().clamp(1e-12)
        assert difference <= tolerance, (name, difference)


@pytest.mark.parametrize("model", MODELS)
def test_batches_are_those_of_one_process(together, model):
    for found in together.found(trained):
        # A process without an image of its own goes along with the first one, which does not count.
        assert [
            step[:7] if len(step) == 7 else step[:1] for step in found[model]
        ] == together.steps[model]
        assert all(
            set(step) == set(whole)
            for step, whole in zip(found[model], together.steps[model], strict=True)
        )


@pytest.mark.parametrize("model", MODELS)
def test_weights_are_those_of_one_process(together, model):
    together.found(trained)
    check_alike(weights(together.folder / model), weights(together.alone / model))


@pytest.mark.parametrize("model", MODELS)
def test_figures_are_of_all_images(together, model):
    together.found(trained)
    for found, expected in zip(
        rows(together.folder / model), rows(together.alone / model), strict=True
    ):
        assert found.keys() - {"ranks"} == expected.keys()
        for name, value in expected.items():
            if name != "images_per_second":
                assert_near(found[name], value)


def test_each_process_has_its_share(together):
    together.found(trained)
    for row in rows(together.folder / "capsnet"):
        images = [rank["images"] for rank in row["ranks"]]
        assert sum(images) == row["images"] == 43
        assert len(images) == together.world and max(images) - min(images) <= 7
        assert all(0 < rank["seconds"] < 60 for rank in row["ranks"])


def test_a_run_that_was_stopped_ends_in_the_same_bytes(together):
    assert together.found(interrupted) == [STOP] * together.world
    assert bytes_of(together.folder / "stopped") == bytes_of(together.folder / "capsnet")
    assert left_behind(together.folder) == []


@pytest.mark.parametrize("run", ["of one", "to one"])
def test_a_run_goes_on_with_another_number_of_processes(together, run):
    together.found(handed_over)
    assert rows(together.folder / run)[-1]["step"] == 56
    check_alike(weights(together.folder / run), weights(together.alone / "capsnet"))


def test_a_validation_set_may_be_smaller_than_the_processes(together):
    together.found(few_held_out)
    assert rows(together.folder / "few")[0]["val_accuracy"] in (0, 1)


def test_data_is_made_by_the_first_process_alone(together):
    together.found(made)
    assert (together.folder / "train.makers").read_text() == "0"
    assert rows(together.folder / "made")


def test_different_data_is_refused(together):
    sentence = "data: expected the same images and labels in all processes, got different ones"
    assert together.found(unlike) == [sentence] * together.world


def test_evaluation_is_that_of_one_process(together):
    status, out, _ = told(
        "evaluate", together.folder / "of one", "--output", together.alone / "evaluated", "--json"
    )
    assert status == 0
    for found in together.found(evaluated):
        assert found[0] == 0, found
        assert_near(json.loads(found[1]), json.loads(out))
    assert_near(
        *(
            json.loads((f / "evaluated" / "evaluation.json").read_text())
            for f in (together.folder, together.alone)
        )
    )


def test_predictions_are_those_of_one_process(together):
    status, out, _ = told(
        "predict", together.folder / "of one", *sorted(together.folder.glob("*.png")), "--json"
    )
    assert status == 0
    for found in together.found(predicted):
        assert found[0] == 0, found
        assert_near(json.loads(found[1]), json.loads(out))


def assert_near(found, expected):
    """The same JSON, within rounding."""
    if isinstance(expected, dict):
        assert [*found] == [*expected]
        found, expected = [*found.values()], [*expected.values()]
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other)
    else:
        assert found == (
            pytest.approx(expected, rel=1e-4, abs=1e-5) if isinstance(expected, float) else expected
        )


def test_a_batch_smaller_than_the_processes_is_one_sentence(together):
    found = together.found(small_batch)
    sentence = f"torchcaps: error: batch_size: expected an image for each of {together.world} processes, got 1\n"
    assert [status for status, _, _ in found] == [1] * together.world
    assert "".join(err for _, _, err in found) == sentence
    assert not (together.folder / "small").exists()


def begun(run, *words, world=2):
    """A run at the command line, as its processes are at work."""
    line = ("train", "capsnet", "--data", run.parent / "bars.npz", "--output", run, *words)
    process = launched("-m", "torchcaps", *line, *map(str, SIZES), world=world, cwd=run.parent)
    before = len(rows(run)) if (run / "metrics.jsonl").exists() else 0
    while not ((run / "metrics.jsonl").exists() and len(rows(run)) > before):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def kill(process, victim):
    """`kill -9` of one rank; the seconds until all have ended, and what was said."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"\0RANK={victim}\0" in Path(f"/proc/{child}/environ").read_text():
            os.kill(int(child), signal.SIGKILL)
    start = time.monotonic()
    _, err = process.communicate(timeout=60)
    return time.monotonic() - start, err


@pytest.fixture
def run(tmp_path):
    write_bars(tmp_path / "bars.npz")
    return tmp_path / "run"


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="finds a rank by its environment"
)
@pytest.mark.parametrize(
    ("first", "then", "victims"),
    [(2, 2, [0]), pytest.param(2, 3, [1, 0, 2], marks=pytest.mark.slow)],
)
def test_a_run_is_stopped_and_killed_and_goes_on(run, first, then, victims):
    process = begun(run, world=first)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
    _, err = process.communicate(timeout=60)
    said = ours(err)
    assert said[0] == "stopping after this step; the state will be saved" and len(said) == 2, err
    assert "the state is saved; continue with: torchcaps train capsnet --output" in said[1]
    for victim in victims:
        process = begun(run, "--resume", world=then)
        seconds, err = kill(process, victim)
        assert seconds < 30
        assert len(ours(err)) == 1, err
        assert (
            "error: a process of this run was lost (" in ours(err)[0]
            and "--resume continues" in ours(err)[0]
        )
    process = launched(
        "-m",
        "torchcaps",
        "train",
        "capsnet",
        "--output",
        run,
        "--resume",
        "--json",
        world=then,
        cwd=run.parent,
    )
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert json.loads(out)["num_samples"] == 12
    assert [row["epoch"] for row in rows(run)] == [*range(1, EPOCHS + 1)]
    assert ours(err) == []
    assert left_behind(run) == []


WRONG = {  # status, the sentence or a part of it, command line
    "flag": (2, "--epochz", "train", "capsnet", "--epochz", "2"),
    "data": (1, "torchcaps: error: broken.npz: ", "train", "capsnet", "--data", "broken.npz"),
    "name": (2, "torchcaps: error: unknown recipe or model 'capsnt'; ", "train", "capsnt"),
    "alone": (
        2,
        "torchcaps: error: bench: expected one process, got 2; start it without torchrun\n",
        "bench",
    ),
    "device": (
        1,
        "torchcaps: error: device: expected auto, cpu or cuda ",
        "train",
        "capsnet",
        "--device",
        "cuda:1",
    ),
}


@pytest.mark.parametrize(
    "wrong",
    [name if name == "data" else pytest.param(name, marks=pytest.mark.slow) for name in WRONG],
)
def test_what_is_wrong_is_said_once(tmp_path, wrong):
    (tmp_path / "broken.npz").write_bytes(b"PK no")
    status, sentence, *line = WRONG[wrong]
    _, err = launched("-m", "torchcaps", *line, cwd=tmp_path).communicate(timeout=60)
    assert err.count(sentence) == 1, err
    assert len(ours(err)) == (wrong != "flag"), err
    # torchrun ends the other one by SIGTERM when it is slower.
    assert (
        {str(status)} <= set(re.findall(r"exitcode *: (-?\d+)", err)) <= {str(status), "143", "-15"}
    ), err
    assert not (tmp_path / "runs").exists()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
