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
    """What a ValueError inside says is wrong with the command line, not with the work."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def note(text: str) -> None:
    """One line to stderr."""
    print(text, file=sys.stderr, flush=True)


def note_without_plots() -> None:
    """Say why there are no pictures, where there are none."""
    if not tc.reporting.can_plot():
        note("no plots: they need matplotlib; install it with: pip install 'torchcaps[plots]'")


def print_json(value: Any) -> None:
    """One JSON document to stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Rows of text in aligned columns, the first row as heading; all columns but the first to the right."""
    widths = [max(cell_len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        blanks = [" " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True)]
        first, *others = zip(row, blanks, strict=True)
        print("  ".join([first[0] + first[1], *(blank + text for text, blank in others)]).rstrip())


def show(as_json: bool, document: Any, rows: Sequence[Sequence[str]], below: str = "") -> None:
    """The document where JSON is asked for, else the rows as a table, and a line below it."""
    if as_json:
        print_json(document)
        return
    print_table(rows)
    if below:
        print(f"\n{below}")


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on stderr that vanishes when done; nothing at all where stderr is no terminal."""
    console = Console(stderr=True)
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        *times,
        TextColumn("{task.description}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield bar


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """The bar as a function of how many are done, and of how many there are."""
    with progress_bar(what) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
