"""Commands in odd places: closed streams, empty words, signals at the wrong moment, modes of files."""

from __future__ import annotations

import signal
import socket
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
    "modes of files": 1,
    "SIGTERM to a page": 1,
}
SECONDS, WALL = 120.0, 300.0
FLAGS = ("--output", "--data", "--root", "--device", "--seed", "--option", "--loss", "")
PAGE = """
import torch
from torchcaps import create_model
from torchcaps.data import Preprocess
from torchcaps.explorer import Session
from torchcaps.explorer.server import serve
model = create_model("cnn_baseline", img_size=12, num_classes=2, channels=(4,), kernels=(3,), hidden=(4,)).eval()
model.classes, model.preprocess = ("a", "b"), Preprocess((12, 12), 1)
serve([Session(model, "m")], port=0, open_page=False, log=lambda line: print(line, flush=True))
"""


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
    done = subprocess.run(
        ["sh", "-c", script, "sh", *line], capture_output=True, text=True, check=False
    )
    errors = done.stderr + (Path("errors").read_text() if Path("errors").exists() else "")
    assert done.returncode == 0 and "Traceback" not in errors, (
        f"status {done.returncode}: {errors[-300:]}"
    )
    runs.same(folder)


def empty(case: Case, folder: Path) -> None:
    """An empty word, as of a variable that is not set, is refused, and nothing is made."""
    before = listing(folder)
    words = [f"{case['flag']}="] if case["joined"] and case["flag"] else [case["flag"], ""]
    outcome = runs.command(*runs.START, *words)
    runs.refusal(outcome)
    assert outcome.status == 2, f"status {outcome.status}"
    assert listing(folder) == before, "something was made"


def signals(case: Case, folder: Path) -> None:
    """Two signals, one after the other, end the run with a status that says so, and it can go on."""
    process = runs.begun(folder, *runs.START)
    runs.until(lambda: (folder / "run" / "config.json").exists(), process)
    runs.until(lambda: metrics(folder) >= case["rows"], process)
    for name in case["signals"]:
        process.send_signal(getattr(signal, f"SIG{name}"))
        time.sleep(case["apart"])
    outcome = runs.ended(process)
    assert outcome.status in (0, 130, 143), f"status {outcome.status}: {outcome.err[-300:]}"
    assert "Traceback" not in outcome.err, f"a traceback: {outcome.err[-300:]}"
    finished = runs.command(*runs.START, "--resume")
    assert finished.status == 0, finished.err[-300:]
    runs.same(folder)


def metrics(folder: Path) -> int:
    """Rows of the metrics."""
    path = folder / "run" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def modes(case: Case, folder: Path) -> None:
    """All files of a run can be read by the same people."""
    assert runs.command(*runs.START).status == 0
    found = {path.stat().st_mode & 0o777 for path in (folder / "run").rglob("*") if path.is_file()}
    assert len(found) == 1, f"files of modes {', '.join(sorted(map(oct, found)))}"


def page(case: Case, folder: Path) -> None:
    """A served page ends at once, with a client that has its answer and one that has not ended its request."""
    with subprocess.Popen(
        [sys.executable, "-c", PAGE], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        address = (
            "127.0.0.1",
            int(process.stdout.readline().strip().rstrip(b"/").rpartition(b":")[2]),
        )
        head = b" HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        with socket.create_connection(address) as served, socket.create_connection(address) as half:
            served.sendall(b"GET /api/describe" + head + b"\r\n")
            half.sendall(b"POST /api/infer" + head + b"content-length: 99\r\n\r\n{")
            served.recv(1000)
            process.send_signal(signal.SIGTERM)
            started = time.monotonic()
            _, err = process.communicate(timeout=60)
    assert b"Traceback" not in err, err[-300:]
    assert time.monotonic() - started < 2, f"took {time.monotonic() - started:.1f} seconds"


CHECKS: dict[str, Callable[[Case, Path], None]] = {
    "closed streams": closed,
    "empty words": empty,
    "two signals": signals,
    "modes of files": modes,
    "SIGTERM to a page": page,
}
