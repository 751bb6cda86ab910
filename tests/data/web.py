"""A server on this machine that can break off, lie and refuse; and the toy files that it serves."""

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

CONTENT = {
    name: np.random.default_rng(i).bytes(size)
    for i, (name, size) in enumerate((("big", 3_000_000), ("small", 100)))
}
DIGESTS = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}


class Server(ThreadingHTTPServer):
    """Serves files.

    Attributes:
        files: bytes by path.
        cut: by path, how many bytes of the body to send before the connection ends.
        requests: the paths that were requested.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.cut = {}
        self.requests = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        data = server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: server.cut.pop(self.path, None)])


def names_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())
