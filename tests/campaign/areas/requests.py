"""Hostile requests to the explorer: an answer or a refusal in one sentence, never a failure."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

from campaign import mutate
from campaign.core import Case, dice
from campaign.formats import KINDS, photo, pixels, png_of
from campaign.watch import no_side_effects
from torchcaps import create_model
from torchcaps.data import Dataset, Preprocess
from torchcaps.explorer import Session
from torchcaps.explorer.server import bound, make_app, settings

TESTS = {
    "bodies": 1150,
    "bytes": 250,
    "pictures": 250,
    "sockets": 150,
}
HOME = "http://127.0.0.1:8700"
SIZE = (18, 20)
CLASSES = ("zero", "one", "two")
QUESTIONS = ("infer", "pose", "routing", "transform", "overlap", "examples")


@cache
def application() -> Any:
    """The page of a small capsule network and of a network without poses."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_classes": 3, "in_chans": 1, "img_size": SIZE}
    models = [
        create_model("capsnet", **sizes, channels=4, primary_types=2),
        create_model("cnn_baseline", **sizes, channels=(4,), kernels=(3,), hidden=(4,)),
    ]
    for model in models:
        model.eval()
        model.classes = CLASSES
        model.preprocess = Preprocess(SIZE, 1)
    images = Dataset(
        torch.from_numpy(pixels(9, 1, *SIZE)), {"label": torch.arange(9) % 3}, CLASSES, "noise"
    )
    return make_app([Session(models[0], "capsules", images), Session(models[1], "plain")])


@cache
def served() -> int:
    """The port of a server in a thread of this process."""
    import uvicorn

    listening = bound("127.0.0.1", 0)
    server = uvicorn.Server(settings(application()))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    return listening.getsockname()[1]


def prepare() -> None:
    """Ask every question once."""
    for name in QUESTIONS:
        assert client().post(f"/api/{name}", json=body()).status_code == 200, name


def client() -> Any:
    """A client in this process."""
    from starlette.testclient import (
        TestClient,
    )  # warns of a newer one, which a test would take for an error

    return TestClient(application(), base_url=HOME)


def body() -> dict[str, Any]:
    """What every question understands."""
    picture = base64.b64encode(pixels(*SIZE).tobytes()).decode()
    turned = {"degrees": 20, "scale": 1.1, "right": 2, "down": -1, "changing": "degrees"}
    return {
        "image": picture,
        "second": picture,
        "label": 1,
        "values": [-10, 0, 10],
        "poses": [[0.1] * 16],
        "index": 2,
        "count": 3,
        "start": 0,
        "classes": [0, 2],
        "motion": turned,
        "uniform": False,
        "model": 0,
        "right": 3,
    }


def draw(test: str, random: Random) -> dict[str, Any]:
    """Which question, and which kind of picture."""
    return {"question": random.choice(QUESTIONS), "kind": random.choice(sorted(KINDS))}


def check(case: Case, folder: Path) -> None:
    """Ask, and judge the answer."""
    random = dice(case)
    address = f"/api/{case.get('question', 'infer')}"
    if case["test"] == "sockets":
        over_a_socket(case, random)
        return
    with no_side_effects(folder):
        if case["test"] == "pictures":
            judge(client().post("/api/picture", content=picture(case, random)))
        else:
            judge(client().post(address, content=text(case, random)))


def judge(answer: Any) -> None:
    """2xx, or a refusal of one sentence."""
    status = answer.status_code
    assert 200 <= status < 300 or 400 <= status < 500 or status == 503, (
        f"status {status}: {answer.text[:300]}"
    )
    if status >= 300:
        sentence = answer.json()["error"]
        assert sentence and len(sentence.splitlines()) == 1 and len(sentence) < 1000, (
            f"no sentence: {sentence[:300]!r}"
        )
        assert "Traceback" not in sentence and ".py" not in sentence, (
            f"no sentence of the page: {sentence}"
        )


def text(case: Case, random: Random) -> bytes:
    """A body: what the case says, or the whole one edited or damaged."""
    if "depth" in case:
        return b'{"image": ' + mutate.nested(case["depth"]).encode() + b"}"
    if "body" in case:
        return json.dumps(case["body"]).encode()
    if case["test"] == "bodies":
        content: Any = body()
        for _ in range(random.randint(1, 3)):
            content = mutate.edit(content, random)
        return json.dumps(content).encode("utf-8", "surrogatepass")
    damage = mutate.BYTES[
        random.choice(("bit flips", "truncation", "lengths", "splices", "numbers"))
    ]
    return damage(json.dumps(body()).encode(), random)


SIDES = (1, 9400, 60_000, 2**31 - 1)


def picture(case: Case, random: Random) -> bytes:
    """An image file, damaged; or one that is far larger than its bytes."""
    if "sides" in case or random.random() < 0.1:
        sides = case.get("sides") or [random.choice(SIDES), random.choice(SIDES)]
        header = struct.pack(">IIBBBBB", *sides, 8, 0, 0, 0, 0)
        return png_of(header, zlib.compress(bytes(1 << 20)))
    if case.get("postscript"):
        return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    damage = mutate.BYTES[random.choice(("bit flips", "truncation", "lengths", "splices"))]
    return damage(photo(case["kind"], side=20), random)


def over_a_socket(case: Case, random: Random) -> None:
    """A request that is no HTTP, or half of one: refused or not answered, and the next one is."""
    content = json.dumps(body()).encode()
    request = (
        b"POST /api/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(content)
        + content
    )
    damage = mutate.BYTES[random.choice(("bit flips", "truncation", "splices", "numbers"))]
    status = exchanged(damage(request[: 100 + random.randrange(len(request))], random))
    assert status is None or 200 <= status < 500 or status == 503, f"status {status}"
    assert exchanged(b"GET /api/describe HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 60.0) == 200, (
        "the server is gone"
    )


def exchanged(request: bytes, seconds: float = 0.2) -> int | None:
    """The status of what comes back in this time."""
    with socket.create_connection(("127.0.0.1", served()), timeout=60) as connection:
        connection.sendall(request)
        connection.settimeout(seconds)
        try:
            answer = connection.recv(20)
        except (TimeoutError, ConnectionError):
            return None
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else None
