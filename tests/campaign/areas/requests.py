"""Hostile requests to the server of the page: an answer or a refusal in one sentence."""

import base64
import json
import socket
import threading
from functools import cache
from http.client import HTTPConnection

import numpy as np
import torch

from campaign import mutate
from campaign.core import dice
from campaign.watch import no_side_effects
from torchcaps import create_model
from torchcaps.data import Preprocess
from torchcaps.explorer.page import describe_run
from torchcaps.explorer.server import bind

TESTS = {
    "bodies": 1150,
    "bytes": 400,
    "sockets": 250,
}
SIZE = (18, 20)
CLASSES = ("zero", "one", "two")
QUESTIONS = ("look", "draw")


@cache
def served():
    """The port of a server in a thread of this process, for two small networks."""
    torch.manual_seed(0)
    sizes = {"num_classes": 3, "in_chans": 1, "img_size": SIZE}
    models = [
        create_model("capsnet", **sizes, channels=4, primary_types=2),
        create_model("cnn_baseline", **sizes, channels=(4,), kernels=(3,), hidden=(4,)),
    ]
    models_served = []
    for model in models:
        model.eval()
        model.classes = CLASSES
        model.preprocess = Preprocess(SIZE, 1)
        models_served.append(describe_run(model, "model")[0])
    server = bind("", models_served, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def prepare():
    """Ask every question once."""
    for name in QUESTIONS:
        connection = HTTPConnection("127.0.0.1", served(), timeout=60)
        assert ask(name, json.dumps(body()).encode(), connection)[0] == 200, name


def ask(question, content, connection):
    """Status and text of an answer."""
    connection.request("POST", f"/{question}", content)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def body():
    """What every question understands."""
    numbers = np.random.default_rng(0).random((18, 20), np.float32)
    image = base64.b64encode(numbers.tobytes()).decode()
    pose = base64.b64encode(numbers[0, :16].tobytes()).decode()
    return {"image": image, "pose": pose, "label": 1, "model": 0}


def draw(test, random):
    """Which question."""
    return {"question": random.choice(QUESTIONS)}


def check(case, folder):
    """Ask, and judge the answer."""
    random = dice(case)
    if case["test"] == "sockets":
        over_a_socket(case, random)
        return
    connection = HTTPConnection("127.0.0.1", served(), timeout=60)
    connection.connect()
    with no_side_effects(folder):
        judge(*ask(case.get("question", "look"), text(case, random), connection))


def judge(status, content):
    """An answer, or a refusal of one sentence."""
    assert status in (200, 400), f"status {status}: {content[:300]}"
    if status == 400:
        sentence = json.loads(content)["error"]
        assert sentence and len(sentence.splitlines()) == 1 and len(sentence) < 1000, (
            f"no sentence: {sentence[:300]!r}"
        )
        assert "Traceback" not in sentence and ".py" not in sentence, (
            f"no sentence of the page: {sentence}"
        )


def text(case, random):
    """A body: what the case says, or the whole one edited or damaged."""
    if "depth" in case:
        return b'{"image": ' + mutate.nested(case["depth"]).encode() + b"}"
    if "body" in case:
        return json.dumps(case["body"]).encode()
    if case["test"] == "bodies":
        content = body()
        for _ in range(random.randint(1, 3)):
            content = mutate.edit(content, random)
        return json.dumps(content).encode("utf-8", "surrogatepass")
    damage = mutate.BYTES[
        random.choice(("bit flips", "truncation", "lengths", "splices", "numbers"))
    ]
    return damage(json.dumps(body()).encode(), random)


def over_a_socket(case, random):
    """A request that is no HTTP, or half of one: refused or not answered, and the next one is."""
    content = json.dumps(body()).encode()
    request = (
        b"POST /look HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-length: %d\r\n\r\n"
        % (served(), len(content))
        + content
    )
    damage = mutate.BYTES[random.choice(("bit flips", "truncation", "splices", "numbers"))]
    status = exchanged(damage(request[: 100 + random.randrange(len(request))], random))
    assert status is None or 200 <= status < 500 or status == 503, f"status {status}"
    request = b"GET / HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % served()
    assert exchanged(request, 60.0) == 200, "the server is gone"


def exchanged(request, seconds=0.2):
    """The status of what comes back in this time."""
    with socket.create_connection(("127.0.0.1", served()), timeout=60) as connection:
        connection.sendall(request)
        connection.settimeout(seconds)
        try:
            answer = connection.recv(20)
        except (TimeoutError, ConnectionError):
            return None
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.") else None
