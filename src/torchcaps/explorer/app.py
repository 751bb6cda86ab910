"""The page as an application of starlette. It trusts no request, and no request names a file.

Every body has a largest size, every number is checked, all work is done by one thread, and what a person sees of an
error is one sentence.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchcaps.errors import TorchcapsError
from torchcaps.explorer.access import LOCAL, Access
from torchcaps.explorer.desk import Desk, Superseded
from torchcaps.explorer.questions import ALONE, TOGETHER, largest, picture
from torchcaps.explorer.session import Session
from torchcaps.explorer.wire import Refused, parsed

MOST_FILE = 8_000_000  # bytes of an image file
MOST_FILES = 8  # in memory
MOST_NAME = 64  # characters of a stream's name
BODY_SECONDS = 10.0  # in which the body of a request must have come
STATIC = {
    "style.css": "text/css", "icon.svg": "image/svg+xml", "main.js": "text/javascript", "api.js": "text/javascript",
    "state.js": "text/javascript", "input.js": "text/javascript", "pictures.js": "text/javascript",
    "plots.js": "text/javascript", "pose.js": "text/javascript", "routing.js": "text/javascript",
    "overlap.js": "text/javascript", "transform.js": "text/javascript", "compare.js": "text/javascript",
}  # fmt: skip
HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(sessions: Sequence[Session], access: Access = LOCAL, desk: Desk | None = None) -> ASGIApp:
    """The application.

    Args:
        sessions: the models to look into; all take pictures of the first one's size.
        access: who may ask.
        desk: who works for it, for the caller to close; by default one of its own.
    """
    asked = Answers(list(sessions), desk or Desk())
    page = files("torchcaps.explorer").joinpath("static")
    texts = {name: page.joinpath(name).read_bytes() for name in ("index.html", *STATIC)}

    async def index(_: Request) -> Response:
        return Response(texts["index.html"], media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise Refused(404, "there is no such file")
        return Response(texts[name], media_type=STATIC[name])

    routes = [
        Route("/", index), Route("/static/{name}", told(static)), Route("/api/about", told(asked.about)),
        Route("/api/picture", told(asked.file), methods=["POST"]),
        Route("/api/{name}", told(asked.question), methods=["POST"]),
    ]  # fmt: skip
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: unknown}), access)


class Answers:
    """What is answered under `/api/`.

    Args:
        sessions: the models.
        desk: who works for them.
    """

    def __init__(self, sessions: list[Session], desk: Desk) -> None:
        self.sessions, self.desk = sessions, desk
        self.most = largest(sessions)
        self.files = 0
        self.looks = {name: partial(function, sessions) for name, function in TOGETHER.items()}

    async def about(self, _: Request) -> Response:
        """The models."""
        return answer({"models": [session.describe() for session in self.sessions]})

    async def question(self, request: Request) -> Response:
        """A question about a picture or a pose. An older one of its stream makes room for it."""
        name, stream = request.path_params["name"], request.headers.get("x-stream", "")
        if name not in ALONE and name not in TOGETHER:
            raise Refused(404, "there is no such question")
        if len(stream) > MOST_NAME:
            raise Refused(400, f"x-stream: expected at most {MOST_NAME} characters, got {len(stream)}")
        body = parsed(await read(request, self.most))
        together = name in TOGETHER
        function = self.looks[name] if together else partial(ALONE[name], self.sessions)
        try:
            return answer(await self.desk.work(function, body, stream, together=together))
        except Superseded:
            return answer({"superseded": True})

    async def file(self, request: Request) -> Response:
        """An image file as pixels for the page."""
        if self.files >= MOST_FILES:
            raise Refused(503, "the server is busy with other image files; try again in a moment")
        self.files += 1
        try:
            return answer(await self.desk.work(partial(picture, self.sessions), await read(request, MOST_FILE)))
        finally:
            self.files -= 1


async def unknown(_: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    return refusal(Refused(status, "there is no such page" if status == 404 else "this address is not asked this way"))


def told(endpoint: Endpoint) -> Endpoint:
    """The same endpoint, whose errors are sentences."""

    async def told_endpoint(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:
            return refusal(error)

    return told_endpoint


class Guard:
    """Before the application: who asks. After it: the headers.

    Args:
        app: what is guarded.
        access: who may ask.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self.access.check(scope)
        except Refused as error:
            await refusal(error)(scope, receive, with_headers)
        else:
            await self.app(scope, receive, with_headers)


async def read(request: Request, most: int) -> bytes:
    """The body of a request, if it is not too long and does not take too long."""
    declared = request.headers.get("content-length", "0")
    if not declared.isascii() or not declared.isdigit() or int(declared[:20]) > most:
        raise Refused(413, f"the body is larger than {most:,} bytes")
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused(413, f"the body is larger than {most:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the body took longer than {BODY_SECONDS:g} seconds") from None
    return b"".join(parts)


def answer(value: dict[str, Any]) -> Response:
    """One JSON document."""
    return Response(json.dumps(value, allow_nan=False, separators=(",", ":")), media_type="application/json")


def refusal(error: Exception) -> Response:
    """One sentence about what went wrong; a mistake of ours goes to the terminal."""
    if isinstance(error, Refused):
        status, sentence = error.status, str(error)
    elif isinstance(error, ValueError | TorchcapsError):
        status, sentence = 400, " ".join(str(error).split())
    else:
        traceback.print_exception(error, file=sys.stderr)
        status, sentence = 500, "the server failed; its terminal says why"
    return Response(json.dumps({"error": sentence}), status_code=status, media_type="application/json")
