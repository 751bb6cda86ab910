"""The queue before the worker: who waits, who makes room, and who is refused."""

from __future__ import annotations

import asyncio
import base64
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch

pytest.importorskip("starlette.testclient", reason="needs starlette and httpx")

from starlette.exceptions import HTTPException

from torchcaps.explorer import Session, app
from torchcaps.explorer.app import Worker

from .conftest import SIZE, client_of, run


@contextmanager
def busy(queue):
    """A worker that has something to do until this ends."""
    started = threading.Event()
    is_over = threading.Event()

    def work():
        started.set()
        is_over.wait(60)

    queue._thread.submit(work)
    started.wait(60)
    try:
        yield
    finally:
        is_over.set()


def answer_all(queue, requests):
    """Answers to requests that all wait before the first is answered.

    Args:
        queue: a worker.
        requests: (stream, argument), or (stream, argument, key) for those that go together.

    Returns:
        The answers, with an exception's type in its place; and the arguments of each pass.
    """
    passes = []

    def answer_batch(arguments):
        passes.append("".join(arguments))
        if "-" in arguments:
            raise ValueError("cannot be answered")
        return list(map(str.upper, arguments))

    async def ask():
        tasks = []
        with busy(queue):
            for stream, argument, *key in requests:
                answer = queue.run(answer_batch, argument, stream, *key)
                tasks.append(asyncio.create_task(answer))
                await asyncio.sleep(0)  # it lines up
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = []
    for answer_or_error in asyncio.run(ask()):
        is_error = isinstance(answer_or_error, Exception)
        answers.append(type(answer_or_error) if is_error else answer_or_error)
    return answers, passes


def test_requests_without_a_stream_are_answered_in_their_order():
    answers, passes = answer_all(Worker(), [("", "a"), ("", "b"), ("", "c"), ("", "d")])
    assert answers == ["A", "B", "C", "D"]
    assert passes == ["a", "b", "c", "d"]


def test_the_newest_of_a_stream_takes_the_place_of_the_older_one():
    requests = [("mine", "a"), ("yours", "b"), ("mine", "c"), ("mine", "d")]
    answers, passes = answer_all(Worker(), requests)
    assert answers == [None, "B", None, "D"]
    assert passes == ["d", "b"]


def test_a_full_queue_refuses_newcomers_but_not_those_who_wait_in_it(monkeypatch):
    monkeypatch.setattr(app, "MAX_WAITING", 2)
    requests = [("1", "a"), ("2", "b"), ("late", "c"), ("2", "d"), ("", "e")]
    answers, passes = answer_all(Worker(), requests)
    assert answers == ["A", None, HTTPException, "D", HTTPException]
    assert passes == ["a", "d"]


def test_requests_that_one_pass_can_answer_leave_the_queue_together(monkeypatch):
    monkeypatch.setattr(app, "MAX_BATCH", 3)
    requests = [(str(k), "a", True) for k in range(5)]
    answers, passes = answer_all(Worker(), [*requests, ("x", "b"), ("y", "c", True)])
    assert answers == ["A"] * 5 + ["B", "C"]
    assert passes == ["aaa", "aac", "b"]


def test_a_request_that_fails_takes_no_other_with_it():
    requests = [("1", "a", True), ("2", "-", True), ("3", "c", True), ("4", "-"), ("5", "e")]
    answers, passes = answer_all(Worker(), requests)
    assert answers == ["A", ValueError, "C", ValueError, "E"]
    assert passes == ["a-c", "a", "-", "c", "-", "e"]


def test_a_request_that_was_given_up_is_not_worked_for():
    queue = Worker()
    passes = []

    def answer(arguments):
        passes.append(arguments)
        return arguments

    async def ask():
        with busy(queue):
            task = asyncio.create_task(queue.run(answer, "a"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return await queue.run(answer, "b")

    assert asyncio.run(ask()) == "b"
    assert passes == [["b"]]


def test_a_closed_worker_refuses_those_who_wait_and_those_who_are_worked_for():
    queue = Worker()
    started = threading.Event()
    is_over = threading.Event()

    def work(_):
        started.set()
        is_over.wait(60)
        return [None]

    async def ask():
        tasks = [asyncio.create_task(queue.run(work, letter)) for letter in "ab"]
        await asyncio.sleep(0)
        started.wait(60)
        queue.close()
        answers = await asyncio.gather(*tasks, queue.run(work, "c"), return_exceptions=True)
        is_over.set()
        return answers

    refusals = [(error.status_code, error.detail) for error in asyncio.run(ask())]
    assert refusals == [(503, "the server is stopping")] * 3


@pytest.fixture
def images():
    pixels = np.random.default_rng(1).integers(0, 256, (4, 1, *SIZE), dtype=np.uint8)
    return torch.from_numpy(pixels)


def make_body(image, **changes):
    return {"image": base64.b64encode(image.numpy().tobytes()).decode()} | changes


def post_all(client, queue, requests):
    """Responses to (stream, body) by as many threads; all wait before the first is answered."""
    responses = [None] * len(requests)
    enqueue = queue._enqueue
    waiting = threading.Semaphore(0)

    def post(k, stream, body):
        responses[k] = client.post("/api/infer", json=body, headers={"x-stream": stream})

    def enqueue_and_tell(*job):
        enqueue(*job)
        waiting.release()

    queue._enqueue = enqueue_and_tell
    with busy(queue):
        threads = []
        for k, request in enumerate(requests):
            threads.append(threading.Thread(target=post, args=(k, *request)))
            threads[-1].start()
            waiting.acquire(timeout=60)
    for thread in threads:
        thread.join(60)
    return responses


def test_inferences_of_several_pages_are_one_pass_and_each_gets_its_own(
    session, plain, images, monkeypatch
):
    all_classes = ([], [2], [0, 1], [])
    expected = []
    bodies = []
    for image, classes in zip(images, all_classes, strict=True):
        expected.append(run("infer", session, image=image, classes=classes))
        bodies.append(make_body(image, classes=classes))
    bodies.append(make_body(images[0], model=1))
    bodies.append(make_body(images[0], uniform=True))
    batch_sizes = []
    encode = Session.encode

    def count_and_encode(self, images, **options):
        batch_sizes.append(len(images))
        return encode(self, images, **options)

    monkeypatch.setattr(Session, "encode", count_and_encode)
    queue = Worker()
    requests = list(zip("abcdef", bodies, strict=True))
    responses = post_all(client_of(session, plain, worker=queue), queue, requests)
    answers = [response.json() for response in responses]
    assert batch_sizes == [4, 1, 1]  # one model with and without routing, and the other model
    for answer, inference in zip(answers, expected, strict=False):
        assert answer["activation"] == pytest.approx(inference.activation.tolist(), abs=1e-4)
        np.testing.assert_allclose(answer["pose"], inference.pose, atol=1e-4)
        assert answer["shown"] == list(inference.shown)
        pixels = b"".join(base64.b64decode(drawing) for drawing in answer["drawn"])
        drawings = np.frombuffer(pixels, np.uint8) / 255
        np.testing.assert_allclose(drawings, inference.drawn.flatten(), atol=0.005)
    assert answers[4]["pose"] is None
    assert answers[5]["activation"] != answers[0]["activation"]


def test_a_request_that_made_room_gets_no_error(session, images):
    queue = Worker()
    requests = [
        ("mine", make_body(images[0])),
        ("yours", make_body(images[0], classes=[9])),
        ("mine", make_body(images[1])),
    ]
    first, wrong, newest = post_all(client_of(session, worker=queue), queue, requests)
    assert (first.status_code, first.json()) == (200, {"superseded": True})
    assert (wrong.status_code, newest.status_code) == (400, 200)
    activation = run("infer", session, image=images[1]).activation.tolist()
    assert newest.json()["activation"] == pytest.approx(activation, abs=1e-4)


def test_a_busy_server_says_so(session, images, monkeypatch):
    monkeypatch.setattr(app, "MAX_FILES", 0)
    client = client_of(session)
    monkeypatch.setattr(app, "MAX_WAITING", 0)
    response = client.post("/api/infer", json=make_body(images[0]))
    assert response.status_code == 503
    assert response.json() == {"error": "the server is busy; try again in a moment"}
    response = client.post("/api/picture", content=b"")
    assert response.status_code == 503
    assert "image files" in response.json()["error"]


def test_a_streams_name_is_short(session):
    response = client_of(session).post("/api/infer", json={}, headers={"x-stream": "a" * 65})
    assert response.status_code == 400
    assert "at most 64" in response.json()["error"]
