"""Who may send requests: by which host name, from which page, with which token."""

import ipaddress
import re
import secrets
import socket
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Scope

_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]+)?")  # name or [IPv6 address], and a port


class Access(NamedTuple):
    """Who may send requests."""

    hosts: frozenset[str]  # names of this server in a Host header, without port; IP addresses are names too
    any_address: bool = False  # every IP address is such a name
    token: str = ""  # that every request must bring; empty for a server that only this machine can reach

    def check(self, scope: Scope) -> None:
        """Raise HTTPException (403) for another host name, another page, or without the token."""
        request = HTTPConnection(scope)
        host, path = request.headers.get("host", "").lower(), scope["path"]
        found = _HOST.fullmatch(host)
        name = "" if found is None else found[1] or found[2]
        if name not in self.hosts and not (self.any_address and _address(name)):
            raise HTTPException(403, f"this server is not called {host[:80]!r}")
        own = (f"http://{host}", f"https://{host}")
        site = request.headers.get("sec-fetch-site", "same-origin") if path.startswith("/api/") else "none"
        if request.headers.get("origin", own[0]).lower() not in own or site not in ("same-origin", "none"):
            raise HTTPException(403, "requests from other pages are not answered")
        if self.token and not path.startswith("/static/"):
            given = request.headers.get("x-token") or request.query_params.get("token", "")
            if not secrets.compare_digest(given.encode(errors="replace"), self.token.encode()):
                raise HTTPException(403, "the token is missing or wrong; open the address that was printed")


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
