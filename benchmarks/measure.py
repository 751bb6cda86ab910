"""How things are timed here: alternating, in one process, medians; peak memory in a fresh process each."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

import torch

RESULTS = Path(__file__).parent / "results"
MIB = 1 << 20


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def add_clock_options(parser: argparse.ArgumentParser) -> None:
    """Options of every script that times something; `use_clock` reads them."""
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="cpu: for a machine that others keep busy"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())


def use_clock(chosen: argparse.Namespace) -> Callable[[], float]:
    """Set the number of threads; the clock asked for.

    Raises:
        ValueError: for CPU time of several threads: a thread that waits in a spinning barrier would count.
    """
    if chosen.clock == "cpu" and chosen.threads != 1:
        raise ValueError(f"--clock cpu: expected --threads 1, got {chosen.threads}")
    torch.set_num_threads(chosen.threads)
    return CLOCKS[chosen.clock]


def alternate(
    work: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each function, `repeats` times, taking turns so that a busy moment hits all alike."""
    for run in work.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            started = clock()
            run()
            seconds[name].append(clock() - started)
    return seconds


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Median, quartiles, smallest and count."""
    low, _, high = quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return {"median": median(samples), "q1": low, "q3": high, "min": min(samples), "count": len(samples)}


def peak_of(run: Callable[[], object]) -> dict[str, float]:
    """Resident memory before `run`, and its high-water mark during it, in MiB. Call `run` once before, to warm up."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark to the present size
    run()
    return {"before_mib": before, "peak_mib": _status("VmHWM")}


def in_fresh_process(module: str, *arguments: str) -> dict[str, float]:
    """The JSON object that `python -m module arguments` prints as its last line.

    Raises:
        RuntimeError: with its error output, if it fails.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=RESULTS.parent.parent)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def machine() -> dict[str, object]:
    """What the figures belong to."""
    return {
        "cpu": _cpu_name(), "threads": torch.get_num_threads(), "torch": torch.__version__,
        "python": platform.python_version(), "load_1min": os.getloadavg()[0],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as aligned text; figures to three digits."""
    heads = list(rows[0])
    cells = [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(heads))]
    lines = []
    for line in cells:
        padded = [f"{c:<{w}}" if n == 0 else f"{c:>{w}}" for n, (c, w) in enumerate(zip(line, widths, strict=True))]
        lines.append("  ".join(padded))
    return "\n".join(lines)


def write(name: str, document: Mapping[str, object]) -> Path:
    """Write a result with its machine to `benchmarks/results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    path.write_text(json.dumps({"command": command, "machine": machine(), **document}, indent=2) + "\n")
    return path


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)


def _status(field: str) -> float:
    """A field of /proc/self/status in MiB; the process's own high-water mark where there is no /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) * 1024 / MIB for line in lines if line.startswith(f"{field}:"))


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
