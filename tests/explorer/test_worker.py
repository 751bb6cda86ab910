"""The queue before the worker: who waits, who makes room, and who is refused. No test here depends on time."""

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
from starlette.testclient import TestClient

from torchcaps.explorer import app, worker
from torchcaps.explorer.server import make_app
from torchcaps.explorer.views import Infer
from torchcaps.explorer.worker import Superseded, Worker

from .conftest import SIZE

HOME = "http://127.0.0.1:8700"


@contextmanager
def busy(one):
    """A worker that has something to do until this ends."""
    started, held = threading.Event(), threading.Event()

    def work():
        started.set()
        held.wait(60)

    one._thread.submit(work)
    started.wait(60)
    try:
        yield
    finally:
        held.set()


def asked(one, requests):
    """What requests get that all wait before the first is answered: (stream, argument) or (stream, argument, True)."""
    seen = []

    def alone(argument):
        seen.append([argument])
        if argument == "bad":
            raise ValueError("bad")
        return argument.upper()

    def together(arguments):
        seen.append(list(arguments))
        if "bad" in arguments:
            raise ValueError("bad")
        return [argument.upper() for argument in arguments]

    async def ask():
        tasks = []
        with busy(one):
            for stream, argument, *multilabel in requests:
                function = together if multilabel else alone
                tasks.append(
                    asyncio.create_task(
                        one.run(function, argument, stream, together=bool(multilabel))
                    )
                )
                await asyncio.sleep(0)  # it lines up
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(ask()), seen


def kinds(answers):
    return [answer if isinstance(answer, str) else type(answer) for answer in answers]


def test_requests_without_a_stream_are_answered_in_their_order():
    answers, seen = asked(Worker(), [("", letter) for letter in "abcd"])
    assert answers == ["A", "B", "C", "D"]
    assert seen == [["a"], ["b"], ["c"], ["d"]]


def test_the_newest_of_a_stream_takes_the_place_of_the_older_one():
    answers, seen = asked(Worker(), [("mine", "a"), ("yours", "b"), ("mine", "c"), ("mine", "d")])
    assert kinds(answers) == [Superseded, "B", Superseded, "D"]
    assert seen == [["d"], ["b"]]


def test_a_full_queue_refuses_newcomers_but_not_those_who_wait_in_it():
    full = [(str(k), "a") for k in range(worker.MAX_WAITING)]
    answers, seen = asked(Worker(), [*full, ("late", "b"), ("7", "c"), ("", "d")])
    rest = ["A"] * (worker.MAX_WAITING - 8)
    assert kinds(answers) == ["A"] * 7 + [Superseded, *rest, HTTPException, "C", HTTPException]
    assert (answers[-1].status_code, answers[-1].detail) == (
        503,
        "the server is busy; try again in a moment",
    )
    assert seen[7] == ["c"]


def test_what_one_pass_can_answer_leaves_the_queue_together():
    requests = [(str(k), "a", True) for k in range(worker.MAX_TOGETHER + 2)]
    answers, seen = asked(Worker(), [*requests, ("x", "b"), ("y", "c", True)])
    assert answers == ["A"] * (worker.MAX_TOGETHER + 2) + ["B", "C"]
    assert seen == [["a"] * worker.MAX_TOGETHER, ["a", "a", "c"], ["b"]]


def test_a_request_that_fails_takes_no_other_with_it():
    answers, seen = asked(
        Worker(), [("1", "a", True), ("2", "bad", True), ("3", "c", True), ("4", "bad"), ("5", "e")]
    )
    assert kinds(answers) == ["A", ValueError, "C", ValueError, "E"]
    assert seen == [["a", "bad", "c"], ["a"], ["bad"], ["c"], ["bad"], ["e"]]


def test_a_request_that_was_given_up_is_not_worked_for():
    one, seen = Worker(), []

    async def ask():
        with busy(one):
            task = asyncio.create_task(one.run(seen.append, "a"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return await one.run(str.upper, "b")

    assert asyncio.run(ask()) == "B"
    assert seen == []


def test_a_closed_worker_refuses_those_who_wait_and_those_who_are_worked_for():
    one, started, held = Worker(), threading.Event(), threading.Event()

    def work(argument):
        started.set()
        held.wait(60)
        return argument

    async def ask():
        tasks = [asyncio.create_task(one.run(work, letter)) for letter in "ab"]
        await asyncio.sleep(0)
        started.wait(60)
        one.close()
        answers = await asyncio.gather(*tasks, one.run(work, "c"), return_exceptions=True)
        held.set()
        return answers

    found = [(answer.status_code, answer.detail) for answer in asyncio.run(ask())]
    assert found == [(503, "the server is stopping")] * 3


@pytest.fixture
def pictures():
    draw = np.random.default_rng(1)
    return [torch.from_numpy(draw.integers(0, 256, (1, *SIZE), dtype=np.uint8)) for _ in range(4)]


def body(image, **more):
    return {"image": base64.b64encode(image.numpy().tobytes()).decode()} | more


def posted(client, one, requests):
    """Answers to looks, each asked by a thread of its own, all of which wait before the first is answered."""
    answers = [None] * len(requests)

    def post(k, stream, content):
        answers[k] = client.post("/api/infer", json=content, headers={"x-stream": stream})

    threads = [
        threading.Thread(target=post, args=(k, *request)) for k, request in enumerate(requests)
    ]
    lined_up = one._enqueue
    queue = threading.Semaphore(0)
    one._enqueue = lambda *job: (lined_up(*job), queue.release())
    with busy(one):
        for thread in threads:
            thread.start()
            queue.acquire(timeout=60)
    for thread in threads:
        thread.join(60)
    return answers


def test_looks_of_several_pages_are_one_pass_and_each_gets_its_own(
    session, plain, pictures, monkeypatch
):
    wanted = [
        session.view("infer").run(image, classes)
        for image, classes in zip(pictures, ([], [2], [0, 1], []), strict=True)
    ]
    passes, run_batch = [], Infer.run_batch

    def counted(self, images, *rest, **options):
        passes.append(len(images))
        return run_batch(self, images, *rest, **options)

    monkeypatch.setattr(Infer, "run_batch", counted)
    one = Worker()
    requests = [
        ("a", body(pictures[0])),
        ("b", body(pictures[1], classes=[2])),
        ("c", body(pictures[2], classes=[0, 1])),
        ("d", body(pictures[3])),
        ("e", body(pictures[0], model=1)),
        ("f", body(pictures[0], uniform=True)),
    ]
    client = TestClient(make_app([session, plain], worker=one), base_url=HOME)
    answers = [answer.json() for answer in posted(client, one, requests)]
    assert passes == [4, 1, 1]  # one model with and without routing, and the other model
    for answer, look in zip(answers, wanted, strict=False):
        assert answer["activation"] == pytest.approx(look.activation.tolist(), abs=1e-4)
        assert np.allclose(answer["pose"], look.pose, atol=1e-4)
        assert answer["shown"] == list(look.shown)
        drawn = np.frombuffer(b"".join(map(base64.b64decode, answer["drawn"])), np.uint8)
        assert np.allclose(drawn / 255, look.reconstructions.flatten(), atol=0.005)
    assert answers[4]["pose"] is None
    assert answers[5]["activation"] != answers[0]["activation"]


def test_a_request_that_made_room_is_told_so_without_an_error(session, pictures):
    one = Worker()
    requests = [
        ("mine", body(pictures[0])),
        ("yours", {"image": "AAAA"}),
        ("mine", body(pictures[1])),
    ]
    client = TestClient(make_app([session], worker=one), base_url=HOME)
    first, wrong, newest = posted(client, one, requests)
    assert (first.status_code, first.json()) == (200, {"superseded": True})
    assert (wrong.status_code, newest.status_code) == (400, 200)
    assert newest.json()["activation"] == pytest.approx(
        session.view("infer").run(pictures[1]).activation.tolist(), abs=1e-4
    )


def test_a_busy_server_says_so(session, pictures, monkeypatch):
    one = Worker()
    monkeypatch.setattr(worker, "MAX_WAITING", 0)
    client = TestClient(make_app([session], worker=one), base_url=HOME)
    answer = client.post("/api/infer", json=body(pictures[0]), headers={"x-stream": "mine"})
    assert (answer.status_code, answer.json()) == (
        503,
        {"error": "the server is busy; try again in a moment"},
    )
    monkeypatch.setattr(app, "MAX_FILES", 0)
    answer = client.post("/api/picture", content=b"")
    assert (answer.status_code, "image files" in answer.json()["error"]) == (503, True)


def test_a_streams_name_is_short(session):
    client = TestClient(make_app([session]), base_url=HOME)
    answer = client.post("/api/infer", json={}, headers={"x-stream": "a" * 65})
    assert (answer.status_code, "at most 64" in answer.json()["error"]) == (400, True)
