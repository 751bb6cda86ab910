"""The one thread that computes for the server, and the short queue before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

MAX_WAITING = 64  # requests in the queue
MAX_BATCH = 8  # requests in one pass of a model


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
        function: Callable[[list[Any]], list[Any]],
        argument: object,
        stream: str = "",
        key: Hashable = None,
    ) -> Any:
        """The function's answer for one argument, computed in the thread.

        Args:
            function: takes a list of arguments and returns a list of answers.
            argument: of this request.
            stream: whose older request this one replaces in the queue; empty for none.
            key: requests with an equal one, other than None, leave the queue together.

        Returns:
            The answer; None if a newer request of the stream came while this one waited.

        Raises:
            HTTPException: (503) if the queue is full, or the server stops.
        """
        job = _Job(function, argument, key, Future())
        self._enqueue(stream or object(), job)
        return await asyncio.wrap_future(job.future)

    def close(self) -> None:
        """Refuse all requests, also those under way; what is under way ends by itself."""
        with self._lock:
            self._closed = True
            for job in self._running + list(self._waiting.values()):
                _settle(job.future, HTTPException(503, "the server is stopping"))
            self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, stream: object, job: _Job) -> None:
        with self._lock:
            older = self._waiting.get(stream)
            if self._closed:
                raise HTTPException(503, "the server is stopping")
            if older is None and len(self._waiting) >= MAX_WAITING:
                raise HTTPException(503, "the server is busy; try again in a moment")
            self._waiting[stream] = job  # a dictionary keeps the place
            if older is not None:
                _settle(older.future, None)
            self._thread.submit(self._answer_first)

    def _answer_first(self) -> None:
        """In the thread: answer the first of the queue, and those that go together with it."""
        jobs: list[_Job] = []
        with self._lock:
            for stream, job in list(self._waiting.items()):
                goes_along = jobs and job.key is not None and job.key == jobs[0].key
                if not jobs or (goes_along and len(jobs) < MAX_BATCH):
                    jobs.append(self._waiting.pop(stream))
            jobs = [job for job in jobs if not job.future.cancelled()]
            self._running = jobs
        answers = _answers(jobs)
        with self._lock:
            self._running = []
            for job, answer in zip(jobs, answers, strict=True):
                _settle(job.future, answer)


class _Job(NamedTuple):
    """What a request waits for."""

    function: Callable[[list[Any]], list[Any]]
    argument: object
    key: Hashable
    future: Future[Any]


def _answers(jobs: Sequence[_Job]) -> list[Any]:
    """An answer or an exception for each job.

    Where one of several fails, each is computed by itself.
    """
    if not jobs:
        return []
    try:
        return jobs[0].function([job.argument for job in jobs])
    except Exception as error:
        return [error] if len(jobs) == 1 else [answer for job in jobs for answer in _answers([job])]


def _settle(future: Future[Any], answer: object) -> None:
    """Give a future its answer, or its exception, unless it has one or was given up."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
