"""How things are timed here: alternating, in one process, medians; peak memory in a fresh process each."""

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
    """Say nothing."""


def use_clock(clock: str, threads: int | None) -> Clock:
    """Set the number of threads (None: leave it); the clock of this name: "wall", or "cpu" for a busy machine. Raises
    ValueError for CPU time of several threads, since a thread that waits in a spinning barrier would count."""
    count = torch.get_num_threads() if threads is None else threads
    if clock == "cpu" and count != 1:
        raise ArgumentError("--clock cpu", f"expected --threads 1, got {count}")
    torch.set_num_threads(count)
    return CLOCKS[clock]


def alternate(
    work: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
    log: Log = silent,
    settle: Callable[[str, Callable[[], object]], object] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each function, `repeats` times, taking turns so that a busy moment hits all alike; `settle(name,
    function)` is called before each run that is timed."""
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
            started = clock()
            run()
            seconds[name].append(clock() - started)
    return seconds


def spread(head: str, seconds: Sequence[float]) -> Row:
    """Milliseconds of these seconds for a row: the median under this heading, and quartiles."""
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return {head: 1e3 * median(seconds), "q1": 1e3 * low, "q3": 1e3 * high}


def peak_of(run: Callable[[], object]) -> dict[str, float]:
    """Resident memory before `run`, and its high-water mark during it, in MiB. Call `run` once before, to warm up.
    Where the system does not let the mark be reset, it is that of the process's whole life."""
    before = _status("VmRSS")
    with suppress(OSError):
        (PROC / "clear_refs").write_text(
            "5", encoding="ascii"
        )  # resets the high-water mark to the present size
    run()
    return {"before_mib": before, "peak_mib": _status("VmHWM")}


def can_measure_memory() -> bool:
    """Whether this system tells the high-water mark of a process (Linux does)."""
    return (PROC / "status").exists()


def in_fresh_process(work: str, **arguments: Any) -> dict[str, float]:
    """What `peak` of the module `torchcaps.bench.WORK` finds, in a process of its own with as many threads as this one.
    Raises TorchcapsError with the end of its error output, if it fails."""
    code = f"import json, sys, torch; torch.set_num_threads({torch.get_num_threads()}); "
    code += f"from torchcaps.bench import {work}; print(json.dumps({work}.peak(**json.loads(sys.argv[1]))))"
    command = [sys.executable, "-P", "-c", code, json.dumps(arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [f"status {process.returncode}"])[-1]
        raise TorchcapsError(
            f"memory of {work} {arguments}: the process that measures it failed: {last}"
        )
    peak: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return peak


def machine() -> dict[str, object]:
    """What the figures belong to."""
    load = os.getloadavg()[0] if sys.platform != "win32" else None
    return environment() | {"load_1min": load, "date": datetime.date.today().isoformat()}


def cells(rows: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """Rows as text, with a heading; figures to three digits, a dash where there is none."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)


def _status(field: str) -> float:
    """A field of /proc/self/status in MiB."""
    lines = (PROC / "status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 / MIB for line in lines if line.startswith(f"{field}:"))
