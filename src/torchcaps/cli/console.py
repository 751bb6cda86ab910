"""Printing: results to stdout, progress to stderr, one JSON document where it is asked for."""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

import torchcaps as tc
from torchcaps.errors import printable

LINE_WIDTH = 80  # of tables
GAP = 2  # between columns
NUMBER = re.compile(r"[^\w]*(\d|$)")  # a cell that begins with a digit or a sign, or is empty


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
    print(printable(text), file=sys.stderr, flush=True)


def note_without_plots() -> None:
    """Say why there are no plots, where matplotlib is not installed."""
    if not tc.reporting.can_plot():
        note("no plots: they need matplotlib; install it with: pip install 'torchcaps[plots]'")


def print_json(document: Any) -> None:
    """One JSON document to stdout."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in aligned columns, a heading first, in lines of `LINE_WIDTH` columns.

    Numbers are aligned to the right. Where a row is too long, headings are broken between words,
    and the text of one column is wrapped. A word is never cut: with a long path, lines are longer.
    """
    rows = [list(map(printable, row)) for row in rows]  # names of classes may be hostile
    columns = list(zip(*rows, strict=True))
    widths = []
    savings = []
    for column in columns:
        widths.append(max(map(cell_len, column)))
        longest_word = max(map(cell_len, " ".join(column).split()), default=0)
        savings.append(widths[-1] - longest_word)
    wrapped = savings.index(max(savings))
    full_width = sum(widths) + GAP * (len(widths) - 1)
    can_fit = full_width - savings[wrapped] <= LINE_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for index, (heading, *cells) in enumerate(columns):
        is_broken = full_width > LINE_WIDTH and cell_len(heading) > max(map(cell_len, cells))
        table.add_column(
            Text(heading.replace(" ", "\n") if is_broken else heading),
            justify="right" if all(map(NUMBER.match, cells)) else "left",
            no_wrap=not can_fit or index != wrapped,
        )
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    console = Console(width=LINE_WIDTH if can_fit else full_width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())


def print_wrapped(text: str, indent: int = 0) -> None:
    """Print text in lines of `LINE_WIDTH` columns; all but the first are indented further."""
    lines = textwrap.wrap(
        text,
        LINE_WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
    )
    print("\n".join(lines))


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
def counting(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """The bar as a function of the number that is done and the number of all, if it is known."""
    from torchcaps.training.callbacks import progress_bar

    with progress_bar(title) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
