"""How fast a training is, by its own first steps; and whether one thread would be faster."""

import time
from collections.abc import Callable
from statistics import median

import torch

from torchcaps.words import duration

MIN_STEPS = 3  # timed before something is said
MIN_SECONDS = 1.0
ROUNDS = 9  # of the probe of threads
CHUNK = 1 << 14  # numbers of an operation that torch runs in one thread
NUM_CHUNKS = 16
SLOWDOWN = 3.0  # time of all threads over that of one from which one is advised


class SpeedReport:
    """Says once, after the first steps, how many images a second they took, and what is left.

    The first step is not counted: kernels are chosen and memory is taken in it.

    Args:
        total_steps: of the training.
        images_per_step: mean number of images.
        clock: seconds.
    """

    def __init__(
        self,
        total_steps: int,
        images_per_step: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.total_steps = total_steps
        self.images_per_step = images_per_step
        self.clock = clock
        self.start: tuple[int, float] | None = None  # number of steps done, and the time
        self.is_done = False

    def after_step(self, step: int) -> str:
        """The sentence, after the step with which it is known; else "".

        Args:
            step: number of steps done.
        """
        if self.is_done:
            return ""
        now = self.clock()
        if self.start is None:
            self.start = (step, now)
            return ""
        first_step, start_time = self.start
        num_steps = step - first_step
        seconds = now - start_time
        if num_steps < MIN_STEPS or seconds < MIN_SECONDS:
            return ""
        self.is_done = True
        speed = num_steps * self.images_per_step / seconds
        remaining = (self.total_steps - step) * seconds / num_steps
        return f"about {speed:.3g} images/s: {duration(remaining)} to go, without validation"


def thread_advice(device: torch.device) -> str:
    """A sentence if one thread would be faster on a CPU than torch's number of threads, else "".

    It takes some milliseconds. The number of threads is not changed, not even for a moment.
    """
    num_threads = torch.get_num_threads()
    if num_threads == 1 or device.type != "cpu":
        return ""
    multi_times, single_times = time_threads()
    return advise_threads(num_threads, multi_times, single_times)


def time_threads() -> tuple[list[float], list[float]]:
    """Seconds of an operation on many numbers at once, and in chunks that one thread works on.

    Torch divides the first among its threads. Chunks are too small for that.
    """
    numbers = torch.zeros(NUM_CHUNKS, CHUNK)
    chunks = numbers.unbind()
    multi_times = []
    single_times = []
    torch.sigmoid(numbers, out=numbers)  # threads start with the first operation
    for _ in range(ROUNDS):
        start = time.perf_counter()
        torch.sigmoid(numbers, out=numbers)
        middle = time.perf_counter()
        for chunk in chunks:
            torch.sigmoid(chunk, out=chunk)
        multi_times.append(middle - start)
        single_times.append(time.perf_counter() - middle)
    return multi_times, single_times


def advise_threads(num_threads: int, multi_times: list[float], single_times: list[float]) -> str:
    """The sentence of `thread_advice`, by the seconds of `time_threads`.

    Medians are compared, so that single interruptions do not count.
    """
    slowdown = median(multi_times) / median(single_times)
    if slowdown < SLOWDOWN:
        return ""
    return (
        f"an operation takes {slowdown:.0f} times as long with {num_threads} threads as with one, "
        "because other programs keep the processor busy; --threads 1 (torch.set_num_threads(1)) "
        "is faster"
    )
