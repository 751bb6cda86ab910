"""A server of Python's standard library that answers the page for models that it cannot carry.

It answers one request at a time, on this machine alone, and no request names a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast

from torchcaps.errors import ArgumentError, RunError, TorchcapsError, check_range, one_line
from torchcaps.explorer.answers import ANSWERS, ServedModel

HOST = "127.0.0.1"
PORTS = 20  # tried, one after another
MAX_BODY = 64_000_000  # bytes of a request
SECONDS = 10.0  # in which a request must come


class Handler(BaseHTTPRequestHandler):
    """Answers requests: the page, `look` and `draw`."""

    timeout = SECONDS
    server_version = "torchcaps"
    sys_version = ""

    def __init__(self, html: bytes, models: Sequence[ServedModel], *arguments: Any) -> None:
        self.html = html
        self.models = models
        super().__init__(*arguments)

    def handle(self) -> None:
        """Answer requests until the browser goes away."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """The page, and nothing else."""
        if self._is_own_page():
            self._send(200 if self.path == "/" else 404, self.html, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """An answer of a model as JSON; an error in one sentence."""
        if not self._is_own_page():
            return
        try:
            length = int(self.headers.get("content-length", -1))
            check_range("content-length", length, low=0, high=MAX_BODY)
            request = json.loads(self.rfile.read(length))
            name = self.path[1:]
            if not isinstance(request, dict) or name not in ANSWERS:
                raise ArgumentError("request", f"expected an object for {' or '.join(ANSWERS)}")
            index = request.pop("model", 0)
            check_range("model", index, low=0, high=len(self.models) - 1)
            answer = ANSWERS[name](self.models[index], **request)
            status = 200
        except (RecursionError, TorchcapsError, TypeError, ValueError) as error:
            answer = {"error": one_line(str(error))}
            status = 400
        self._send(status, json.dumps(answer).encode(), "application/json")

    def _is_own_page(self) -> bool:
        """Whether a request names this server, and comes from its own page; else it is refused."""
        port = cast(HTTPServer, self.server).server_port
        hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        origin = self.headers.get("origin")
        is_own_page = origin is None or origin.removeprefix("http://") in hosts
        if self.headers.get("host") in hosts and is_own_page:
            return True
        self._send(403, b"requests from other pages are not answered", "text/plain")
        return False

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-content-type-options", "nosniff")
        self.send_header("cache-control", "no-store")
        self.send_header("content-security-policy", "frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged."""


def bind(html: str, models: Sequence[ServedModel], port: int) -> HTTPServer:
    """A server that listens; `serve_forever` answers.

    Args:
        html: the page.
        models: that it asks for.
        port: the first to try; the first free one of 20 is taken. 0 takes any.

    Returns:
        The server.

    Raises:
        RunError: no free port.
    """
    handler = partial(Handler, html.encode(), models)
    for free in range(port, min(port + PORTS, 65536)):
        try:
            return HTTPServer((HOST, free), handler)
        except OSError as error:
            reason = error.strerror
    raise RunError(f"--port {port}: it and the {PORTS - 1} after it cannot be used ({reason})")
