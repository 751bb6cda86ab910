"""The page as an application of starlette. It trusts no request, and no request names a file.

Every body has a largest size, every number is checked, one thread does all work, and an error is one sentence.
"""

import asyncio
import ipaddress
import re
import secrets
import socket
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchcaps.errors import TorchcapsError, one_line
from torchcaps.explorer.requests import BATCHED, SINGLE, encoded, largest, parsed
from torchcaps.explorer.session import Session
from torchcaps.explorer.worker import Superseded, Worker

MOST_FILE = 8_000_000  # bytes of an image file
MOST_FILES = 8  # in memory
MOST_NAME = 64  # characters of a stream's name
BODY_SECONDS = 10.0  # in which the body of a request must have come
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".js": "text/javascript",
}
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
MISSING = {404: "there is no such page", 405: "this address is not asked this way"}
_HOST = re.compile(
    r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]+)?"
)  # name or [IPv6 address], and a port


class Access(NamedTuple):
    """Who may send requests."""

    hosts: frozenset[
        str
    ]  # names of this server in a Host header, without port; IP addresses are names too
    any_address: bool = False  # every IP address is such a name
    token: str = (
        ""  # that every request must bring; empty for a server that only this machine can reach
    )

    def check(self, scope: Scope) -> None:
        """Raise HTTPException (403) for another host name, another page, or without the token."""
        request = HTTPConnection(scope)
        host, path = request.headers.get("host", "").lower(), scope["path"]
        found = _HOST.fullmatch(host)
        name = "" if found is None else found[1] or found[2]
        if name not in self.hosts and not (self.any_address and _address(name)):
            raise HTTPException(403, f"this server is not called {host[:80]!r}")
        own = (f"http://{host}", f"https://{host}")
        site = (
            request.headers.get("sec-fetch-site", "same-origin")
            if path.startswith("/api/")
            else "none"
        )
        if request.headers.get("origin", own[0]).lower() not in own or site not in (
            "same-origin",
            "none",
        ):
            raise HTTPException(403, "requests from other pages are not answered")
        if self.token and not path.startswith("/static/"):
            given = request.headers.get("x-token") or request.query_params.get("token", "")
            if not secrets.compare_digest(given.encode(errors="replace"), self.token.encode()):
                raise HTTPException(
                    403, "the token is missing or wrong; open the address that was printed"
                )


LOCAL = Access(frozenset({"127.0.0.1", "localhost", "::1"}))


def access_for(host: str) -> Access:
    """Access to a server that listens on `host`: this machine alone for a loopback address, else a new token."""
    host, address = host.lower(), _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return LOCAL._replace(hosts=LOCAL.hosts | {host})
    names = LOCAL.hosts | {host, socket.gethostname().lower()}
    return Access(names, any_address=True, token=secrets.token_urlsafe(16))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def make_app(
    sessions: Sequence[Session], access: Access = LOCAL, worker: Worker | None = None
) -> ASGIApp:
    """The application for these models, which all take pictures of the first one's size; the caller closes `worker`."""
    api = Api(list(sessions), worker or Worker())
    folder = files("torchcaps.explorer").joinpath("static")
    found = {
        file.name: (file.read_bytes(), TYPES["." + file.name.rpartition(".")[2]])
        for file in folder.iterdir()
    }
    found[""] = found.pop("index.html")

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "")
        if name not in found:
            raise HTTPException(404)
        return Response(found[name][0], media_type=found[name][1])

    routes = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/api/about", api.about),
        Route("/api/picture", api.picture, methods=["POST"]),
        Route("/api/{name}", api.answer, methods=["POST"]),
    ]
    # One handler cannot serve both: starlette raises what its handler of Exception has answered once more.
    others = Middleware(ExceptionMiddleware, handlers={Exception: refusal})
    return guarded(
        Starlette(routes=routes, middleware=[others], exception_handlers={HTTPException: refusal}),
        access,
    )


class Api:
    """What is answered under `/api/`."""

    def __init__(self, sessions: list[Session], worker: Worker) -> None:
        self.sessions, self.worker, self.most, self.files = sessions, worker, largest(sessions), 0
        self.functions = {
            name: partial(function, sessions) for name, function in {**SINGLE, **BATCHED}.items()
        }

    async def about(self, _: Request) -> Response:
        """The models."""
        return JSONResponse({"models": [session.describe() for session in self.sessions]})

    async def answer(self, request: Request) -> Response:
        """The answer about a picture or a pose. A request replaces an older one of its stream in the queue."""
        name, stream = request.path_params["name"], request.headers.get("x-stream", "")
        if name not in self.functions:
            raise HTTPException(404)
        if len(stream) > MOST_NAME:
            raise HTTPException(
                400, f"x-stream: expected at most {MOST_NAME} characters, got {len(stream)}"
            )
        body, together = parsed(await read(request, self.most)), name in BATCHED
        try:
            return JSONResponse(
                await self.worker.run(self.functions[name], body, stream, together=together)
            )
        except Superseded:
            return JSONResponse({"superseded": True})

    async def picture(self, request: Request) -> Response:
        """An image file as pixels for the page."""
        if self.files >= MOST_FILES:
            raise HTTPException(
                503, "the server is busy with other image files; try again in a moment"
            )
        self.files += 1
        try:
            image = await self.worker.run(self.sessions[0].picture, await read(request, MOST_FILE))
            return JSONResponse({"image": encoded(image)})
        finally:
            self.files -= 1


def guarded(app: ASGIApp, access: Access) -> ASGIApp:
    """The application, which sees a request when it is known who sent it, with headers on every answer."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            access.check(scope)
        except HTTPException as error:
            await (await refusal(Request(scope), error))(scope, receive, with_headers)
        else:
            await app(scope, receive, with_headers)

    return guard


async def read(request: Request, most: int) -> bytes:
    """The body of a request, if it is not too long and does not take too long."""
    declared, body = request.headers.get("content-length", "0"), bytearray()
    too_large = HTTPException(413, f"the body is larger than {most:,} bytes")
    if not declared.isascii() or not declared.isdigit() or int(declared[:20]) > most:
        raise too_large
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"the body took longer than {BODY_SECONDS:g} seconds") from None
    return bytes(body)


async def refusal(_: Request, error: Exception) -> Response:
    """One sentence about what went wrong. The traceback of an error of the server goes to its terminal alone."""
    status, sentence = 500, "the server failed; its terminal says why"
    if isinstance(error, HTTPException):
        status, sentence = error.status_code, MISSING.get(error.status_code, error.detail)
    elif isinstance(error, ClientDisconnect | ValueError | TorchcapsError):
        status, sentence = 400, one_line(str(error))
    else:
        traceback.print_exception(error, file=sys.stderr)
    return JSONResponse({"error": sentence}, status_code=status)
