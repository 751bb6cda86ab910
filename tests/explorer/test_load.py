"""A class at once, for a minute: answers are right, and memory does not grow."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs starlette and uvicorn")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
classroom = pytest.importorskip("benchmarks.classroom", reason="needs a checkout")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc"
    ),
]
SECONDS = 60
WARM_UP = 20  # seconds
MAX_GROWTH = 32.0  # MB after the warm-up
CODE = """
import torch
from torchcaps.data import Preprocess, load_dataset
from torchcaps.explorer import Session
from torchcaps.explorer.server import serve
from torchcaps.models import create_model
torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_dataset("digits", "test")
sizes = {"channels": (8,), "kernels": (5,), "hidden": (16,)}
models = [create_model("capsnet"), create_model("cnn_baseline", **sizes)]
for model in models:
    model.eval()
    model.classes, model.preprocess = digits.classes, Preprocess((28, 28), 1)
sessions = [Session(model, str(k), digits) for k, model in enumerate(models)]
try:
    serve(sessions, port=0, open_page=False, log=lambda line: print(line, flush=True))
except KeyboardInterrupt:
    pass
"""


class Server:
    """A server in a process of its own."""

    def __init__(self, process):
        self.process = process
        self.port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def megabytes(self):
        """Memory that the process has now."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        [resident] = [line for line in lines if line.startswith("VmRSS")]
        return int(resident.split()[1]) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        assert self.process.returncode == 0
        assert self.process.stderr.read() == ""


@pytest.fixture
def server():
    command = [sys.executable, "-c", CODE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


def test_a_class_for_a_minute_loses_nothing(server):
    classroom.attend(server.port, WARM_UP, in_step=True)
    before = server.megabytes()
    attendance = classroom.attend(server.port, SECONDS, in_step=True)
    growth = server.megabytes() - before
    print(f"{attendance.summary()}; memory grew by {growth:.0f} MB")
    assert attendance.wrong == []
    assert attendance.unanswered == 0
    assert len(attendance.seconds) >= classroom.CLIENTS * (SECONDS / classroom.STROKE_INTERVAL - 2)
    assert growth < MAX_GROWTH
    server.stop()
