"""`torchcaps.explore`: the page for a run, served by uvicorn on an address of this machine."""

import asyncio
import errno
import os
import socket
import threading
import warnings
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchcaps.errors import RunError
from torchcaps.explorer.session import Session, open_session
from torchcaps.models import weights_file
from torchcaps.words import unique_suffixes

try:
    import uvicorn
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from torchcaps.explorer.app import LOCAL_HOSTS, Worker, make_app, token_for
except ImportError as error:
    command = "pip install 'torchcaps[explorer]'"
    raise ImportError(
        f"explore needs starlette and uvicorn ({error}); install them with: {command}"
    ) from error

HEAD_SECONDS = 10.0  # in which the head of a request must have come
PORTS = 20  # tried, one after another
MAX_CONNECTIONS = 256  # a browser opens up to six


def bound(host: str, port: int) -> socket.socket:
    """A listening socket.

    Args:
        host: an address of this machine, or a name of it.
        port: the first to try; the first free one of `PORTS` is taken. 0 takes any.

    Raises:
        RunError: for a foreign address, or no free port.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise RunError(f"--host {host}: is no address ({error.strerror})") from error
    is_dual_stack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    for free in range(port, min(port + PORTS, 65536)):
        try:
            return socket.create_server(
                (str(address[0]), free),
                family=family,
                backlog=MAX_CONNECTIONS,
                dualstack_ipv6=is_dual_stack,
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = os.strerror(error.errno or 0)
                raise RunError(f"{host}:{free}: cannot be listened on ({reason})") from error
    raise RunError(f"--port {port}: it and the {PORTS - 1} after it are in use; name another")


def settings(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn serves it: few connections, none of which is held open for nothing."""
    return uvicorn.Config(
        app,
        http=_Patient,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )


def serve(
    sessions: Sequence[Session],
    *,
    host: str = "127.0.0.1",
    port: int = 8700,
    open_page: bool = True,
    log: Callable[[str], object] = print,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        sessions: the models.
        host: address to listen on; any but this machine's own needs a token, which the printed
            address has.
        port: the first to try; 0 takes any.
        open_page: open it in the browser.
        log: prints the address.

    Raises:
        RunError: where there is no such address, or no free port.
    """
    token = token_for(host)
    worker = Worker()
    with bound(host, port) as listening:
        bound_port = listening.getsockname()[1]
        if port not in (0, bound_port):
            log(f"port {port} is in use; taking {bound_port}")
        url = page_url(host, bound_port, token)
        app = make_app(sessions, token, worker, hosts=(*LOCAL_HOSTS, host))
        server = _Server(settings(app))
        server.worker = worker
        log(url)  # the socket listens already: who comes before the server runs is answered then
        if open_page:  # a thread, as some browsers return only when they are closed
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        try:
            server.run(sockets=[listening])
        finally:
            worker.close()


def explore(
    run: str | Path | None = None,
    other: str | Path | None = None,
    *,
    data: str | None = None,
    root: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8700,
    open_page: bool = True,
    device: str = "auto",
    log: Callable[[str], object] = print,
    warn: Callable[[str], object] = warnings.warn,
) -> None:
    """Serve the page that shows what a trained model's capsules encode, until Ctrl-C.

    Args:
        run: a run folder or a model file; by default a network that comes with the package.
        other: another one, to compare with on the same input.
        data: another data set than the run's own to choose test images from, by name or path.
        root: folder in which a named data set is looked for first.
        host: address to listen on; any but this machine's own needs the token that the printed
            address has.
        port: the first port to try.
        open_page: open the page in the browser.
        device: "auto", "cpu", "cuda", ...
        log: prints the address.
        warn: is told why there are no test images.

    Raises:
        ImportError: without starlette and uvicorn.
        RunError: for no run, no such address, or no free port.
        DataError: for `data` that cannot be had.
    """
    runs = [Path(run or weights_file())]
    if other is not None:
        runs.append(Path(other))
    names = unique_suffixes(runs) if run else [path.stem for path in runs]
    sessions = []
    for path, name in zip(runs, names, strict=True):
        session = open_session(path, data=data, root=root, device=device, name=name)
        if session.note:
            warn(session.note)
        sessions.append(session)
    serve(sessions, host=host, port=port, open_page=open_page, log=log)


class _Patient(H11Protocol):
    """Closes a connection whose client begins a request and does not end its head."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._timer.cancel()
        elif self._timer.cancelled():
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """Closes the worker when it stops, and waits for no client: an unread answer is no loss."""

    worker: Worker

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.close()
        await asyncio.sleep(0.05)  # refusals are sent
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the connections learn that they are lost
        await super().shutdown(sockets)


def page_url(host: str, port: int, token: str = "") -> str:
    """The address to open. All addresses at once are opened by that of this machine."""
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    authority = f"[{name}]" if ":" in name else name
    return f"http://{authority}:{port}/" + (f"?token={token}" if token else "")
