"""Printing: results to stdout, progress to stderr, one JSON document where it is asked for."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import torchcaps as tc


class UsageError(Exception):
    """The command line is wrong: one sentence, exit status 2."""


@contextmanager
def usage() -> Iterator[None]:
    """Raise UsageError for a ValueError inside: the command line is wrong, not the work."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def note(text: str) -> None:
    """One line to stderr."""
    print(text, file=sys.stderr, flush=True)


def note_without_plots() -> None:
    """Say why there are no plots, where matplotlib is not installed."""
    if not tc.reporting.can_plot():
        note("no plots: they need matplotlib; install it with: pip install 'torchcaps[plots]'")


def print_json(document: Any) -> None:
    """One JSON document to stdout."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Rows of text in aligned columns, a heading first; all but the first column to the right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells: list[str] = []
        for text, width in zip(row, widths, strict=True):
            blank = " " * (width - cell_len(text))
            cells.append(blank + text if cells else text + blank)
        print("  ".join(cells).rstrip())


def show(as_json: bool, document: Any, rows: Sequence[Sequence[str]], below: str = "") -> None:
    """Print the document as JSON, or the rows as a table and a line below it.

    Args:
        as_json: whether JSON is asked for.
        document: what the JSON holds.
        rows: cells of the table, the heading first.
        below: the line; empty for none.
    """
    if as_json:
        print_json(document)
        return
    print_table(rows)
    if below:
        print(f"\n{below}")


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A bar on stderr that vanishes when done; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        yield bar


@contextmanager
def counting(title: str) -> Iterator[Callable[[int, int], None]]:
    """The bar as a function of the number that is done and the number of all."""
    with progress_bar(title) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
