"""Commands as typed, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time

# What a person types; one thread, for tiny steps on several threads cost more than they save.
TORCHCAPS = (sys.executable, "-m", "torchcaps")
# The same without matplotlib, whose plots take most of the time of a tiny run.
PLAIN = (
    sys.executable,
    "-c",
    "import sys; sys.modules['matplotlib'] = None; from torchcaps.cli.main import main; sys.exit(main())",
)
SMALL = ("--option", "channels=8", "--option", "primary_types=2")


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1"}


def typed(*words, cwd, command=TORCHCAPS):
    """Run to the end; returns the finished process, with its output as text."""
    line = [*command, *map(str, words)]
    return subprocess.run(
        line, cwd=cwd, env=environment(), capture_output=True, text=True, check=False
    )


def begun(*words, cwd, command=PLAIN):
    """Start, and return the process."""
    line = [*command, *map(str, words)]
    return subprocess.Popen(
        line,
        cwd=cwd,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition, process):
    """Wait for a condition; whether it came before the process ended."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True
