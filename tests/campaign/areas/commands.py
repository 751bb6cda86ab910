"""Commands in odd places: closed streams, empty words, signals at any moment, modes of files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from campaign import runs
from campaign.core import Case
from campaign.watch import listing

TESTS = {
    "closed streams": 6,
    "empty words": 20,
    "two signals": 12,
    "modes of files": 2,
}
SECONDS = 120.0
WALL = 300.0
FLAGS = ("--output", "--data", "--root", "--device", "--seed", "--option", "--loss", "")


def draw(test: str, random: Random) -> dict[str, Any]:
    """Which streams, words or moments."""
    return {
        "streams": random.choice((["out"], ["err"], ["out", "err"], ["in"], ["in", "out", "err"])),
        "flag": random.choice(FLAGS),
        "joined": random.random() < 0.5,
        "rows": random.randint(0, 2),
        "apart": round(random.uniform(0, 0.3), 3),
        "signals": random.choice((["INT", "INT"], ["TERM", "INT"])),
    }


def check(case: Case, folder: Path) -> None:
    """Run the command and judge."""
    runs.put(folder, {"bars.npz": runs.bars()})
    CHECKS[case["test"]](case, folder)


def closed(case: Case, folder: Path) -> None:
    """A training whose caller closed standard streams ends well."""
    marks = {"in": "<&-", "out": ">&-", "err": "2>errors"}
    line = [sys.executable, "-c", runs.LINES.format("pass"), *runs.START]
    script = f'exec "$@" {" ".join(marks[name] for name in case["streams"])}'
    process = subprocess.run(
        ["sh", "-c", script, "sh", *line], capture_output=True, text=True, check=False
    )
    errors = process.stderr + (Path("errors").read_text() if Path("errors").exists() else "")
    assert process.returncode == 0 and "Traceback" not in errors, (
        f"status {process.returncode}: {errors[-300:]}"
    )
    runs.check_finished(folder)


def empty(case: Case, folder: Path) -> None:
    """An empty word, as of a variable that is not set, is refused, and nothing is made."""
    before = listing(folder)
    words = [f"{case['flag']}="] if case["joined"] and case["flag"] else [case["flag"], ""]
    outcome = runs.command(*runs.START, *words)
    runs.refusal(outcome)
    assert outcome.status == 2, f"status {outcome.status}"
    assert listing(folder) == before, "something was made"


def signals(case: Case, folder: Path) -> None:
    """Two signals, one after the other, end the run with their status, and it can go on."""
    process = runs.start(folder, *runs.START)
    runs.wait_until(lambda: (folder / "run" / "config.json").exists(), process)
    runs.wait_until(lambda: metrics(folder) >= case["rows"], process)
    for name in case["signals"]:
        process.send_signal(getattr(signal, f"SIG{name}"))
        time.sleep(case["apart"])
    outcome = runs.wait_for_end(process)
    assert outcome.status in (0, 130, 143), f"status {outcome.status}: {outcome.err[-300:]}"
    assert "Traceback" not in outcome.err, f"a traceback: {outcome.err[-300:]}"
    finished = runs.command(*runs.START, "--resume")
    assert finished.status == 0, finished.err[-300:]
    runs.check_finished(folder)


def metrics(folder: Path) -> int:
    """Rows of the metrics."""
    path = folder / "run" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def modes(case: Case, folder: Path) -> None:
    """All files of a run can be read by the same people."""
    assert runs.command(*runs.START).status == 0
    file_modes = set()
    for path in (folder / "run").rglob("*"):
        if path.is_file():
            file_modes.add(path.stat().st_mode & 0o777)
    assert len(file_modes) == 1, f"files of modes {', '.join(sorted(map(oct, file_modes)))}"


CHECKS: dict[str, Callable[[Case, Path], None]] = {
    "closed streams": closed,
    "empty words": empty,
    "two signals": signals,
    "modes of files": modes,
}
