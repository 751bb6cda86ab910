"""The server of the page: what it answers, and whom it refuses."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import torch

import torchcaps as tc
from torchcaps.explorer.answers import ANSWERS
from torchcaps.explorer.page import describe_run
from torchcaps.types import ModelMetadata, model_metadata, set_model_metadata

from .conftest import decode, encode, make_model, random_images, serve


@pytest.fixture(scope="module")
def model():
    return make_model("matrix_caps_small", size=(28, 28))


@pytest.fixture(scope="module")
def address(model):
    with serve(model) as address:
        yield address


def ask(address, path="/look", request=None, headers=(), body=None):
    """Status and text of an answer."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=30)
    body = json.dumps(request) if body is None else body
    connection.request("POST", path, body, dict(headers))
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_look_has_the_model_s_votes_and_couplings(model, address):
    image = random_images(model)
    status, text = ask(address, request={"image": encode(image)})
    assert status == 200
    answer = json.loads(text)
    with torch.no_grad(), tc.record_routing(model, iterations=True) as record:
        capsules = model.capsules(image)
    trace = record.last()["class_capsules"]
    sizes = tuple(answer["sizes"].values())
    assert sizes == (*trace.coupling.shape[1:], capsules.pose.shape[-1])
    assert len(answer["steps"]) == model.class_capsules.router.iterations
    couplings = decode(answer["steps"][-1]["couplings"], trace.coupling.shape)
    torch.testing.assert_close(couplings, trace.coupling, atol=1e-4, rtol=1e-3)
    # A pose of EM is the mean of the votes by coupling and activation, as the rosette lays them.
    weights = decode(answer["steps"][-1]["weights"], sizes[:2]).unsqueeze(-1)
    votes = decode(answer["votes"], sizes)
    mean = (weights * votes).sum(0) / weights.sum(0)
    torch.testing.assert_close(mean, capsules.pose[0], atol=1e-4, rtol=1e-3)
    off = decode(answer["off"]["couplings"], sizes[:2])
    assert off.std() < 1e-6


def test_a_drawing_is_the_decoder_s():
    model = make_model()
    served, _ = describe_run(model, "small")
    capsules = model.capsules(random_images(model))
    answer = ANSWERS["draw"](served, encode(capsules.pose[0, 1].detach()), 1)
    expected = model.reconstruct(capsules, torch.tensor([1]))
    drawing = decode(answer["drawing"], expected.shape)
    torch.testing.assert_close(drawing, expected.detach(), atol=1e-6, rtol=0)


def test_a_cnn_has_its_probabilities_alone():
    model = make_model("cnn_matched", match="capsnet")
    served, content = describe_run(model, "cnn")
    image = random_images(model)
    answer = ANSWERS["look"](served, encode(image))
    assert answer.keys() == {"lengths"}
    with torch.no_grad():
        torch.testing.assert_close(decode(answer["lengths"], (1, 3)), model(image))
    assert (content.head["poses"], content.head["places"]) == (False, None)


def test_a_model_keeps_the_task_it_was_trained_for():
    model = make_model()
    metadata = model_metadata(model)
    set_model_metadata(model, ModelMetadata(metadata.classes, metadata.preprocess, "multilabel"))
    served, _ = describe_run(model, "several")
    assert served.task.name == "multilabel"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:{port}"}, 200),
        ({"host": "localhost:{port}"}, 200),
        ({"host": "evil.example:{port}"}, 403),
        ({"host": "127.0.0.1"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_it_answers_its_own_page_alone(model, address, headers, status):
    port = urlsplit(address).port
    headers = {name: text.format(port=port) for name, text in headers.items()}
    request = {"image": encode(random_images(model))}
    assert ask(address, request=request, headers=headers)[0] == status


BAD = {
    "no json": "{",
    "a list": "[]",
    "no image": "{}",
    "no base64": '{"image": 3}',
    "too short": '{"image": "AAAA"}',
    "not finite": json.dumps({"image": encode(torch.full((1, 1, 28, 28), torch.nan))}),
    "unknown model": '{"model": 7, "image": ""}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused_in_one_sentence(address, body):
    status, text = ask(address, body=body)
    assert status == 400
    sentence = json.loads(text)["error"]
    assert sentence and "\n" not in sentence and "Traceback" not in sentence


@pytest.mark.parametrize(("method", "path"), [("GET", "/../etc/passwd"), ("POST", "/describe")])
def test_no_request_names_a_file(address, method, path):
    connection = HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.request(method, path, "{}")
    assert connection.getresponse().status in (400, 404)


def test_who_says_nothing_is_not_waited_for(model, address, monkeypatch):
    monkeypatch.setattr("torchcaps.explorer.server.Handler.timeout", 0.2)
    with socket.create_connection(("127.0.0.1", urlsplit(address).port)) as silent:
        silent.sendall(b"POST /look HTTP/1.0\r\n")
        assert ask(address, request={"image": encode(random_images(model))})[0] == 200


def test_a_port_in_use_is_left_to_its_owner(address):
    from torchcaps.explorer.server import bind

    port = urlsplit(address).port
    with bind("", [], port) as second:
        assert second.server_address[1] != port
