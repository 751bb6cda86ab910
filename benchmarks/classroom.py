"""A class before the page of `torchcaps explore`: 30 pages draw, a stroke every 0.8 s.

Measured is how soon each stroke is answered: once each page begins by chance, and once all draw in
the same moment. The server is a process of its own. The pages ask as the real one does (`latest` in
api.js): the newest stroke overtakes one that waits for more than 250 ms, and what is refused is
tried again.
"""

import asyncio
import base64
import json
import random
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.explorer import served
from benchmarks.report import Row, finish, make_parser, parse, positive, run

CLIENTS, STROKE_INTERVAL = 30, 0.8  # pages, seconds between the strokes of one
OVERTAKE, FIRST_PAUSE, LONGEST_PAUSE = 0.25, 0.25, 4.0  # seconds, as in api.js
PATIENCE = 60.0  # seconds for the last strokes


class Attendance(NamedTuple):
    """What a class got.

    Attributes:
        seconds: of each stroke, until it or a newer one of its page was answered.
        unanswered: strokes that nothing came for, though their pages tried.
        refused: requests that were told to come back.
        superseded: requests whose place a newer stroke took.
        wrong: answers that were neither, at most a few.
    """

    seconds: list[float]
    unanswered: int
    refused: int
    superseded: int
    wrong: list[str]

    def summary(self) -> dict[str, Any]:
        """The figures as JSON can hold them, times in milliseconds."""
        milliseconds = {
            "median_ms": median(self.seconds),
            "p95_ms": quantiles(self.seconds, n=20)[-1],
            "longest_ms": max(self.seconds),
        }
        return {
            "strokes": len(self.seconds) + self.unanswered,
            "unanswered": self.unanswered,
            "refused": self.refused,
            "superseded": self.superseded,
            **{name: round(1000 * duration) for name, duration in milliseconds.items()},
        }


async def ask(port: int, body: bytes, stream: str) -> tuple[int, bytes]:
    """One request, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request_head = f"POST /api/infer HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nx-stream: {stream}\r\n"
    try:
        writer.write(f"{request_head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    answer_head, _, answer_body = answer.partition(b"\r\n\r\n")
    return int(answer_head.split()[1]), answer_body


class Page:
    """One page, with its strokes and what became of them.

    Args:
        port: of the server.
        name: of its stream.
        size: bytes of a picture.
    """

    def __init__(self, port: int, name: str, size: int) -> None:
        self.port, self.name, self.draw, self.size = port, name, random.Random(name), size
        self.pending: list[float] = []  # strokes that nothing came for yet
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.next = self.sent = self.tries = self.refused = self.superseded = 0
        self.earliest, self.requests = 0.0, set[asyncio.Task[None]]()

    async def attend(self, stroke: float, end: float) -> None:
        """Draw from then until then, and wait until the last stroke is answered."""
        while stroke < end:
            await self._until(stroke)
            self.pending.append(time.monotonic())
            self.next = len(self.pending) + len(self.seconds)
            stroke += STROKE_INTERVAL
        await self._until(end + PATIENCE, lambda: not self.pending)

    async def _until(self, deadline: float, is_done: Any = lambda: False) -> None:
        while time.monotonic() < deadline and not is_done():
            if self.next and time.monotonic() >= self.earliest:
                stroke, self.next, self.sent = self.next, 0, self.next
                self.earliest = time.monotonic() + OVERTAKE
                task = asyncio.create_task(self._ask(stroke))
                self.requests.add(task)
                task.add_done_callback(self.requests.discard)
            await asyncio.sleep(0.01)

    async def _ask(self, stroke: int) -> None:
        picture = base64.b64encode(self.draw.randbytes(self.size)).decode()
        try:
            status, answer = await ask(
                self.port, json.dumps({"image": picture}).encode(), self.name
            )
        except (OSError, IndexError, ValueError) as error:
            self.wrong.append(repr(error))
            return
        if status == 503:
            self.refused += 1
            if stroke == self.sent:
                self.next = self.next or stroke
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self.tries) * (
                    0.5 + self.draw.random() / 2
                )
                self.earliest, self.tries = time.monotonic() + pause, self.tries + 1
        elif status != 200:
            self.wrong.append(f"{status}: {answer[:200]!r}")
        elif b"superseded" in answer:
            self.superseded += 1
        else:
            self.earliest, self.tries = 0.0, 0
            while len(self.seconds) < stroke:
                self.seconds.append(time.monotonic() - self.pending.pop(0))


def attend(
    port: int, seconds: float, clients: int = CLIENTS, size: int = 784, *, in_step: bool = False
) -> Attendance:
    """What a class gets of the server on this port.

    Args:
        port: of this machine.
        seconds: that it draws for.
        clients: pages.
        size: bytes of a picture.
        in_step: whether all draw their strokes in the same moment, which is the hardest; else each begins by chance.
    """
    pages = [Page(port, f"page-{k}", size) for k in range(clients)]

    async def all_attend() -> None:
        start = time.monotonic()
        first = [start + STROKE_INTERVAL * (0 if in_step else page.draw.random()) for page in pages]
        await asyncio.gather(
            *(page.attend(one, start + seconds) for page, one in zip(pages, first, strict=True))
        )

    asyncio.run(all_attend())
    return Attendance(
        [one for page in pages for one in page.seconds],
        sum(len(page.pending) for page in pages),
        sum(page.refused for page in pages),
        sum(page.superseded for page in pages),
        [one for page in pages for one in page.wrong][:5],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "classroom", threads=1)
    parser.add_argument("run", nargs="*", help="by default an untrained network of the 2017 paper")
    parser.add_argument("--clients", type=positive, default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=60)
    options = parse(parser, arguments)
    rows: list[Row] = []
    for in_step in (False, True):
        with served(options.run, options.threads) as address:
            port = int(address.rstrip("/").rpartition(":")[2])
            attendance = attend(port, options.seconds, options.clients, in_step=in_step)
        rows.append({"in step": in_step, **attendance.summary(), "wrong": attendance.wrong})
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)
