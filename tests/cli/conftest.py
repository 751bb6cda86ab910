from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import NamedTuple

import pytest
import torch

from e2e.commands import SMALL, flatten
from torchcaps.cli.main import main
from torchcaps.reporting import html as html  # before `no_plots` changes what it imports
from torchcaps.training import device
from training.fixtures import bars as bars, run as run, trained as trained

RESUME = "train capsnet --resume --no-keep-memory"


class Outcome(NamedTuple):
    """Exit status and outputs of a command."""

    status: int
    out: str
    err: str

    @property
    def document(self):
        """The JSON that the command printed."""
        return json.loads(self.out)


@pytest.fixture
def handlers():
    """Put the handlers of signals back, which a command that a signal ended leaves ignored."""
    interrupt = signal.getsignal(signal.SIGINT)
    terminate = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, terminate)


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, handlers):
    """A function that runs a command line inside this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    num_threads = torch.get_num_threads()

    def run(*words):
        torch.set_num_threads(1)
        monkeypatch.setattr(device, "_default", 1)  # as in a new process
        capsys.readouterr()
        try:
            status = main(list(flatten(words)))
        except SystemExit as stop:
            status = stop.code
        finally:
            torch.set_num_threads(num_threads)
        return Outcome(status, *capsys.readouterr())

    return run


@pytest.fixture
def start(bars):
    """The words of a command that trains for a second."""
    flags = "--epochs 2 --batch-size 16 --holdout 6 --no-keep-memory --threads 1"
    return ("train capsnet --data", bars, flags, SMALL)


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a disk of a few kilobytes, or mounts it again in another way."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size, mode="rw"):
        options = f"size={size},{mode}" + ",remount" * folder.is_mount()
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
        try:
            process = subprocess.run(words, capture_output=True, text=True, check=False)
        except (FileNotFoundError, PermissionError) as error:
            pytest.skip(f"a small disk cannot be mounted here ({error})")
        if process.returncode:
            pytest.skip(f"a small disk cannot be mounted here ({process.stderr.strip()})")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", "-l", folder], check=True)  # also where a file is open


def the_sentence(outcome):
    """The one line that a failed command prints beside what it does, without its beginning."""
    assert outcome.out == ""
    lines = [line for line in outcome.err.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1, outcome.err
    [line] = lines
    assert line.startswith("torchcaps: error: ")
    return line.removeprefix("torchcaps: error: ")


def assert_fails(outcome, status, beginning):
    """A command failed with this exit status and a sentence that begins so."""
    assert outcome.status == status
    assert the_sentence(outcome).startswith(beginning)


def succeed(outcome):
    """The outcome of a command that did not fail."""
    assert outcome.status == 0, outcome.err
    return outcome


def python_block(page, name=""):
    """The first block of Python in a document, or that of the file with this name."""
    text = page.read_text(encoding="utf-8")
    start = f'"""{name}: ' if name else ""
    block = rf"^```python\n({re.escape(start)}.*?)^```"
    return re.search(block, text, re.MULTILINE | re.DOTALL).group(1)


def first_words(lines):
    """The first column of a table of text."""
    return [line.split()[0] for line in lines]
