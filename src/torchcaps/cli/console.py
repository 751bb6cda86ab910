"""The terminal: results to stdout, progress to stderr, one JSON document where it is asked for.

And Ctrl-C and SIGTERM: stop in good order, with status 130 or 143.
"""

import codecs
import json
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import repeat
from pathlib import Path
from types import FrameType
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

import torchcaps as tc
from torchcaps.errors import printable

LINE_WIDTH = 80  # of tables
GAP = 2  # between columns
PATIENCE = 1.0  # seconds until a command says what it does
STOPPING = "stopping after this step; the state will be saved"
NUMBER = re.compile(r"[^\w]*(\d|$)")  # a cell that begins with a digit or a sign, or is empty

# What stands for a character that the encoding of the terminal lacks; others are escaped.
SUBSTITUTES = str.maketrans(
    {
        "±": "+-",
        "×": "x",
        "…": "...",
        "→": "->",
        "°": " deg",
        "²": "^2",
        "−": "-",
        "–": "-",
        "·": "-",
        "✓": "+",
        "✗": "-",
    }
)
LOSSY = "torchcaps.lossy"  # the name of `substitute` among the error handlers of codecs


class UsageError(ValueError):
    """The command line is wrong: one sentence, exit status 2."""


def substitute(error: UnicodeError) -> tuple[str, int]:
    """What is printed in place of characters that an encoding lacks, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(SUBSTITUTES)
    return text.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error(LOSSY, substitute)


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


@contextmanager
def announce(text: str, is_said: bool = True) -> Iterator[Callable[[], None]]:
    """While open, say what is done as soon as it takes long. An error that comes before stands alone.

    Args:
        text: what is done.
        is_said: False in all but one of several processes.

    Yields:
        What is called to say it no more.
    """
    import torchcaps.reporting.api  # noqa: F401 (what all commands import is not counted)

    timer = threading.Timer(PATIENCE, note, [f"{text} ..."])
    timer.daemon = True
    if is_said:
        timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def note_next(run: Path, *commands: str) -> None:
    """What to do with a run next, to stderr: a line for each command, which takes the run first."""
    note("next:")
    for command in commands:
        name, _, rest = command.partition(" ")
        note(f"  torchcaps {name} {shlex.quote(str(run))} {rest}".rstrip())


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
    columns = []
    widths = []
    savings = []
    for texts in zip(*rows, strict=True):
        column = list(map(printable, texts))  # names of classes may be hostile
        columns.append(column)
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
    _, *body = zip(*columns, strict=True)
    for row in body:
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
def counting(title: str, after: str = "") -> Iterator[Callable[[int, int | None], None]]:
    """The bar as a function of the number that is done and the number of all, if it is known.

    Args:
        title: of the bar, which is announced, too.
        after: what is done when all are counted, said then.
    """
    from torchcaps.training.callbacks import progress_bar

    with announce(title), progress_bar(title) as bar:
        task = bar.add_task("")

        def count(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)
            if after and done == total:
                note(f"{after} ...")

        yield count


def sigterm_as_exit(end: Callable[[int], object] = sys.exit) -> AbstractContextManager[None]:
    """While open, SIGTERM unwinds the program as Ctrl-C does, so that nothing half-written stays.

    Args:
        end: called with the exit status instead of unwinding.
    """
    return _handling(lambda number, _: end(128 + number), signal.SIGTERM)


@contextmanager
def graceful_stop(rank: int | None = None) -> Iterator[list[int]]:
    """While open, a first SIGINT or SIGTERM is noted, for the loop to stop after its step.

    A second one acts at once. Among several processes it changes nothing, because `torchrun` sends
    what they have got from the terminal already; and SIGTERM is noted in silence there, because it
    also means a lost process.

    Args:
        rank: of this process among several.

    Yields:
        The numbers of the signals that came.
    """
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        if caught and rank is None:
            ignore_signals()
            raise SystemExit(128 + number)
        if not caught and (rank is None or (rank == 0 and number == signal.SIGINT)):
            advice = " (once more: stop at once)" * (rank is None)
            # Not print: a handler may come in the middle of another print.
            os.write(2, f"{STOPPING}{advice}\n".encode())
        caught.append(number)

    with _handling(catch, signal.SIGINT, signal.SIGTERM):
        yield caught


@contextmanager
def stoppable(advice: str, title: str = "training") -> Iterator[list[Any]]:
    """Trainings with a bar, which a first signal stops after their step.

    Args:
        advice: on how they go on.
        title: of the bar.

    Yields:
        Their callbacks.

    Raises:
        SystemExit: of status 130 or 143, after a signal.
    """
    from torchcaps.distributed import current

    ranks = current()
    with (
        graceful_stop(ranks.rank if ranks.world_size > 1 else None) as caught,
        announce("reading the data and building the model", ranks.is_main) as silence,
    ):
        try:
            bar = tc.training.ProgressBar(title, silence)
            yield [tc.training.StopWhen(lambda: bool(caught)), bar]
        except tc.training.Interrupted as stop:
            ignore_signals()
            note(f"{stop}; {advice}")
            number = caught[0] if caught else signal.SIGINT  # another process may have got it
            raise SystemExit(128 + number) from stop


def ignore_signals() -> None:
    """Ignore signals from here on: the program is about to end, and its status is known.

    Python takes its own handlers away before it ends; a Ctrl-C that came then would kill it.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals
) -> Iterator[None]:
    """Replace the handlers of these signals for a while, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = list(map(signal.signal, numbers, repeat(handler)))
    try:
        yield
    finally:
        for number, former in zip(numbers, before, strict=True):
            if signal.getsignal(number) is handler:  # not replaced meanwhile
                signal.signal(number, former)
