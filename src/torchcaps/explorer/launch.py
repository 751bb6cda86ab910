"""`torchcaps.explore`: the page for a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from torchcaps.explorer.session import open_session
from torchcaps.models import weights_file
from torchcaps.words import unique_suffixes


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
    from torchcaps.explorer.server import serve

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
