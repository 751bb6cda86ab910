"""Who may ask a page's server: by what name it is called, from which page, with which token."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from torchcaps.explorer.wire import Refused


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
        if self.token and not path.startswith("/static/"):
            given = headers.get("x-token") or _query_token(scope)
            if not secrets.compare_digest(given.encode(), self.token.encode()):
                raise Refused(403, "the token is missing or wrong; open the address that torchcaps explore printed")

    def _known(self, name: str) -> bool:
        if name in self.hosts:
            return True
        return self.any_address and _address(name) is not None


LOCAL = Access(frozenset({"127.0.0.1", "localhost", "::1"}))


def access_for(host: str) -> Access:
    """Only this machine for a loopback address; anything else needs a token, which is made here."""
    if _is_loopback(host):
        return LOCAL._replace(hosts=LOCAL.hosts | {host.lower()})
    names = LOCAL.hosts | {host.lower(), socket.gethostname().lower()}
    return Access(names, any_address=True, token=secrets.token_urlsafe(16))


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _without_port(host: str) -> str:
    """The name in a Host header: `[::1]:80` is `::1`; what is no name and port stays as it is."""
    host = host.lower()
    name, colon, port = host.rpartition(":")
    name = name if colon and port.isdigit() else host
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name


def _query_token(scope: Scope) -> str:
    pairs = (pair.partition("=") for pair in scope["query_string"].decode("latin-1").split("&"))
    return next((value for name, _, value in pairs if name == "token"), "")
