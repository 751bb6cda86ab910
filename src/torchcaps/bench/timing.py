"""Timing in one process, by turns, with medians; peak memory in a fresh process each."""

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from torchcaps.errors import ArgumentError, TorchcapsError
from torchcaps.training.environment import environment

MIB = 1 << 20
Clock = Callable[[], float]
Row = dict[str, Any]
Log = Callable[[str], None]  # called with a line about the work that begins
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
PROC = Path("/proc/self")


def silent(_: str) -> None:
    """Log nothing."""


def use_clock(clock: str, threads: int | None) -> Clock:
    """Set the number of threads of torch, and choose a clock.

    Args:
        clock: "wall", or "cpu" for a machine that others keep busy.
        threads: of torch; None leaves their number.

    Raises:
        ArgumentError: for CPU time of several threads, because a thread that waits in a spinning
            barrier would count.
    """
    num_threads = threads or torch.get_num_threads()
    if clock == "cpu" and num_threads != 1:
        raise ArgumentError("--clock cpu", f"expected --threads 1, got {num_threads}")
    torch.set_num_threads(num_threads)
    return CLOCKS[clock]


def alternate(
    work: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
    log: Log = silent,
    settle: Callable[[str, Callable[[], object]], object] | None = None,
) -> dict[str, list[float]]:
    """Time functions by turns, so that a busy moment of the machine hits all alike.

    Args:
        work: the functions, by name.
        repeats: number of timed runs of each.
        warm_up: number of runs before them.
        clock: returns seconds.
        log: called with a line before each run.
        settle: called with name and function before each timed run.

    Returns:
        Seconds of each run, by name.
    """
    for name, run in work.items():
        log(f"{name}: warming up")
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats):
        for name, run in work.items():
            log(f"{name}: run {repeat + 1} of {repeats}")
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


def peak_of(run: Callable[[], object]) -> dict[str, float]:
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


def in_fresh_process(work: str, **arguments: Any) -> dict[str, float]:
    """Call `torchcaps.bench.WORK.peak` in a process of its own, with as many threads as this one.

    Args:
        work: name of the module.
        arguments: of `peak`, ready for JSON.

    Returns:
        What `peak` returns.

    Raises:
        TorchcapsError: with the last line of the error output, if the process fails.
    """
    code = (
        f"import json, sys, torch; torch.set_num_threads({torch.get_num_threads()}); "
        f"from torchcaps.bench import {work}; "
        f"print(json.dumps({work}.peak(**json.loads(sys.argv[1]))))"
    )
    command = [sys.executable, "-P", "-c", code, json.dumps(arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"status {process.returncode}"]
        raise TorchcapsError(
            f"memory of {work} {arguments}: the process that measures it failed: {lines[-1]}"
        )
    peak: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return peak


def machine() -> dict[str, object]:
    """Versions, hardware, load and date that figures belong to."""
    load = os.getloadavg()[0] if sys.platform != "win32" else None
    return environment() | {"load_1min": load, "date": datetime.date.today().isoformat()}


def cells(rows: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """Rows as text, with a heading: figures to three digits, a dash where there is none."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    table = [heads]
    for row in rows:
        table.append([_cell(row.get(head)) for head in heads])
    return table


def _cell(figure: object) -> str:
    """A figure, or several, as text."""
    if isinstance(figure, list):
        return " ".join(map(_cell, figure))
    if isinstance(figure, float):
        return f"{figure:.3g}" if abs(figure) < 100 else f"{figure:.0f}"
    return "-" if figure is None else str(figure)
