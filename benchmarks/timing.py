"""Timing in one process, by turns, with medians; peak memory in a fresh process each."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.report import CHECKOUT, Row, positive

MIB = 1 << 20
Clock = Callable[[], float]
Run = Callable[[], object]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
PROC = Path("/proc/self")


def add_timing(parser: argparse.ArgumentParser, repeats: int = 5) -> None:
    """Add `--repeats` and `--clock`."""
    parser.add_argument("--repeats", type=positive, default=repeats, help="timed runs of each")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: for a busy machine, with --threads 1"
    )


def clock_of(options: argparse.Namespace) -> Clock:
    """The clock of a command line.

    Raises SystemExit for CPU time of several threads: one that waits in a spinning barrier counts.
    """
    if options.clock == "cpu" and options.threads != 1:
        raise SystemExit(f"--clock cpu: expected --threads 1, got {options.threads}")
    return CLOCKS[options.clock]


def alternate(
    work: Mapping[str, Run],
    repeats: int,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
    settle: Callable[[str, Run], object] | None = None,
) -> dict[str, list[float]]:
    """Time functions by turns, so that a busy moment of the machine hits all alike.

    Args:
        work: the functions, by name.
        repeats: number of timed runs of each.
        warm_up: number of runs before them.
        clock: returns seconds.
        settle: called with name and function before each timed run.

    Returns:
        Seconds of each run, by name.
    """
    for run in work.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            if settle is not None:
                settle(name, run)
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def spread(head: str, seconds: Sequence[float]) -> Row:
    """Cells of a row for these times, in milliseconds: the median under `head`, and quartiles."""
    low = high = seconds[0]
    if len(seconds) > 1:
        low, _, high = quantiles(seconds, n=4)
    return {head: 1e3 * median(seconds), "q1": 1e3 * low, "q3": 1e3 * high}


def peak_of(run: Run) -> dict[str, float]:
    """Resident memory before a function runs, and its high-water mark meanwhile, in MiB.

    Call the function once before, to warm up. Where the system does not let the mark be reset, it
    is that of the process's whole life.
    """
    before = _status("VmRSS")
    with suppress(OSError):  # 5 resets the high-water mark to the present size
        (PROC / "clear_refs").write_text("5", encoding="ascii")
    run()
    return {"before_mib": before, "peak_mib": _status("VmHWM")}


def can_measure_memory() -> bool:
    """Whether this system tells the high-water mark of a process; Linux does."""
    return (PROC / "status").exists()


def _status(field: str) -> float:
    """A field of /proc/self/status, in MiB."""
    for line in (PROC / "status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / MIB
    raise KeyError(field)


def in_fresh_process(module: str, **arguments: Any) -> dict[str, float]:
    """Call `benchmarks.MODULE.peak` in a process of its own, with as many threads as this one.

    Args:
        module: its name.
        arguments: of `peak`, ready for JSON.

    Returns:
        What `peak` returns.

    Raises:
        RuntimeError: with the last line of the error output, if the process fails.
    """
    code = (
        f"import json, sys, torch; torch.set_num_threads({torch.get_num_threads()}); "
        f"from benchmarks import {module}; "
        f"print(json.dumps({module}.peak(**json.loads(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"status {process.returncode}"]
        raise RuntimeError(f"memory of {module} {arguments}: the process failed: {lines[-1]}")
    peak: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return peak
