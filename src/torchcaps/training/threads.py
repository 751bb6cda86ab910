"""The number of processor threads of a training."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from timeit import repeat

import torch

from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, check_range

MAX_THREADS = 256  # where the machine has fewer processors; the runtime aborts on thousands
PAUSE = 0.03  # seconds, in which other programs come and go
SLOWDOWN = 3.0  # time of all threads over that of one from which one is taken

_default = torch.get_num_threads()  # 0 once a number was set


def set_threads(argument: str, count: object) -> None:
    """Let torch take so many threads, also in trainings to come.

    Args:
        argument: name of the number, for the error.
        count: at least 1.

    Raises:
        ArgumentError: it is no number of threads that a machine can start.
    """
    global _default  # noqa: PLW0603 (torch has one number in a process)
    torch.set_num_threads(check_threads(argument, count))
    _default = 0


def check_threads(argument: str, count: object) -> int:
    """The count, if it is a number of threads that a machine can start; else ArgumentError."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise ArgumentError(argument, f"expected a whole number, got {count!r}")
    check_range(argument, count, low=1, high=max(MAX_THREADS, os.cpu_count() or 1))
    return count


@contextmanager
def training_threads(device: torch.device, resumed: int | None = None) -> Iterator[str]:
    """While open, torch takes the threads of a resumed run, or one where all are far slower.

    Sums over threads differ in their last bits, so a run goes on with the number it was started
    with. A number that was set (`set_threads`, `torch.set_num_threads`, the variable
    OMP_NUM_THREADS) is not changed for a new training.

    Args:
        device: of the training.
        resumed: the number of the run that goes on, if any.

    Yields:
        A sentence where one thread is taken, else "".
    """
    count = before = torch.get_num_threads()
    sentence = ""
    if resumed is not None:
        if _default:
            count = resumed
    elif _may_choose(device) and (slowdown := measure_slowdown()) >= SLOWDOWN:
        count = 1
        sentence = (
            f"one thread in place of {before}: other programs keep the processor busy, so that an "
            f"operation with all takes {slowdown:.0f} times as long"
        )
    torch.set_num_threads(count)  # also where it is the same: MKL then keeps to it
    try:
        yield sentence
    finally:
        torch.set_num_threads(before)


def _may_choose(device: torch.device) -> bool:
    """Whether nobody set the number of threads of a training, which has several on a CPU."""
    is_default = torch.get_num_threads() == _default > 1
    is_default = is_default and "OMP_NUM_THREADS : [not set]" in torch.__config__.parallel_info()
    return is_default and device.type == "cpu" and current().world_size == 1


def measure_slowdown() -> float:
    """Time of an operation with all threads over that with one, the most of three moments.

    Torch divides the operation among its threads on a large matrix, and not on its rows. Medians
    are compared, so that single interruptions do not count.
    """
    numbers = torch.zeros(16, 1 << 14)
    rows = numbers.unbind()
    numbers.sigmoid_()  # threads start with the first operation
    slowdowns = []
    for _ in range(3):
        time.sleep(PAUSE)
        all_threads = repeat(numbers.sigmoid_, number=1)
        one_thread = repeat(lambda: [row.sigmoid_() for row in rows], number=1)
        slowdowns.append(median(all_threads) / median(one_thread))
    return max(slowdowns)
