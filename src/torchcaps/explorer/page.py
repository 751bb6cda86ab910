"""`torchcaps.explore`: the page of a trained network, as a file or by a server of this machine."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from pathlib import Path

from torch import nn

from torchcaps.data.load import default_cache_dir
from torchcaps.errors import ArgumentError, ExportError
from torchcaps.explorer.answers import ServedModel
from torchcaps.explorer.server import bind
from torchcaps.exporting.page import (
    Content,
    assemble,
    carry,
    describe,
    facts_of,
    images_of,
)
from torchcaps.models import weights_file
from torchcaps.reporting import evaluation_folder
from torchcaps.reporting.prediction import load_model
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.training.files import MODEL_FILE, atomic, make_folder
from torchcaps.types import Json, StrPath, model_metadata
from torchcaps.words import unique_suffixes

PORT = 8700  # of a server that nobody asked for


def explore(
    run: StrPath | None = None,
    other: StrPath | None = None,
    *,
    root: str | None = None,
    port: int | None = None,
    open_page: bool = True,
    log: Callable[[str], object] = print,
) -> None:
    """Open the page that shows what a trained network's capsules say while you draw.

    Of a network that the page can carry it is a file, `page/index.html` in the run folder, which
    works without this function. Any other is answered by a server on this machine, until Ctrl-C.

    Args:
        run: a run folder or a model file; by default a network that comes with the package.
        other: another one, to compare with on the same input.
        root: folder in which a named data set is looked for first.
        port: serve the page from this port, or the next free one; 0 takes any.
        open_page: open it in the browser.
        log: prints the address.

    Raises:
        RunError: for no run, or no free port.
        ArgumentError: for a model that takes no pictures.
        TrainingError: a page cannot be written.
    """
    runs = [Path(path) for path in (run or weights_file(), other) if path is not None]
    names = unique_suffixes([path.parent if path.name == MODEL_FILE else path for path in runs])
    names = [name.removesuffix(".safetensors") for name in names]
    models: list[ServedModel] = []
    source = "local"
    try:
        contents = [
            carry(load_model(path, "cpu"), images_of(path, root), name, facts_of(path))
            for path, name in zip(runs, names, strict=True)
        ]
    except ExportError:
        contents = []
        source = "server"
        for path, name in zip(runs, names, strict=True):
            served, content = describe_run(path, name, root)
            content.head["model"] = len(models)
            models.append(served)
            contents.append(content)
        port = PORT if port is None else port
    for content in contents[1:]:
        content.head["role"] = "other"
    html = assemble(contents, source)
    if port is None:
        folder = evaluation_folder(runs[0]) if run else default_cache_dir()
        path = folder.resolve() / "page" / "index.html"
        make_folder(path.parent)
        with atomic(path) as partial:
            partial.write_text(html, "utf-8")
        log(str(path))
        if open_page:
            webbrowser.open(path.as_uri())
        return
    with bind(html, models, port) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        log(url)
        if open_page:
            webbrowser.open(url)
        server.serve_forever()


def describe_run(
    run: StrPath | nn.Module, name: str, root: str | None = None
) -> tuple[ServedModel, Content]:
    """A model that the server answers for.

    Args:
        run: a model, a run folder or a file of weights.
        name: of the model on the page.
        root: where a named data set is looked for first.

    Returns:
        What the server needs of it, and what the page says of it.

    Raises:
        RunError: for no run.
        ArgumentError: for a model that takes no pictures.
    """
    model = load_model(run, "cpu")
    preprocess = model_metadata(model).preprocess
    if not preprocess.is_picture:
        raise ArgumentError(
            name, f"the explorer shows pictures, and this model takes {preprocess.kind}"
        )
    data = None
    facts: Json = {}
    task = create_task(model, TrainConfig.of(task=model_metadata(model).task))
    if not isinstance(run, nn.Module):
        data = images_of(run, root)
        facts = facts_of(Path(run))
    served = ServedModel(task, (preprocess.in_chans, *preprocess.model_size))
    return served, describe(task.model, data, name, facts)
