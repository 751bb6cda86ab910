"""torchcaps explore."""

import os
from pathlib import Path
from typing import Annotated

import tyro

from torchcaps.cli.console import note, usage
from torchcaps.cli.flags import Device, Root, RunOrOurs, use_threads
from torchcaps.cli.signals import unwinding


def explore(
    run: RunOrOurs = None,
    other: Annotated[Path | None, tyro.conf.Positional] = None,
    /,
    data: str | None = None,
    root: Root = None,
    host: str = "127.0.0.1",
    port: int = 8700,
    open: bool = True,
    device: Device = "auto",
    threads: int = 1,
) -> int:
    """Draw a digit and watch the capsules: a page in the browser, served by this machine to itself. Ctrl-C ends it.

    Example: torchcaps explore runs/capsnet-digits

    Args:
        other: Another one, to compare with on the same input.
        data: Another data set than the run's own to choose test images from, by name or path.
        host: Address to listen on; any but this machine's own asks for the token that the printed address has.
        port: The first port to try.
        open: Open the page in the browser.
        threads: Of torch; one image at a time gains little from more.
    """
    from torchcaps.errors import check_range
    from torchcaps.explorer import open_session, server
    from torchcaps.models import weights_file
    from torchcaps.report.words import telling

    with usage():
        check_range("--port", port, low=0, high=65535)
    use_threads(threads)
    runs = [path for path in (run or weights_file(), other) if path is not None]
    names = telling(runs) if run else [runs[0].stem]
    note("reading the model ...")
    named = zip(runs, names, strict=True)
    sessions = [open_session(path, data=data, root=root, device=device, name=name) for path, name in named]
    for session in sessions:
        if session.note:
            note(session.note)
    try:
        with unwinding(os._exit):  # it writes nothing, and may be in the middle of a look
            server.serve(sessions, host=host, port=port, open_page=open, say=lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        note("stopped")
    return 0
