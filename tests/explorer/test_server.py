from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette.testclient", reason="needs starlette and httpx")

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from starlette.testclient import TestClient

from torchcaps.errors import RunError
from torchcaps.explorer import VIEWS, app, server
from torchcaps.explorer.app import token_for
from torchcaps.explorer.server import bound, make_app, page_url

from .conftest import HOME, client_of, encode_image

FOLDER = Path(server.__file__).parent
STATIC = {path.name for path in FOLDER.joinpath("static").iterdir()}
SCRIPTS = {path.name for path in FOLDER.joinpath("views").glob("*.js")}


@pytest.fixture(scope="module")
def client(session, plain):
    return client_of(session, plain)


def check_refusal(response, status, problem):
    """The response has this status and one sentence, which states the problem."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    sentence = response.json()["error"]
    assert problem in sentence
    assert "\n" not in sentence
    assert "Traceback" not in sentence


def test_the_page_and_its_files_are_served_and_refer_to_nothing_else(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    script = client.get("/static/main.js")
    assert script.headers["content-type"].startswith("text/javascript")
    files = [client.get(f"/static/{name}").text for name in STATIC | SCRIPTS]
    text = page.text + "".join(files)
    foreign = set(re.findall(r"https?://[^\"'` )]+", text))
    assert foreign <= {"http://www.w3.org/2000/svg"}
    references = set(re.findall(r"static/([\w.]+)", page.text))
    references |= set(re.findall(r'from "\./([\w.]+)"', text))
    assert references | {"index.html"} == STATIC
    assert {f"{name}.js" for name, view in VIEWS.items() if view.title} == SCRIPTS


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/describe", "/nothing"])
def test_every_answer_has_the_headers_of_a_careful_server(client, path):
    headers = client.get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.startswith("access-control")]


def test_every_view_answers(client, picture):
    motion = {"degrees": 30, "changing": "degrees"}
    bodies = {
        "examples": {"label": 1, "count": 2, "start": 1},
        "infer": {"uniform": True, "motion": motion},
        "pose": {"label": 2, "poses": [[0.1] * 16, [0] * 16]},
        "routing": {"label": 0},
        "transform": {"label": 0, "values": [-10, 0, 10], "motion": motion},
        "overlap": {"second": picture, "right": 2, "down": -3.5, "classes": [0, 2]},
    }
    assert bodies.keys() == VIEWS.keys()
    answers = {}
    for name, body in bodies.items():
        response = client.post(f"/api/{name}", json={"image": picture} | body)
        assert response.status_code == 200, response.text
        answers[name] = response.json()
    assert [example["index"] for example in answers["examples"]["examples"]] == [4, 7]
    assert len(answers["pose"]["drawn"]) == 2
    assert len(answers["routing"]["steps"]) == 3
    assert len(answers["transform"]["activation"]) == 3
    assert answers["overlap"]["shown"] == [0, 2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"image": "AAAA"}, "image: expected 360 bytes in base64"),
        ({"model": 2}, "model: expected between 0 and 1, got 2"),
        ({"uniform": 1}, "uniform: expected true or false"),
        ({"classes": 3}, "classes: expected a list"),
        ({"classes": [0.5]}, "classes: expected a list of whole numbers"),
        ({"classes": [3]}, "class: expected between 0 and 2"),
        ({"classes": [0] * 65}, "classes: expected at most 64"),
        ({"motion": []}, "motion: expected an object"),
        ({"motion": {"degrees": 1e9}}, "degrees: expected between -180.0 and 180.0"),
        ({"motion": {"right": "1"}}, "motion: expected an object of numbers for degrees, scale"),
        ({"motion": {"changing": "__class__"}}, "unknown motion '__class__'"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(client, picture, change, problem):
    check_refusal(client.post("/api/infer", json={"image": picture} | change), 400, problem)


@pytest.mark.parametrize(
    ("name", "body", "problem"),
    [
        ("pose", {"poses": [[0], [0, 0]]}, "poses: expected a list of equally long lists"),
        ("pose", {"poses": [[0] * 15 + ["1"]]}, "poses: expected a list of equally long lists"),
        ("pose", {"poses": [[0] * 15]}, "poses: expected [n, dim=16], got [n=1, dim=15]"),
        ("pose", {"poses": [[0] * 15 + [1e300]]}, "at most ±10000"),
        ("examples", {"label": None}, "label: expected"),
        ("examples", {"index": 9}, "index: expected between 0 and 8"),
        ("examples", {"count": 61}, "count: expected between 1 and 60, got 61"),
        ("transform", {"values": [0] * 42}, "values: expected between 1 and 41"),
        ("transform", {"values": [1000]}, "at most ±512"),
    ],
)
def test_values_that_a_view_refuses(client, picture, name, body, problem):
    body = {"image": picture, "label": 0} | body
    check_refusal(client.post(f"/api/{name}", json=body), 400, problem)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"image": NaN}',
        b"\xff\xfe",
        b"[" * 4000,
        b'{"model": 1' + b"0" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_json_object_are_refused(client, body):
    problem = "expected a JSON object in UTF-8, with finite numbers"
    check_refusal(client.post("/api/infer", content=body), 400, problem)


def test_infinity_does_not_come_in_as_a_large_number(client):
    check_refusal(client.post("/api/infer", content=b'{"model": 1e999}'), 400, "model: expected")
    body = b'{"label": 0, "poses": [[1e999' + b", 0" * 15 + b"]]}"
    check_refusal(client.post("/api/pose", content=body), 400, "at most ±10000")


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [
        ("GET", "/x", 404, "Not Found"),
        ("PUT", "/", 405, "Method Not Allowed"),
        ("GET", "/api/infer", 405, "Method Not Allowed"),
    ],
)
def test_other_paths_and_methods_are_refused_in_a_sentence(client, method, path, status, problem):
    check_refusal(client.request(method, path), status, problem)


def test_a_connection_that_never_ends_its_request_is_closed(session, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with bound("127.0.0.1", 0) as listening:
        running = server.uvicorn.Server(server.settings(make_app([session])))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with socket.create_connection(listening.getsockname(), timeout=30) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nhost: 127")
                assert connection.recv(100) == b""
            with socket.create_connection(listening.getsockname(), timeout=30) as connection:
                connection.sendall(b"GET /api/describe HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                assert b"200 OK" in connection.recv(100)
        finally:
            running.should_exit = True
            thread.join(30)


def test_a_text_that_unpacks_to_gigabytes_is_refused(client):
    bomb = PngInfo()
    bomb.add_text("name", "0" * 80_000_000, zip=True)
    file = io.BytesIO()
    Image.new("L", (20, 20)).save(file, "PNG", pnginfo=bomb)
    check_refusal(client.post("/api/picture", content=file.getvalue()), 400, "image")


def test_a_body_of_one_byte_over_its_limit_is_refused(session, picture):
    client = client_of(session)
    limit = app.Api([session], app.Worker()).max_body
    body = json.dumps({"image": picture}).encode()
    assert client.post("/api/infer", content=body.ljust(limit)).status_code == 200
    check_refusal(client.post("/api/infer", content=body.ljust(limit + 1)), 413, "larger than")
    parts = (bytes(4096) for _ in range(30))  # without a length of the whole
    check_refusal(client.post("/api/infer", content=parts), 413, "larger than")
    file = encode_image().ljust(app.MAX_FILE, b"\0")
    assert client.post("/api/picture", content=file).status_code == 200
    check_refusal(client.post("/api/picture", content=file + b"\0"), 413, "larger than")


def test_a_body_that_does_not_end_is_refused(session, monkeypatch):
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)
    messages = []
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive():
        for part in parts:
            return part
        return await asyncio.Event().wait()

    async def send(message):
        messages.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/api/infer",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"2")],
    }
    asyncio.run(asyncio.wait_for(make_app([session])(scope, receive, send), 30))
    assert messages[0]["status"] == 408
    body = b"".join(message["body"] for message in messages[1:])
    assert json.loads(body) == {"error": "the body took longer than 0.05 seconds"}


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/index.html",
        "/static/",
        "/static/main.js%00.png",
        "/api/__class__",
    ],
)
def test_no_path_reaches_a_file(client, path):
    for response in (client.get(path), client.post(path, json={})):
        assert response.status_code in (404, 405)
        assert "import" not in response.text


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "169.254.169.254", "[::1", "[::1]x:80"]
)
def test_another_host_is_refused(client, host):
    response = client.get("/api/describe", headers={"host": host})
    assert (response.status_code, response.text) == (400, "Invalid host header")
    assert "default-src 'self'" in response.headers["content-security-policy"]


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x", ""])
def test_another_page_is_refused(client, site, picture):
    headers = {"sec-fetch-site": site}
    response = client.post("/api/infer", json={"image": picture}, headers=headers)
    check_refusal(response, 403, "other pages")


def test_elsewhere_every_request_needs_the_token(session):
    token = token_for("0.0.0.0")
    client = TestClient(make_app([session], token), base_url="http://192.168.1.7:8700")
    for wrong in ("", "wrong", token[:-1], "ünfug"):
        for path in ("/", "/api/describe"):
            check_refusal(client.get(path, params={"token": wrong}), 403, "token")
    assert client.get("/", params={"token": token}).status_code == 200
    assert client.get("/api/describe", headers={"x-token": token}).status_code == 200
    assert page_url("0.0.0.0", 80, token) == f"http://127.0.0.1:80/?token={token}"


def test_only_other_machines_need_a_token_and_it_is_never_the_same():
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        assert token_for(host) == ""
    assert len({token_for("10.0.0.1") for _ in range(5)}) == 5


def test_an_exception_of_ours_is_not_told_to_the_page(session, picture, monkeypatch):
    def fail(*_):
        raise KeyError("secret")

    client = TestClient(make_app([session]), base_url=HOME, raise_server_exceptions=False)
    broken = VIEWS["routing"]._replace(missing=fail)
    monkeypatch.setitem(VIEWS._entries, "routing", broken)
    response = client.post("/api/routing", json={"image": picture, "label": 0})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "default-src 'self'" in response.headers["content-security-policy"]


def test_values_that_are_not_finite_are_a_sentence(client, session, picture):
    weight = session.model.class_capsules.weight
    trained = weight.detach().clone()
    weight.data.fill_(float("nan"))
    try:
        check_refusal(client.post("/api/infer", json={"image": picture}), 400, "not finite")
    finally:
        weight.data.copy_(trained)


def test_a_taken_port_leads_to_the_next(monkeypatch):
    with bound("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bound("127.0.0.1", port) as second:
            assert port < second.getsockname()[1] < port + server.PORTS
        monkeypatch.setattr(server, "PORTS", 1)
        with pytest.raises(RunError, match="are in use"):
            bound("127.0.0.1", port)


def test_addresses_that_are_not_ours_are_a_sentence():
    with pytest.raises(RunError, match="cannot be listened on|is no address"):
        bound("192.0.2.1", 8700)
    with pytest.raises(RunError, match="is no address"):
        bound("no such host", 8700)


CODE = """
import signal
# A background job of a shell starts with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
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


@pytest.mark.slow
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
