"""Commands as typed, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torchcaps

# What a person types; one thread, because tiny steps on several threads cost more than they save.
TORCHCAPS = (sys.executable, "-m", "torchcaps")
# The same without matplotlib, whose plots take most of the time of a tiny run.
PLAIN = (
    sys.executable,
    "-c",
    "import sys; sys.modules['matplotlib'] = None; "
    "from torchcaps.cli.main import main; sys.exit(main())",
)
SMALL = "--option channels=8 --option primary_types=2"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def flatten(words):
    """The words of a command line, of which a text may have several; lists and tuples are parts of it."""
    for word in words:
        if isinstance(word, list | tuple):
            yield from flatten(word)
        else:
            yield from [str(word)] if isinstance(word, Path) else str(word).split(" ")


def run_command(*words, cwd, program=TORCHCAPS):
    """Run to the end; returns the finished process, with its output as text."""
    return subprocess.run(
        list(program) + list(flatten(words)),
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def start_command(*words, cwd, program=PLAIN):
    """Start, and return the process."""
    return subprocess.Popen(
        list(program) + list(flatten(words)),
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch(*words, world_size=2, cwd, **variables):
    """Start processes by torchrun, in a group of their own, as a terminal does."""
    tests = Path(__file__).parents[1]
    folders = [Path(torchcaps.__file__).parents[1], tests, tests / "e2e"]
    path = os.pathsep.join(map(str, folders))
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node={world_size}"
    return subprocess.Popen(
        list(flatten([Path(sys.executable), torchrun, words])),
        cwd=cwd,
        env=ENVIRONMENT | {"PYTHONPATH": path} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, process):
    """Wait for a condition; whether it came before the process ended."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True
