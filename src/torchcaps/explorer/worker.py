"""The one thread that computes for the server, and the short queue before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

MOST_WAITING = 64  # requests in the queue
MOST_TOGETHER = 8  # requests in one pass of a model


class Superseded(Exception):
    """A newer request of the same stream took this one's place in the queue."""


class Worker:
    """One thread and its queue, in which at most one request of a stream waits: the newest.

    Requests that one pass of a model can answer together leave the queue together.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explorer")
        self._lock = threading.Lock()
        self._waiting: dict[object, _Job] = {}  # by stream, in the order of their places
        self._running: list[_Job] = []
        self._closed = False

    async def run(
        self,
        function: Callable[[Any], Any],
        argument: object,
        stream: str = "",
        *,
        together: bool = False,
    ) -> Any:
        """What the function returns, run in the thread, for one argument; with `together` it is given the arguments of
        several requests, and returns a list of answers.

        Without a stream a request replaces no other. Raises Superseded if a newer request of the stream came while this
        one waited; HTTPException (503) if the queue is full, or the server stops.
        """
        job = _Job(function, argument, together, Future())
        self._enqueue(stream or object(), job)
        self._thread.submit(self._next)
        return await asyncio.wrap_future(job.future)

    def close(self) -> None:
        """Refuse all requests, those in the queue and under way too; what is under way ends by itself."""
        with self._lock:
            self._closed = True
            for job in (*self._waiting.values(), *self._running):
                _settle(job.future, HTTPException(503, "the server is stopping"))
            self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, stream: object, job: _Job) -> None:
        with self._lock:
            older = self._waiting.get(stream)
            if self._closed:
                raise HTTPException(503, "the server is stopping")
            if older is None and len(self._waiting) >= MOST_WAITING:
                raise HTTPException(503, "the server is busy; try again in a moment")
            self._waiting[stream] = job  # a dictionary keeps the place
            if older is not None:
                _settle(older.future, Superseded())

    def _next(self) -> None:
        """In the thread: answer the first of the queue; those that it was taken together with find less to do."""
        with self._lock:
            together = [stream for stream, job in self._waiting.items() if job.together]
            first = [*self._waiting][:1]
            jobs = [
                self._waiting.pop(k)
                for k in (together[:MOST_TOGETHER] if first == together[:1] else first)
            ]
            self._running = jobs = [job for job in jobs if not job.future.cancelled()]
        answers = _answers(jobs) if jobs else []
        with self._lock:
            self._running = []
            for job, answer in zip(jobs, answers, strict=True):
                _settle(job.future, answer)


class _Job(NamedTuple):
    function: Callable[[Any], Any]
    argument: object
    together: bool
    future: Future[Any]


def _answers(jobs: Sequence[_Job]) -> list[Any]:
    """An answer or an exception for each; where one of several fails, each is computed by itself."""
    first = jobs[0]
    try:
        if first.together:
            return list(first.function([job.argument for job in jobs]))
        return [first.function(first.argument)]
    except Exception as error:
        return [error] if len(jobs) == 1 else [answer for job in jobs for answer in _answers([job])]


def _settle(future: Future[Any], answer: object) -> None:
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
