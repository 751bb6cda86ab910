"""Samples in lanes, and threads that share out their groups: how compiled loops see a batch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

LANES = 16  # samples of a group: one in each lane of a vector
# Parts of the work for each thread: more of them even out what threads wait for, fewer cost less to hand out.
PARTS = 4


def by_lane(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`[b, ...]` -> `[g, ..., LANES]`; lanes beyond the batch are zero, which routes to nothing and back."""
    whole, over = divmod(len(x), LANES)
    lanes = x.new_empty((whole + bool(over), *x.shape[1:], LANES), dtype=dtype)
    lanes[:whole] = x[: whole * LANES].unflatten(0, (whole, LANES)).movedim(1, -1)
    if over:
        lanes[whole].zero_()[..., :over] = x[whole * LANES :].movedim(0, -1)
    return lanes


def by_sample(x: Tensor, batch: int) -> Tensor:
    """`[g, ..., LANES]` -> `[b, ...]`."""
    return x.movedim(-1, 1).flatten(0, 1)[:batch]


def flat(x: Any) -> Any:
    """A tensor as compiled loops take it; anything else as it is."""
    return x.detach().contiguous().view(-1).numpy() if isinstance(x, Tensor) else x


def in_threads(loop: Callable[..., None], count: int, *arguments: Any) -> None:
    """loop(first, last, ...) for all of `count`, in parts that threads take as they become free.

    Threads are made anew: none survives a fork.
    """
    threads = min(torch.get_num_threads(), count)
    bounds = pairwise(count * n // (PARTS * threads) for n in range(PARTS * threads + 1)) if threads else iter(())
    parts = iter([part for part in bounds if part[0] < part[1]])  # next() of an iterator over a list is atomic

    def work() -> None:
        for part in parts:
            loop(*part, *arguments)

    if threads < 2:
        work()
        return
    _let_go()
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()


def _let_go() -> None:
    """Have OpenMP end its idle threads: they spin on a core for some 20 ms after torch's last operation.

    It makes them anew at the next operation, in 0.1 ms. Without an OpenMP 5 runtime in this process, nothing happens.
    """
    pause = _omp_pause()
    if pause is not None:
        pause(1)  # omp_pause_soft


@lru_cache(maxsize=1)
def _omp_pause() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).omp_pause_resource_all
    except (OSError, TypeError, AttributeError):  # Windows has no handle on the whole process
        return None
