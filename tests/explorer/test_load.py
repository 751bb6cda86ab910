"""Ten clients at once, or a class, for a minute: every answer is right, and the server's memory stays where it is."""

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
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs starlette and uvicorn")

from .conftest import png

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
classroom = pytest.importorskip("benchmarks.classroom", reason="needs a checkout")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc"
    ),
]
CLIENTS, SECONDS, WARM = 10, 60, 20
MOST_GROWTH = 32.0  # MB from the window after the warm-up to the last one
CODE = """
import torch
from torchcaps.data import Preprocess, load_dataset
from torchcaps.explorer import Session
from torchcaps.explorer.server import serve
from torchcaps.models import create_model
torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_dataset("digits", "test")
models = [create_model("capsnet"), create_model("cnn_baseline", channels=(8,), kernels=(5,), hidden=(16,))]
for model in models:
    model.eval()
    model.classes, model.preprocess = digits.classes, Preprocess((28, 28), 1)
sessions = [Session(model, str(k), digits) for k, model in enumerate(models)]
try:
    serve(sessions, port=0, open_page=False, log=lambda line: print(line, flush=True))
except KeyboardInterrupt:
    pass
"""


@pytest.fixture
def served():
    """A server of its own process, and its port."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        finally:
            process.kill()


def questions():
    """Requests of every kind, as (path, body)."""
    draw = np.random.default_rng(0)
    first, second = (
        base64.b64encode(draw.integers(0, 256, 784, dtype=np.uint8).tobytes()).decode()
        for _ in range(2)
    )
    poses = draw.normal(0, 0.2, (21, 16)).round(3).tolist()
    turned = {"degrees": 20, "scale": 1.1, "right": 2, "down": -1, "changing": "degrees"}
    bodies = [
        ("look", {"image": first}),
        ("look", {"image": second, "classes": [3, 8], "uniform": True}),
        ("look", {"image": first, "motion": turned}),
        ("look", {"image": second, "model": 1}),
        ("decode", {"label": 4, "poses": poses[:1]}),
        ("decode", {"label": 7, "poses": poses}),  # a walk
        ("routing", {"image": first, "label": 2}),
        ("routing", {"image": second, "label": 5, "uniform": True}),
        ("sweep", {"image": first, "label": 1, "values": [-20, 0, 20], "motion": turned}),
        ("overlap", {"image": first, "second": second, "right": 3}),
        ("examples", {"index": 5}),
        ("examples", {"label": 6, "count": 5}),
    ]
    return [(f"/api/{name}", json.dumps(body)) for name, body in bodies] + [
        ("/api/picture", png()),
        ("/", None),
    ]


def connected(port):
    return closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60))


def ask(client, path, body):
    client.request("GET" if body is None else "POST", path, body)
    answer = client.getresponse()
    return answer.status, answer.read()


def alike(one, other):
    """The same but for rounding: numbers to a thousandth, pictures to one step of gray."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return abs(one - other) < 1e-3
    if isinstance(one, str) and one != other:
        here, there = (
            np.frombuffer(base64.b64decode(text), np.uint8).astype(int) for text in (one, other)
        )
        return here.shape == there.shape and abs(here - there).max() <= 1
    return one == other


def megabytes(process):
    """Memory that the process holds now."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def test_ten_clients_for_a_minute(served):
    process, port = served
    asked, wanted = questions(), []
    with connected(port) as alone:
        for path, body in asked:
            status, text = ask(alone, path, body)
            assert status == 200, text
            wanted.append(text)
    wrong, taken, end = [], [], time.monotonic() + SECONDS

    def right(status, text, whole):
        return text == whole or (
            status == 200 and text[:1] == b"{" and alike(json.loads(text), json.loads(whole))
        )

    def client(seed):
        draw = random.Random(seed)
        with connected(port) as mine:
            while time.monotonic() < end and not wrong:
                k, start = draw.randrange(len(asked)), time.monotonic()
                try:
                    status, text = ask(mine, *asked[k])
                except Exception as error:
                    wrong.append((asked[k][0], repr(error)))
                    return
                taken.append(time.monotonic() - start)
                if not right(status, text, wanted[k]):
                    wrong.append((asked[k][0], status, text[:300]))

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(CLIENTS)]
    for one in clients:
        one.start()
    held, began = [], time.monotonic()
    while any(one.is_alive() for one in clients):
        held.append((time.monotonic() - began, megabytes(process)))
        time.sleep(0.25)
    assert wrong == []
    part = (SECONDS - WARM) / 2
    early, late = (
        median(size for when, size in held if start <= when < stop)
        for start, stop in pairwise((WARM, WARM + part, SECONDS + part))
    )
    print(
        f"{len(taken)} answers, median {1000 * median(taken):.0f} ms; memory {held[0][1]:.0f} MB at the start, "
        f"{early:.0f} MB from second {WARM} on, {late:.0f} MB at the end"
    )
    assert len(taken) > 5 * len(asked)
    assert late - early < MOST_GROWTH
    with connected(port) as alone:
        assert right(*ask(alone, *asked[0]), wanted[0])
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert process.returncode == 0
    assert process.stderr.read() == ""


def test_a_class_for_a_minute_loses_nothing(served):
    process, port = served
    found = classroom.attend(port, SECONDS, in_step=True)
    print(found.told())
    assert found.wrong == []
    assert found.unanswered == 0
    assert len(found.seconds) >= classroom.CLIENTS * (SECONDS / classroom.EVERY - 2)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert process.stderr.read() == ""
