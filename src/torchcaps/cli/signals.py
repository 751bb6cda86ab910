"""Ctrl-C and SIGTERM: stop in good order, with status 130 or 143."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import repeat
from types import FrameType
from typing import Any

import torchcaps as tc
from torchcaps.cli.console import note

STOPPING = "stopping after this step; the state will be saved"


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
    with graceful_stop(ranks.rank if ranks.world_size > 1 else None) as caught:
        try:
            yield [tc.training.StopWhen(lambda: bool(caught)), tc.training.ProgressBar(title)]
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
