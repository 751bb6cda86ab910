"""A training of a second, its states, and commands in this process or in one of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from campaign.formats import files
from torchcaps.cli.main import main
from torchcaps.training import train
from training.makers import Watch, contents, leftovers, write_bars

OPTIONS = {"channels": 8, "primary_types": 2, "decoder": False}
SEED = 3
SETTINGS = {
    "epochs": 3,
    "batch_size": 16,
    "holdout": 6.0,
    "checkpoint_every": 2,
    "reconstruction": 0.0,
}
_START = (
    "train capsnet --data bars.npz --output run --no-keep-memory --threads 1 --seed 3 --epochs 3 "
    "--batch-size 16 --holdout 6.0 --checkpoint-every 2 --reconstruction 0.0 "
    "--option channels=8 --option primary_types=2 --option decoder=false"
)
START = tuple(_START.split())
RESUME = ("train", "capsnet", "--output", "run", "--resume", "--no-keep-memory")


class Outcome(NamedTuple):
    """What a command did."""

    status: int
    err: str


def command(*words):
    """Run a command line inside this process, in the current folder."""
    err = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(err):
        try:
            status = main(list(words))
        except SystemExit as stop:
            status = stop.code
        except BaseException:
            status = -1
            err.write(traceback.format_exc(limit=-1))
        finally:
            torch.set_num_threads(1)
    return Outcome(status, err.getvalue())


def refusal(outcome):
    """The sentence of a command that failed as commands should."""
    last = (outcome.err.strip().splitlines() or [""])[-1]
    assert outcome.status in (1, 2), f"status {outcome.status}: {outcome.err[-300:]}"
    assert "Traceback" not in outcome.err, f"a traceback: {outcome.err[-3000:]}"
    assert last.startswith("torchcaps: error: ") and len(last) < 4000, (
        f"not one sentence: {outcome.err[-300:]}"
    )
    assert outcome.err.count("torchcaps: error: ") == 1, "more than one error"
    return last


def put(folder, contents):
    """Write files below a folder."""
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@cache
def bars():
    """The data, to be written as bars.npz."""
    with tempfile.TemporaryDirectory() as folder:
        return write_bars(Path(folder, "bars.npz"), size=(18, 20)).read_bytes()


@cache
def history(seed=SEED):
    """What a kill after each step leaves of the run, and what the whole run is to have."""
    states = {}
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        try:
            os.chdir(name)
            Path("bars.npz").write_bytes(bars())

            def keep(trainer, losses):
                states[trainer.state.step] = files(Path("run"))

            options = {"model_options": OPTIONS, **SETTINGS}
            train("capsnet", "run", callbacks=[Watch(keep)], data="bars.npz", seed=seed, **options)
            return states, contents(Path("run"))
        finally:
            os.chdir(home)


def check_finished(folder, metrics=True, seed=SEED):
    """Fails unless a run ended as the one that nothing stopped, with nothing left behind."""
    files = contents(folder / "run")
    for name, expected in history(seed)[1].items():
        if name != "metrics" or metrics:
            assert files[name] == expected, f"{name} is not as it should be"
    assert not leftovers(folder), f"left behind: {leftovers(folder)}"
    assert (folder / "run" / "environment.json").exists(), "the environment of the run is lost"


# A process of its own that begins with lines of Python, without matplotlib, whose plots take most of
# the time of a tiny run.
LINES = (
    "import sys; sys.modules['matplotlib'] = None; {}; "
    "from torchcaps.cli.main import main; sys.exit(main())"
)


def start(folder, *words, first="pass"):
    """Start a command in a process of its own; `first` is Python to begin with."""
    return subprocess.Popen(
        [sys.executable, "-c", LINES.format(first), *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_end(process):
    """Wait for a process to end."""
    _, err = process.communicate()
    return Outcome(process.returncode, err)


def wait_until(condition, process):
    """Wait for a condition, or for the end of a process."""
    while process.poll() is None and not condition():
        time.sleep(0.001)
