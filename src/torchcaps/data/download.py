"""One file from the web, to disk: resumed where it broke off, never taken for whole when it is not."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torchcaps.errors import DataError

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 20

Progress = Callable[[str, int, int | None], None]
"""(file name, bytes so far, bytes in all or None where the server does not say)"""


class SourceError(Exception):
    """One source of a file failed; another may not."""


def download(url: str, part: Path, progress: Progress | None = None, *, timeout: float = TIMEOUT) -> bool:
    """Bring `url` to the file `part`, going on from what is already in it where the server can.

    Args:
        url: http or https.
        part: where the bytes go; kept when the transfer breaks, so that the next call resumes.
        progress: called after every chunk.
        timeout: in seconds, for connecting and for each read.

    Returns:
        Whether earlier bytes were kept, which the caller may want to doubt if the digest comes out wrong.

    Raises:
        SourceError: refused, unreachable, or broken off; what came stays in `part`.
        DataError: `part` cannot be written.
    """
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            start = _resumed_at(response, start)
            _copy(response, part, start, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing beyond what we have: whole, or not this file; the digest tells
            return True
        raise SourceError(f"{error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(str(getattr(error, "reason", error)) or type(error).__name__) from None
    return start > 0


def _resumed_at(response: http.client.HTTPResponse, asked: int) -> int:
    """Where the body begins: at `asked` when the server took the range, at 0 when it sends the whole file."""
    if response.status != 206:
        return 0
    said = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if said is None or int(said[1]) != asked:
        raise SourceError(f"asked for bytes from {asked}, got {response.headers.get('Content-Range')!r}")
    return asked


def _copy(response: http.client.HTTPResponse, part: Path, start: int, progress: Progress | None) -> None:
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    done = start
    with writing(part):
        file = part.open("r+b" if start else "wb", buffering=0)
    with file:
        file.seek(start)
        while chunk := response.read(CHUNK):
            with writing(part):
                file.write(chunk)
            done += len(chunk)
            if progress:
                progress(part.name.split(".part")[0], done, total)
    if total is not None and done < total:
        raise SourceError(f"broke off after {done:,} of {total:,} bytes")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into a DataError that names `path`: a full disk is no fault of the source."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from None
