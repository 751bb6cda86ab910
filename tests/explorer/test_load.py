"""Ten clients at once, or a class, for a minute: answers are right, and memory does not grow."""

from __future__ import annotations

import base64
import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs starlette and uvicorn")

from .conftest import encode_image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
classroom = pytest.importorskip("benchmarks.classroom", reason="needs a checkout")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc"
    ),
]
NUM_CLIENTS = 10
SECONDS = 60
WARM_UP = 20  # seconds
MAX_GROWTH = 32.0  # MB from the half of the time after the warm-up to the last one
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

    def connect(self):
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60))

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


def make_requests():
    """Requests of every kind, as (path, body)."""
    random_state = np.random.default_rng(0)
    pixels = random_state.integers(0, 256, (2, 784), dtype=np.uint8)
    first = base64.b64encode(pixels[0].tobytes()).decode()
    second = base64.b64encode(pixels[1].tobytes()).decode()
    poses = random_state.normal(0, 0.2, (21, 16)).round(3).tolist()
    motion = {"degrees": 20, "scale": 1.1, "right": 2, "down": -1, "changing": "degrees"}
    bodies = [
        ("infer", {"image": first}),
        ("infer", {"image": second, "classes": [3, 8], "uniform": True}),
        ("infer", {"image": first, "motion": motion}),
        ("infer", {"image": second, "model": 1}),
        ("pose", {"label": 4, "poses": poses[:1]}),
        ("pose", {"label": 7, "poses": poses}),  # a walk
        ("routing", {"image": first, "label": 2}),
        ("routing", {"image": second, "label": 5, "uniform": True}),
        ("transform", {"image": first, "label": 1, "values": [-20, 0, 20], "motion": motion}),
        ("overlap", {"image": first, "second": second, "right": 3}),
        ("examples", {"index": 5}),
        ("examples", {"label": 6, "count": 5}),
    ]
    requests = [(f"/api/{name}", json.dumps(body)) for name, body in bodies]
    return [*requests, ("/api/picture", encode_image()), ("/", None)]


def ask(connection, path, body):
    connection.request("GET" if body is None else "POST", path, body)
    response = connection.getresponse()
    assert response.status == 200
    return response.read()


def is_close(first, second):
    """Equal but for rounding: numbers to a thousandth, pictures to one step of gray."""
    if isinstance(first, dict):
        return is_close(sorted(first.items()), sorted(second.items()))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(is_close, first, second))
    if isinstance(first, float):
        return abs(first - second) < 1e-3
    if isinstance(first, str) and first != second:
        first_pixels = np.frombuffer(base64.b64decode(first), np.uint8).astype(int)
        second_pixels = np.frombuffer(base64.b64decode(second), np.uint8)
        return np.allclose(first_pixels, second_pixels, rtol=0, atol=1)
    return first == second


def test_ten_clients_for_a_minute(server):
    requests = make_requests()
    with server.connect() as connection:
        expected = [ask(connection, *request) for request in requests]
    end = time.monotonic() + SECONDS
    failures = []
    latencies = []

    def check(connection, k):
        answer = ask(connection, *requests[k])
        if answer != expected[k]:
            assert is_close(json.loads(answer), json.loads(expected[k])), requests[k][0]

    def run_client(seed):
        choice = random.Random(seed)
        try:
            with server.connect() as connection:
                while time.monotonic() < end and not failures:
                    start = time.monotonic()
                    check(connection, choice.randrange(len(requests)))
                    latencies.append(time.monotonic() - start)
        except Exception as error:
            failures.append(error)

    clients = [threading.Thread(target=run_client, args=(seed,)) for seed in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    memory = []
    while any(client.is_alive() for client in clients):
        memory.append(server.megabytes())
        time.sleep(0.25)
    assert failures == []
    warm = memory[len(memory) * WARM_UP // SECONDS :]
    middle = len(warm) // 2
    early = median(warm[:middle])
    late = median(warm[middle:])
    latency = f"median {1000 * median(latencies):.0f} ms"
    print(f"{len(latencies)} answers, {latency}; memory {early:.0f} MB, then {late:.0f} MB")
    assert len(latencies) > 5 * len(requests)
    assert late - early < MAX_GROWTH
    with server.connect() as connection:
        check(connection, 0)
    server.stop()


def test_a_class_for_a_minute_loses_nothing(server):
    attendance = classroom.attend(server.port, SECONDS, in_step=True)
    print(attendance.summary())
    assert attendance.wrong == []
    assert attendance.unanswered == 0
    assert len(attendance.seconds) >= classroom.CLIENTS * (SECONDS / classroom.STROKE_INTERVAL - 2)
    server.stop()
