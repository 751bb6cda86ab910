from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
import torch

pytest.importorskip("starlette.testclient", reason="needs starlette and httpx")

from starlette.testclient import TestClient

from torchcaps.errors import RunError
from torchcaps.explorer import VIEWS, app, server
from torchcaps.explorer.app import token_for
from torchcaps.explorer.server import bound, make_app, page_url

from .conftest import SIZE, png

HOME = "http://127.0.0.1:8700"


@pytest.fixture(scope="module")
def client(session, plain):
    return TestClient(make_app([session, plain]), base_url=HOME)


@pytest.fixture
def picture(image):
    return base64.b64encode(image.numpy().tobytes()).decode()


FOLDER = Path(server.__file__).parent
STATIC = {path.name for path in FOLDER.joinpath("static").iterdir()}
SCRIPTS = {path.name for path in FOLDER.joinpath("views").glob("*.js")}


def refused(answer, status, why):
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    sentence = answer.json()["error"]
    assert why in sentence
    assert "\n" not in sentence
    assert "Traceback" not in sentence


def test_the_page_and_its_files_are_served_and_refer_to_nothing_else(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    texts = [
        page.text,
        *(client.get(f"/static/{name}").text for name in sorted(STATIC | SCRIPTS)),
    ]
    for text in texts:
        foreign = set(re.findall(r"https?://[^\"'` )]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not foreign
    named = set(re.findall(r"static/([\w.]+)", page.text)) | set(
        re.findall(r'from "\./([\w.]+)"', "".join(texts))
    )
    assert named | {"index.html"} == STATIC
    assert {f"{name}.js" for name, view in VIEWS.items() if view.title} == SCRIPTS
    assert client.get("/static/main.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path", ["/", "/static/main.js", "/api/describe", "/nothing", "/api/infer"]
)
def test_every_answer_has_the_headers_of_a_careful_server(client, path):
    headers = client.get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.startswith("access-control")]


def test_a_look_over_the_wire(client, session, image, picture):
    found = client.post("/api/infer", json={"image": picture, "classes": [1]}).json()
    wanted = session.view("infer").run(image, [1])
    assert found["activation"] == pytest.approx(wanted.activation.tolist(), abs=1e-5)
    assert found["shown"] == [1]
    drawn = torch.frombuffer(bytearray(base64.b64decode(found["drawn"][0])), dtype=torch.uint8)
    assert torch.allclose(drawn.float() / 255, wanted.reconstructions.flatten(), atol=0.003)


def test_every_question_has_an_answer(client, picture):
    motion = {"degrees": 30, "changing": "degrees"}
    bodies = {
        "examples": {"label": 1, "count": 2},
        "infer": {"image": picture, "uniform": True, "motion": motion},
        "pose": {"label": 2, "poses": [[0.1] * 16, [0] * 16]},
        "routing": {"image": picture, "label": 0},
        "transform": {"image": picture, "label": 0, "values": [-10, 0, 10], "motion": motion},
        "overlap": {
            "image": picture,
            "second": picture,
            "right": 2,
            "down": -3.5,
            "classes": [0, 2],
        },
    }
    assert bodies.keys() == VIEWS.keys()
    found = {}
    for name, body in bodies.items():
        answer = client.post(f"/api/{name}", json=body)
        assert answer.status_code == 200, answer.text
        found[name] = answer.json()
    assert [example["index"] for example in found["examples"]["examples"]] == [1, 4]
    assert len(found["pose"]["drawn"]) == 2
    assert len(found["routing"]["steps"]) == 3
    assert len(found["transform"]["activation"]) == 3
    assert found["overlap"]["shown"] == [0, 2]


def test_the_second_model_is_asked_by_number(client, picture):
    models = client.get("/api/describe").json()["models"]
    assert ["pose" in model["views"] for model in models] == [True, False]
    found = client.post("/api/infer", json={"image": picture, "model": 1}).json()
    assert found["pose"] is None
    refused(
        client.post("/api/routing", json={"image": picture, "model": 1, "label": 0}),
        400,
        "cannot be shown",
    )


def test_an_image_file_over_the_wire(client):
    found = client.post("/api/picture", content=png(color="white")).json()
    assert base64.b64decode(found["image"]) == b"\xff" * (SIZE[0] * SIZE[1])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": None}, "image: expected base64"),
        ({"image": 7}, "image: expected base64"),
        ({"image": "not base64!"}, "image: expected base64"),
        ({"image": "AAAA"}, "image: expected 360 bytes, got 3"),
        ({"model": 2}, "model: expected a whole number from 0 to 1"),
        ({"model": True}, "model: expected"),
        ({"model": "0"}, "model: expected"),
        ({"model": 0.0}, "model: expected"),
        ({"uniform": 1}, "uniform: expected true or false"),
        ({"classes": 3}, "classes: expected a list"),
        ({"classes": [3]}, "class: expected between 0 and 2"),
        ({"classes": [-1]}, "class: expected between"),
        ({"classes": [0] * 65}, "classes: expected at most 64"),
        ({"classes": [[0]]}, "classes: expected"),
        ({"motion": []}, "motion: expected an object"),
        ({"motion": {"degrees": 1e9}}, "degrees: expected between -180.0 and 180.0"),
        ({"motion": {"scale": 0}}, "scale: expected"),
        ({"motion": {"right": "1"}}, "motion: expected numbers for degrees"),
        ({"motion": {"changing": "__class__"}}, "unknown motion '__class__'"),
        ({"motion": {"changing": {}}}, "unknown motion '{}'"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(client, picture, change, why):
    refused(client.post("/api/infer", json={"image": picture} | change), 400, why)


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("pose", {"label": 0}, "poses: expected a list of equally long lists"),
        ("pose", {"label": 0, "poses": []}, "poses: expected"),
        (
            "pose",
            {"label": 0, "poses": [[0] * 15]},
            "poses: expected [n, dim=16], got [n=1, dim=15]",
        ),
        ("pose", {"label": 0, "poses": [[0] * 15 + ["1"]]}, "poses: expected a list"),
        ("pose", {"label": 0, "poses": [[0] * 15 + [1e300]]}, "at most ±10000"),
        ("pose", {"label": 0, "poses": [0] * 16}, "poses: expected a list"),
        ("pose", {"label": 3, "poses": [[0] * 16]}, "label: expected a whole number from 0 to 2"),
        ("examples", {}, "label: expected"),
        ("examples", {"index": -1}, "index: expected"),
        ("examples", {"index": 9}, "index: expected between 0 and 8"),
        ("examples", {"label": 0, "count": 61}, "count: expected a whole number from 1 to 60"),
        ("examples", {"label": 0, "start": -5}, "start: expected"),
    ],
)
def test_wrong_questions_are_refused_in_one_sentence(client, name, body, why):
    refused(client.post(f"/api/{name}", json=body), 400, why)


@pytest.mark.parametrize("values", [[], [0] * 42, [None], 5, [[0]], [1000]])
def test_a_sweep_is_bounded(client, picture, values):
    refused(
        client.post("/api/transform", json={"image": picture, "label": 0, "values": values}),
        400,
        "expected",
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b'"text"',
        b'{"image": NaN}',
        b'{"image": Infinity}',
        b"\xff\xfe",
        b"\x00" * 9,
        b"[" * 4000,
        b'{"a":' * 700,
        b'{"model": 1' + b"0" * 4000 + b"}",
        b'{"model": 1e999}',
    ],
)
def test_bodies_that_are_no_json_object_are_refused(client, body):
    answer = client.post("/api/infer", content=body)
    refused(answer, 400, "expected")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/x", 404), ("PUT", "/", 405), ("GET", "/api/infer", 405)],
)
def test_paths_and_methods_that_there_are_not_are_refused_in_a_sentence(
    client, method, path, status
):
    refused(
        client.request(method, path),
        status,
        "Not Found" if status == 404 else "Method Not Allowed",
    )


def test_a_connection_that_never_ends_its_request_is_closed(session, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with bound("127.0.0.1", 0) as listening:
        running = server.uvicorn.Server(server.settings(make_app([session])))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with socket.create_connection(listening.getsockname(), timeout=30) as half:
                half.sendall(b"GET / HTTP/1.1\r\nhost: 127")
                assert half.recv(100) == b""
            with socket.create_connection(listening.getsockname(), timeout=30) as whole:
                whole.sendall(b"GET /api/describe HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                assert b"200 OK" in whole.recv(100)
        finally:
            running.should_exit = True
            thread.join(30)


def test_infinity_does_not_come_in_as_a_large_number(client):
    body = b'{"label": 0, "poses": [[1e999' + b", 0" * 15 + b"]]}"
    refused(client.post("/api/pose", content=body), 400, "at most ±10000")


def test_random_bodies_are_answered_without_a_failure(client, picture):
    draw = random.Random(0)
    whole = json.dumps(
        {"image": picture, "label": 0, "values": [0, 1], "poses": [[0.1] * 16], "index": 2}
    ).encode()
    for _ in range(150):
        body = bytearray(whole)
        for _ in range(draw.randint(1, 6)):
            start = draw.randrange(len(body))
            body[start : start + draw.randint(0, 40)] = draw.randbytes(draw.randint(0, 20))
        answer = client.post(
            f"/api/{draw.choice(['infer', 'pose', 'transform', 'examples', 'routing'])}",
            content=bytes(body),
        )
        assert answer.status_code in (200, 400, 413), answer.text


def test_random_files_are_answered_without_a_failure(client):
    draw = random.Random(1)
    files = [png(), png(kind="GIF", mode="L"), png(kind="JPEG"), png(kind="BMP"), png(kind="WEBP")]
    for _ in range(150):
        body = bytearray(draw.choice(files))
        for _ in range(draw.randint(1, 8)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        assert client.post("/api/picture", content=bytes(body)).status_code in (200, 400)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def blank_png(width, height, *more):
    """A PNG whose pixels are all there, in a few bytes."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(min((width + 1) * height, 2_000_000)), 9))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + pixels + chunk(b"IEND", b"")


def test_images_of_many_pixels_are_refused_by_their_header(client):
    refused(client.post("/api/picture", content=blank_png(10_000, 10_000)), 400, "pixels")
    refused(client.post("/api/picture", content=blank_png(60_000, 60_000)), 400, "pixels")
    refused(client.post("/api/picture", content=blank_png(2**31 - 1, 2**31 - 1)), 400, "")


def test_a_text_that_unpacks_to_gigabytes_is_refused(client):
    bomb = chunk(b"zTXt", b"name\x00\x00" + zlib.compress(bytes(80_000_000), 9))
    answer = client.post("/api/picture", content=blank_png(20, 20, bomb))
    refused(answer, 400, "image")


def test_a_body_of_one_byte_over_its_limit_is_refused(session, picture):
    client = TestClient(make_app([session]), base_url=HOME)
    limit = app.Api([session], app.Worker()).max_body
    body = json.dumps({"image": picture}).encode()
    assert client.post("/api/infer", content=body.ljust(limit)).status_code == 200
    refused(client.post("/api/infer", content=body.ljust(limit + 1)), 413, "larger than")
    parts = (bytes(4096) for _ in range(30))  # without a length of the whole
    refused(client.post("/api/infer", content=parts), 413, "larger than")
    file = png().ljust(app.MAX_FILE, b"\0")
    assert client.post("/api/picture", content=file).status_code == 200
    refused(client.post("/api/picture", content=file + b"\0"), 413, "larger than")


def test_a_body_that_does_not_end_is_refused(session, monkeypatch):
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)
    sent = []
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive():
        for part in parts:
            return part
        return await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"2")]
    scope = {"type": "http", "method": "POST", "path": "/api/infer", "headers": headers}
    scope |= {"query_string": b"", "root_path": "", "http_version": "1.1"}
    asyncio.run(asyncio.wait_for(make_app([session])(scope, receive, send), 30))
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"]) == {"error": "the body took longer than 0.05 seconds"}


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/index.html",
        "/static/",
        "/..%5cserver.py",
        "/static/main.js%00.png",
        "/etc/passwd",
        "/api/../server.py",
        "/static/%252e%252e%252fserver.py",
        "/favicon.ico",
        "/api/__class__",
    ],
)
def test_no_path_reaches_a_file(client, path):
    for answer in (client.get(path), client.post(path, json={})):
        assert answer.status_code in (404, 405)
        assert "import" not in answer.text


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "",
        "169.254.169.254",
        "[::2]",
        "[::1",
        "[::1]x:80",
    ],
)
def test_another_host_is_refused(client, host):
    answer = client.get("/api/describe", headers={"host": host})
    assert (answer.status_code, answer.text) == (400, "Invalid host header")
    assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8700", "localhost:9000", "LOCALHOST", "[::1]:8700", "127.0.0.1"]
)
def test_this_machine_is_known_by_its_names_on_any_port(client, host):
    assert client.get("/api/describe", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x", ""])
def test_another_page_is_refused(client, site, picture):
    headers = {"sec-fetch-site": site}
    answer = client.post("/api/infer", json={"image": picture}, headers=headers)
    refused(answer, 403, "other pages")


def test_the_own_page_is_not(client, picture):
    for site in ("same-origin", "none"):
        headers = {"sec-fetch-site": site}
        answer = client.post("/api/infer", json={"image": picture}, headers=headers)
        assert answer.status_code == 200
    # A link on another page may open this one.
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_elsewhere_every_request_needs_the_token(session):
    right = token_for("0.0.0.0")
    far = TestClient(make_app([session], right), base_url="http://192.168.1.7:8700")
    for token in ("", "wrong", right[:-1], "ünfug"):
        refused(far.get("/api/describe", params={"token": token}), 403, "token")
        refused(far.get("/", params={"token": token}), 403, "token")
    assert far.get("/", params={"token": right}).status_code == 200
    assert far.get("/api/describe", headers={"x-token": right}).status_code == 200
    assert page_url("0.0.0.0", 80, right) == f"http://127.0.0.1:80/?token={right}"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_here_none_is_needed(host):
    assert token_for(host) == ""


def test_tokens_are_never_the_same():
    assert len({token_for("10.0.0.1") for _ in range(5)}) == 5


def test_a_mistake_of_ours_is_not_told_to_the_page(session, picture, monkeypatch):
    def fail(*_, **__):
        raise KeyError("secret")

    monkeypatch.setattr(VIEWS["routing"], "run", fail)
    client = TestClient(make_app([session]), base_url=HOME, raise_server_exceptions=False)
    answer = client.post("/api/routing", json={"image": picture, "label": 0})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_values_that_are_not_finite_are_a_sentence(client, session, picture, monkeypatch):
    weight = session.model.class_capsules.weight
    before = weight.detach().clone()
    weight.data.fill_(float("nan"))
    try:
        refused(client.post("/api/infer", json={"image": picture}), 400, "not finite")
    finally:
        weight.data.copy_(before)


def test_a_taken_port_leads_to_the_next():
    with bound("127.0.0.1", 0) as first:
        taken = first.getsockname()[1]
        with bound("127.0.0.1", taken) as second:
            assert taken < second.getsockname()[1] < taken + server.PORTS


def test_addresses_that_cannot_be_had_are_a_sentence(monkeypatch):
    with pytest.raises(RunError, match="cannot be listened on|is no address"):
        bound("192.0.2.1", 8700)
    with pytest.raises(RunError, match="is no address"):
        bound("no such host", 8700)
    monkeypatch.setattr(server, "PORTS", 1)
    with bound("127.0.0.1", 0) as first, pytest.raises(RunError, match="are in use"):
        bound("127.0.0.1", first.getsockname()[1])


CODE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with SIGINT ignored
from torchcaps.explorer.server import serve
from torchcaps.data import Preprocess
from torchcaps.explorer import Session
from torchcaps.models import create_model
sizes = {"img_size": 12, "num_classes": 2, "channels": (4,), "kernels": (3,), "hidden": (4,)}
model = create_model("cnn_baseline", **sizes).eval()
model.classes, model.preprocess = ("a", "b"), Preprocess((12, 12), 1)
try:
    serve([Session(model, "m")], port=0, open_page=False, log=lambda line: print(line, flush=True))
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


def test_ctrl_c_stops_it_with_a_browser_still_connected():
    with subprocess.Popen(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as open_one:
            open_one.sendall(b"GET /api/describe HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert b"200 OK" in open_one.recv(200)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert out == "stopped\n"
        assert "Traceback" not in err
        assert process.returncode == 0
