"""How compiled loops see a batch, samples in lanes; the threads that share it out; and how loops are kept compiled."""

import ctypes
import hashlib
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LANES = 32  # samples of a group, next to each other in memory
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


def as_arrays(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a compiled loop: tensors, in tuples too, as contiguous arrays, anything else as it is."""
    return tuple(
        as_arrays(argument)
        if isinstance(argument, tuple)
        else argument.detach().contiguous().numpy()
        if isinstance(argument, Tensor)
        else argument
        for argument in arguments
    )


def parallel_for(loop: Callable[..., None], count: int, *arguments: Any) -> None:
    """loop(first, last, ...) for all of `count`, in parts that new threads take in turn: none survives a fork."""
    threads = min(torch.get_num_threads(), count)
    bounds = (
        pairwise(count * n // (PARTS * threads) for n in range(PARTS * threads + 1))
        if threads
        else iter(())
    )
    parts = iter(
        [part for part in bounds if part[0] < part[1]]
    )  # next() of an iterator over a list is atomic

    def work() -> None:
        for part in parts:
            loop(*part, *arguments)

    if threads < 2:
        work()
        return
    if (pause := _omp_pause()) is not None:
        pause(1)  # omp_pause_soft
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()


@lru_cache(maxsize=1)
def _omp_pause() -> Callable[[int], int] | None:
    """Has OpenMP end its idle threads, which spin for 20 ms after torch's last operation; None without OpenMP 5."""
    try:
        return ctypes.CDLL(None).omp_pause_resource_all
    except (OSError, TypeError, AttributeError):  # Windows has no handle on the whole process
        return None


def keep_compiled(*loops: Any) -> Path | None:
    """Let numba keep machine code in the user's cache folder; never beside the package, which may be read-only.

    `loops` are compiled functions that are called from Python. The contents of this package's files name the folder, so
    that no old code is taken for new. It is returned, or None where none can be written: then every process compiles
    anew, which takes a few seconds.
    """
    import numba
    from numba.misc.appdirs import AppDirs

    config: Any = numba.config
    try:
        sources = sorted(Path(__file__).parent.rglob("*.py"))
        contents = b"".join(source.read_bytes() for source in sources)
        digest = hashlib.sha256(contents).hexdigest()[:12]
        folder = (
            Path(config.CACHE_DIR or AppDirs("torchcaps", appauthor=False).user_cache_dir)
            / f"loops-{digest}"
        )
        if not folder.is_absolute():  # no home folder
            return None
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return None
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        for loop in loops:
            loop.enable_caching()
    finally:
        config.CACHE_DIR = before
    return folder
