"""The page's server: starlette around a few sessions. It trusts no request, and no request names a file.

Every body has a largest size, every number is checked, all work runs one request at a time in one thread, and what a
person sees of an error is one sentence.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import math
import secrets
import socket
import sys
import threading
import traceback
import webbrowser
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from torchcaps.errors import RunError, TorchcapsError
from torchcaps.explorer.session import MOST_DECODED, MOST_SWEPT, Look, Session, laid_over
from torchcaps.explorer.transform import LIMITS, move
from torchcaps.explorer.wire import (
    Body,
    Refused,
    integer,
    labels,
    motion,
    number,
    numbers,
    parsed,
    pixels,
    plain,
    poses,
    routing,
    text_of,
)

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise ImportError(
        f"explore needs starlette and uvicorn ({error}); install them with: pip install 'torchcaps[explorer]'"
    ) from error

MOST_FILE = 8_000_000  # bytes of an image file
MOST_TEXT = 4096  # bytes of a JSON body beside its pictures and poses
MOST_WAITING = 16  # requests for the one worker
MOST_EXAMPLES = 60  # of one answer
BODY_SECONDS = HEAD_SECONDS = 10.0  # in which the body of a request, and before it its head, must have come
PORTS = 20  # tried, one after another
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

T = TypeVar("T")


class Access(NamedTuple):
    """Who may ask.

    Attributes:
        hosts: names that a request may call this server by, without port; IP addresses are names too.
        any_address: whether every IP address is such a name: the server listens on more than it knows by name.
        token: what every request must bring; empty for a server that only this machine can reach.
    """

    hosts: frozenset[str]
    any_address: bool = False
    token: str = ""


LOCAL = Access(frozenset({"127.0.0.1", "localhost", "::1"}))


def access_for(host: str) -> Access:
    """Only this machine for a loopback address; anything else needs a token, which is made here."""
    if _is_loopback(host):
        return LOCAL._replace(hosts=LOCAL.hosts | {host.lower()})
    names = LOCAL.hosts | {host.lower(), socket.gethostname().lower()}
    return Access(names, any_address=True, token=secrets.token_urlsafe(16))


def make_app(sessions: Sequence[Session], access: Access = LOCAL) -> ASGIApp:
    """The application.

    Args:
        sessions: the models to look into; all take pictures of the first one's size.
        access: who may ask.
    """
    desk = Desk(sessions)
    page = files("torchcaps.explorer").joinpath("static")
    texts = {name: page.joinpath(name).read_bytes() for name in ("index.html", *STATIC)}

    async def index(_: Request) -> Response:
        return Response(texts["index.html"], media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise Refused(404, "there is no such file")
        return Response(texts[name], media_type=STATIC[name])

    async def ask(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in QUESTIONS:
            raise Refused(404, "there is no such question")
        body = parsed(await read(request, desk.most_json))
        return answer(await desk.work(QUESTIONS[name], desk, body))

    async def picture(request: Request) -> Response:
        file = await read(request, MOST_FILE)
        return answer(await desk.work(desk.picture, file))

    async def about(_: Request) -> Response:
        return answer({"models": [session.describe() for session in desk.sessions]})

    routes = [
        Route("/", index), Route("/static/{name}", told(static)), Route("/api/about", told(about)),
        Route("/api/picture", told(picture), methods=["POST"]), Route("/api/{name}", told(ask), methods=["POST"]),
    ]  # fmt: skip
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: unknown}), access)


async def unknown(_: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    return refusal(Refused(status, "there is no such page" if status == 404 else "this address is not asked this way"))


def told(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
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
    """Before the application: who asks, by what name, from which page. After it: the headers.

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
            self.check(scope)
        except Refused as error:
            await refusal(error)(scope, receive, with_headers)
        else:
            await self.app(scope, receive, with_headers)

    def check(self, scope: Scope) -> None:
        """Refuse what comes by another name, from another page, or without the token."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._known(_without_port(host)):
            raise Refused(403, f"this server is not called {host[:80]!r}")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            raise Refused(403, "requests from other pages are not answered")
        path = scope["path"]
        if path.startswith("/api/") and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "requests from other pages are not answered")
        if self.access.token and not path.startswith("/static/"):
            given = headers.get("x-token") or _query_token(scope)
            if not secrets.compare_digest(given.encode(), self.access.token.encode()):
                raise Refused(403, "the token is missing or wrong; open the address that torchcaps explore printed")

    def _known(self, name: str) -> bool:
        if name in self.access.hosts:
            return True
        return self.access.any_address and _address(name) is not None


class Desk:
    """The sessions, and the one thread that works for them.

    Args:
        sessions: at least one.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = list(sessions)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="explorer")
        self.waiting = 0
        largest = max(session.pose_dim for session in self.sessions)
        pictures = 2 * (4 * (math.prod(self.sessions[0].shape) + 3) // 3)
        self.most_json = MOST_TEXT + pictures + 26 * MOST_DECODED * largest

    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run in the thread, one after another; refuse when too many wait."""
        if self.waiting >= MOST_WAITING:
            raise Refused(503, "the server is busy; try again in a moment")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)
        finally:
            self.waiting -= 1

    def session(self, body: Body) -> Session:
        """The model that a request is about."""
        return self.sessions[integer(body, "model", 0, len(self.sessions) - 1, 0)]

    def image(self, body: Body, session: Session, name: str = "image") -> Tensor:
        """A picture of a request, as the session's model takes it."""
        return session.fitted(pixels(body, name, self.sessions[0].shape))

    def picture(self, file: bytes) -> dict[str, Any]:
        """An image file as pixels for the page."""
        return {"image": text_of(self.sessions[0].picture(file))}


def examples(desk: Desk, body: Body) -> dict[str, Any]:
    """Some of the first model's examples: by class, or one after another; or those named."""
    session = desk.sessions[0]
    if "index" in body:
        chosen = [integer(body, "index", 0, 2**31)]
    else:
        count, start = integer(body, "count", 1, MOST_EXAMPLES, 20), integer(body, "start", 0, 2**31, 0)
        chosen = session.labelled(integer(body, "label", 0, 2**31))[start : start + count].tolist()
    found = [(index, *session.example(index)) for index in chosen]
    return {"examples": [{"index": n, "labels": labels, "image": text_of(image)} for n, image, labels in found]}


def look(desk: Desk, body: Body) -> dict[str, Any]:
    """Activations, poses and reconstructions of a picture, turned and moved first where that is asked for."""
    session = desk.session(body)
    image = desk.image(body, session)
    if "motion" in body:
        image = move(image, motion(body))
    found = session.look(image, labels(body, "classes"), routing(body))
    return looked(found) | {"image": text_of(image)}


def decode(desk: Desk, body: Body) -> dict[str, Any]:
    """What the decoder draws of poses of one class."""
    session = desk.session(body)
    drawn = session.decode(poses(body, session.pose_dim), integer(body, "label", 0, len(session.classes) - 1))
    return {"drawn": [text_of(image) for image in drawn]}


def steps(desk: Desk, body: Body) -> dict[str, Any]:
    """Routing step by step."""
    session = desk.session(body)
    label = integer(body, "label", 0, len(session.classes) - 1)
    found = session.routing(desk.image(body, session), label, routing(body))
    shown = [
        {name: value if isinstance(value, float) else plain(value) for name, value in step._asdict().items()}
        for step in found.steps
    ]
    field = None if found.field is None else found.field._asdict()
    return {"layer": found.layer, "children": found.children, "steps": shown, "field": field}


def sweep(desk: Desk, body: Body) -> dict[str, Any]:
    """Activations and pose while the picture is turned, resized or moved."""
    session = desk.session(body)
    values = numbers(body.get("values"), "values", MOST_SWEPT, max(high for _, high in LIMITS.values()))
    label = integer(body, "label", 0, len(session.classes) - 1)
    found = session.sweep(desk.image(body, session), motion(body), values, label, routing(body))
    pose = None if found.pose is None else plain(found.pose)
    return {"values": plain(found.values), "activation": plain(found.activation), "pose": pose}


def overlap(desk: Desk, body: Body) -> dict[str, Any]:
    """Two pictures as one, and what is drawn of two capsules."""
    session = desk.session(body)
    first, second = desk.image(body, session), desk.image(body, session, "second")
    limit = float(max(session.shape[1:]))
    image = laid_over(first, second, number(body, "right", -limit, limit), number(body, "down", -limit, limit))
    found = session.look(image, labels(body, "classes"), routing(body), count=2)
    return looked(found) | {"image": text_of(image)}


QUESTIONS: dict[str, Callable[[Desk, Body], dict[str, Any]]] = {
    "examples": examples, "look": look, "decode": decode, "routing": steps, "sweep": sweep, "overlap": overlap,
}  # fmt: skip


def looked(found: Look) -> dict[str, Any]:
    """A look, ready for JSON."""
    return {
        "activation": plain(found.activation),
        "pose": None if found.pose is None else plain(found.pose),
        "drawn": None if found.reconstructions is None else [text_of(image) for image in found.reconstructions],
        "shown": found.shown,
    }


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


def bound(host: str, port: int) -> socket.socket:
    """A listening socket on this port, or the next free one.

    Raises:
        RunError: for an address that is not this machine's, or no free port among the next ones.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise RunError(f"--host {host}: is no address ({error.strerror})") from error
    for free in range(port, min(port + (PORTS if port else 1), 65536)):
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], free))
            listening.listen(64)
            return listening
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise RunError(f"{host}:{free}: cannot be listened on ({error.strerror})") from error
    raise RunError(f"--port {port}: it and the {PORTS - 1} after it are in use; name another")


def settings(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn serves it: few connections, none of which is held open for nothing."""
    return uvicorn.Config(
        app, http=_Patient, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none",
        lifespan="off", limit_concurrency=64, timeout_keep_alive=5, timeout_graceful_shutdown=2,
    )  # fmt: skip


def serve(
    sessions: Sequence[Session], *, host: str = "127.0.0.1", port: int = 8700, open_page: bool = True,
    say: Callable[[str], object] = print,
) -> None:  # fmt: skip
    """Serve the page until Ctrl-C.

    Args:
        sessions: the models to look into.
        host: the address to listen on; any but this machine's own needs a token, which the printed address has.
        port: the first to try; 0 takes any.
        open_page: open it in the browser.
        say: called with the address, and with what is to be said before it.

    Raises:
        RunError: where there is no such address, or no free port.
    """
    access = access_for(host)
    with bound(host, port) as listening:
        taken = listening.getsockname()[1]
        if port not in (0, taken):
            say(f"port {port} is in use; taking {taken}")
        url = page_url(host, taken, access.token)
        config = settings(make_app(sessions, access))

        def ready() -> None:
            say(url)
            if open_page:  # a thread, as some browsers return only when they are closed
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

        _Server(config, ready).run(sockets=[listening])


class _Patient(H11Protocol):
    """Closes a connection whose client begins a request and does not end its head."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """Calls `ready` when requests are answered and Ctrl-C stops it in good order."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()


def page_url(host: str, port: int, token: str = "") -> str:
    """The address to open. All addresses at once are opened by that of this machine."""
    name = "127.0.0.1" if host in ("", "0.0.0.0") else "::1" if host == "::" else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _without_port(host: str) -> str:
    """The name in a Host header: `[::1]:80` is `::1`."""
    host = host.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and ":" in host else host


def _query_token(scope: Scope) -> str:
    pairs = (pair.partition("=") for pair in scope["query_string"].decode("latin-1").split("&"))
    return next((value for name, _, value in pairs if name == "token"), "")
