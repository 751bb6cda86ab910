"""The page as an application of starlette. It trusts no request, and no request names a file.

Every body has a largest size and a time, every number is checked, and what is refused is told in
one sentence. One thread computes, and before it is a short queue. Pictures are base64 of their
bytes, row by row, the channels of a pixel together.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import ipaddress
import json
import math
import secrets
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from torch import Tensor

from torchcaps.data.pixels import fit_images
from torchcaps.errors import ArgumentError, TorchcapsError, check_range, one_line
from torchcaps.explorer.session import Motion, Session, read_picture
from torchcaps.explorer.views import VIEWS, open_views

# Values of requests that are numbers, by name, and how deep the lists of them are nested.
INTEGERS = {"model": 0, "label": 0, "index": 0, "count": 0, "start": 0, "classes": 1}
AMOUNTS = {"values": 1, "right": 0, "down": 0}
NUMBERS = INTEGERS | AMOUNTS | {"poses": 2, "activations": 1}
MAX_INTEGER = 2**31
MAX_AMOUNT = max(high for _, high in Motion.LIMITS.values())
MAX_POSE = 1e4  # of a number in a pose
PICTURES = ("image", "drawn")  # in an answer
MAX_FILE = 8_000_000  # bytes of an image file
MAX_FILES = 8  # in memory
MAX_TEXT = 4096  # bytes of a JSON body beside its pictures and poses
NUMBER = 26  # bytes of a number in JSON, at most
MAX_NAME = 64  # characters of a stream's name
BODY_SECONDS = 10.0  # in which the body of a request must have come
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
STATIC = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".js": "text/javascript",
}  # fixed here: a system may have others, which a browser refuses
REFUSED = (HTTPException, ClientDisconnect, ValueError, TorchcapsError)
HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def token_for(host: str) -> str:
    """The token of a server that listens on `host`: none for a loopback address, else a new one."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host.lower() == "localhost"
    return "" if is_loopback else secrets.token_urlsafe(16)


def make_app(
    sessions: Sequence[Session],
    token: str = "",
    worker: Worker | None = None,
    hosts: Sequence[str] = LOCAL_HOSTS,
) -> ASGIApp:
    """The application for these models, whose pictures have the first one's size.

    Args:
        sessions: the models.
        token: that every request must bring; without one, the server is asked by the names of
            `hosts` alone, so that no page from elsewhere can reach it.
        worker: computes; the caller closes it.
        hosts: names of this server in a Host header.
    """
    api = Api(sessions, worker or Worker())
    routes = [
        Route("/api/describe", JSONResponse({"models": api.models}), methods=["GET"]),
        Route("/api/picture", api.picture, methods=["POST"]),
        Route("/api/{name}", api.answer, methods=["POST"]),
    ]
    paths = list(STATIC.iterdir())  # the page and its files, and a script for each tab
    for view in VIEWS.values():
        if view.title:
            paths.append(Path(inspect.getfile(view.function)).with_name(f"{view.name}.js"))
    for path in paths:  # all are read once
        address = "/" if path.suffix == ".html" else f"/static/{path.name}"
        content = Response(path.read_bytes(), media_type=TYPES[path.suffix])
        routes.append(Route(address, content, methods=["GET"]))

    async def guard(request: HTTPRequest, answer: RequestResponseEndpoint) -> Response:
        if reason := _reason_to_refuse(request, token):
            response = await refuse(request, HTTPException(403, reason))
        else:
            response = await answer(request)
        response.headers.update(HEADERS)
        return response

    allowed_hosts = ["*"] if token else list(hosts)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts)],
        exception_handlers=dict.fromkeys(REFUSED, refuse),
    )
    return BaseHTTPMiddleware(app, guard)


def _reason_to_refuse(request: HTTPRequest, token: str) -> str:
    """Why a request is not answered: it is from another page, or without the token; or ""."""
    path = request.scope["path"]
    site = request.headers.get("sec-fetch-site", "none")
    if path.startswith("/api/") and site not in ("same-origin", "none"):
        return "requests from other pages are not answered"
    if path.startswith("/static/") or not token:
        return ""
    sent = request.headers.get("x-token") or request.query_params.get("token", "")
    if secrets.compare_digest(sent.encode(errors="replace"), token.encode()):
        return ""
    return "the token is missing or wrong; open the address that was printed"


class Api:
    """What is answered under `/api/`."""

    def __init__(self, sessions: Sequence[Session], worker: Worker) -> None:
        self.sessions = sessions
        self.worker = worker
        self.files = asyncio.Semaphore(MAX_FILES)
        self.models = []  # descriptions of them, and of the views that there are of each
        for session in sessions:
            views = {}
            for name, view in open_views(session).items():
                views[name] = {"title": view.title} | view.describe(session)
            self.models.append(session.describe() | {"views": views})

        # Two pictures as base64, and as many poses as are decoded at once.
        picture = 4 * (math.prod(sessions[0].shape) + 3) // 3
        pose = NUMBER * max(session.pose_dim + 1 for session in sessions)
        self.max_body = MAX_TEXT + 2 * picture + Session.MAX_DECODED * pose

    async def answer(self, http: HTTPRequest) -> Response:
        """A view's answer. A request replaces an older one of its stream in the queue."""
        name = http.path_params["name"]
        stream = http.headers.get("x-stream", "")
        if name not in VIEWS:
            raise HTTPException(404)
        view = VIEWS[name]
        check_range("characters of x-stream", len(stream), high=MAX_NAME)
        values = parse_object(await read_body(http, self.max_body))
        index = read_value("model", values.get("model", 0))
        check_range("model", index, low=0, high=len(self.sessions) - 1)
        session = self.sessions[index]
        arguments = read_arguments(values, view.function, session, self.sessions[0].shape)
        # One pass answers requests about a model with the same kind of couplings.
        key = (name, session, arguments.get("uniform", False)) if view.batch else None
        answer = await self.worker.run(partial(view.answer, session), arguments, stream, key)
        return JSONResponse({"superseded": True} if answer is None else as_json(answer))

    async def picture(self, http: HTTPRequest) -> Response:
        """An image file as pixels for the page."""
        if self.files.locked():
            raise HTTPException(503, "the server is busy with other image files; try again")
        async with self.files:
            file = await read_body(http, MAX_FILE)
            image = await self.worker.run(self._read_pictures, file)
        return JSONResponse({"image": as_base64(image)})

    def _read_pictures(self, files: Sequence[bytes]) -> list[Tensor]:
        return [read_picture(file, self.sessions[0].preprocess) for file in files]


async def read_body(request: HTTPRequest, limit: int) -> bytes:
    """The body of a request.

    Raises:
        HTTPException: (413) for more than `limit` bytes, (408) for a body that has not come in
            `BODY_SECONDS`.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise HTTPException(413, f"the body is larger than {limit:,} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body took longer than {BODY_SECONDS:g} seconds") from None
    return bytes(body)


async def refuse(_: HTTPRequest, error: Exception) -> Response:
    """One sentence about what is wrong with a request."""
    text = error.detail if isinstance(error, HTTPException) else str(error)
    status_code = getattr(error, "status_code", 400)
    return JSONResponse({"error": one_line(text)}, status_code)


def read_value(name: str, content: Any) -> Any:
    """What a request has for a value, checked.

    Args:
        name: of the value.
        content: a number, or lists of numbers; true or false; an object; or, of a value that no
            view of ours takes, anything.

    Raises:
        ArgumentError: for content that does not fit the name.
    """
    if name == "uniform" and not isinstance(content, bool):
        raise ArgumentError(name, "expected true or false")
    if name == "motion":
        try:
            return Motion(**content)
        except TypeError:
            names = ", ".join(Motion.LIMITS)
            raise ArgumentError(name, f"expected an object of numbers for {names}") from None
    num_axes = NUMBERS.get(name)
    if num_axes is None:
        return content
    is_whole = name in INTEGERS
    limit = MAX_INTEGER if is_whole else MAX_AMOUNT if name in AMOUNTS else MAX_POSE
    try:
        numbers = np.array(content)
    except ValueError:  # lists of different lengths
        numbers = np.array(None)
    is_numeric = numbers.size == 0 or numbers.dtype.kind in ("i" if is_whole else "if")
    if not is_numeric or numbers.ndim != num_axes or (np.abs(numbers.astype(float)) > limit).any():
        noun = "whole number" if is_whole else "number"
        nouns = f"a {noun}", f"a list of {noun}s", f"a list of equally long lists of {noun}s"
        raise ArgumentError(name, f"expected {nouns[num_axes]}, at most ±{limit:g}")
    return torch.tensor(numbers).float() if limit == MAX_POSE else numbers.tolist()


def read_arguments(
    values: Mapping[str, Any], function: Callable[..., Any], session: Session, shape: Any
) -> dict[str, Any]:
    """What a view takes of a request, by name.

    Args:
        values: of the request.
        function: of the view, whose parameters say what it takes.
        session: the model.
        shape: (channels, height, width) of the page's pictures.

    Raises:
        ArgumentError: for a value that does not fit, or is missing.
    """
    channels, height, width = shape
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "session" or (name not in values and parameter.default is not parameter.empty):
            continue
        content: Any = values.get(name)
        if name not in ("image", "second"):
            arguments[name] = read_value(name, content)
            continue
        try:
            pixels = np.frombuffer(base64.b64decode(content, validate=True), np.uint8)
            array = pixels.reshape(height, width, channels).transpose(2, 0, 1)
        except (TypeError, ValueError):
            size = channels * height * width
            raise ArgumentError(name, f"expected {size} bytes in base64") from None
        images = torch.from_numpy(array.copy()).unsqueeze(0)
        images = fit_images(images, session.preprocess.model_size, session.shape[0])
        [arguments[name]] = images
    return arguments


def parse_object(body: bytes) -> Mapping[str, Any]:
    """A JSON object without NaN or infinity. Raises ValueError for anything else."""

    def refuse(name: str) -> float:
        raise ValueError(name)

    try:
        values = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ValueError("expected a JSON object in UTF-8, with finite numbers")
    return values


def as_base64(image: Tensor) -> str:
    """A picture for an answer; floats in [0, 1] are rounded to bytes."""
    if image.dtype != torch.uint8:
        image = image.mul(255).round().clamp(0, 255).to(torch.uint8)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    return base64.b64encode(pixels.tobytes()).decode()


def as_json(content: Any, name: str = "") -> Any:
    """An answer ready for JSON, with numbers of five digits and pictures as base64.

    Raises ValueError where a number is NaN or infinite.
    """
    if isinstance(content, dict):
        return {key: as_json(inner, key) for key, inner in content.items()}
    if isinstance(content, list):
        return [as_json(inner, name) for inner in content]
    if not isinstance(content, Tensor):
        return content
    if not torch.isfinite(content).all():
        raise ValueError("this model gives values that are not finite; its training failed")
    if name in PICTURES:
        return as_base64(content) if content.dim() == 3 else list(map(as_base64, content))
    return np.round(content.cpu().double().numpy(), 5).tolist()


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
