from __future__ import annotations

import shutil
import signal
import subprocess
from typing import NamedTuple

import pytest
import torch

from e2e.commands import SMALL, flatten
from torchcaps.cli.main import main
from torchcaps.reporting import api
from torchcaps.training import train
from training.makers import tiny, write_bars


class Outcome(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


@pytest.fixture
def handlers():
    """Put the handlers of signals back, which a command that a signal ended leaves ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, handlers):
    """A function that runs a command line inside this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def run(*words):
        torch.set_num_threads(1)
        capsys.readouterr()
        try:
            status = main(list(flatten(words)))
        except SystemExit as stop:
            status = stop.code
        finally:
            torch.set_num_threads(threads)
        return Outcome(status, *capsys.readouterr())

    return run


@pytest.fixture
def no_plots(monkeypatch):
    """Skip drawing, which takes most of the time of a tiny run."""
    monkeypatch.setattr(api, "can_plot", lambda: False)


@pytest.fixture(scope="session")
def bars(tmp_path_factory):
    return write_bars(tmp_path_factory.mktemp("bars") / "bars.npz")


@pytest.fixture(scope="session")
def trained(bars, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny(bars, epochs=3, lr=0.01), folder)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a trained run, to write into."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def start(bars):
    """The words of a command that trains for a second."""
    flags = "--epochs 2 --batch-size 16 --holdout 6 --keep-memory no --threads 1"
    return ("train", "capsnet", "--data", bars, *flags.split(), *SMALL)


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a disk of a few kilobytes, or mounts it again in another way."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def mount(size, mode="rw"):
        options = f"size={size},{mode}" + ",remount" * bool(mounted)
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place]
        try:
            process = subprocess.run(words, capture_output=True, text=True, check=False)
        except (FileNotFoundError, PermissionError) as error:
            pytest.skip(f"a small disk cannot be mounted here ({error})")
        if process.returncode:
            pytest.skip(f"a small disk cannot be mounted here ({process.stderr.strip()})")
        mounted.append(True)
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", place], check=True)


def the_sentence(outcome):
    """The one line that a failed command says, without its beginning."""
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("torchcaps: error: ")
    return lines[0].removeprefix("torchcaps: error: ")
