"""torchcaps explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from torchcaps.cli.console import note, usage
from torchcaps.cli.signals import at_once


def explore(
    run: Annotated[Path | None, tyro.conf.Positional] = None,
    other: Annotated[Path | None, tyro.conf.Positional] = None,
    /,
    data: str | None = None,
    root: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8700,
    open: bool = True,
    device: str = "auto",
    threads: int = 1,
) -> int:
    """Draw a digit and watch the capsules: a page in the browser, served by this machine to itself. Ctrl-C ends it.

    Example: torchcaps explore runs/capsnet-digits

    Args:
        run: A run folder, or a model.safetensors file; without one, a network that comes with the package.
        other: Another one, to compare with on the same input.
        data: Another data set than the run's own to choose test images from, by name or path.
        root: Folder in which a named data set is looked for first.
        host: Address to listen on; any but this machine's own asks for the token that the printed address has.
        port: The first port to try.
        open: Open the page in the browser.
        device: auto, cpu, cuda, ...
        threads: Of torch; one image at a time gains little from more.
    """
    from torchcaps.errors import check_range
    from torchcaps.training.environment import check_threads

    with usage():
        check_range("--port", port, low=0, high=65535)
        check_threads("--threads", threads)

    import torch

    from torchcaps.explorer import open_session, server
    from torchcaps.models import weights_file
    from torchcaps.report.words import telling

    torch.set_num_threads(threads)
    run = run or weights_file()
    runs = [run] if other is None else [run, other]
    note("reading the model ...")
    named = zip(runs, telling(runs), strict=True)
    sessions = [open_session(path, data=data, root=root, device=device, name=name) for path, name in named]
    for session in sessions:
        if session.note:
            note(session.note)
    try:
        with at_once():
            server.serve(sessions, host=host, port=port, open_page=open, say=lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        note("stopped")
    return 0
