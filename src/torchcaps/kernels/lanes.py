"""How compiled loops see a batch, the threads that share it, and where machine code is kept."""

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

# Samples of a group of EM routing, and positions of one of routing on maps: the innermost loops run
# over them, and they lie next to each other in memory.
LANES = 32
POSITIONS = 64
# Children of a block of routing by agreement: their weights stay in the cache for all groups.
BLOCK = 64
# Parts of the work for each thread: more of them even out waiting times, fewer cost less.
PARTS_PER_THREAD = 4


def by_lane(x: Tensor) -> Tensor:
    """`[b, ...]` -> `[g, ..., LANES]`, contiguous; zeros in the place of missing samples."""
    missing = -len(x) % LANES
    if missing:
        x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
    return x.unflatten(0, (len(x) // LANES, LANES)).movedim(1, -1).contiguous()


def by_sample(x: Tensor, batch: int) -> Tensor:
    """`[g, ..., LANES]` -> `[b, ...]`."""
    return x.movedim(-1, 1).flatten(0, 1)[:batch]


def as_arrays(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a compiled loop, with tensors as contiguous arrays, in nested tuples too."""
    arrays: list[Any] = []
    for argument in arguments:
        if isinstance(argument, tuple):
            arrays.append(as_arrays(argument))
        elif isinstance(argument, Tensor):
            arrays.append(argument.detach().contiguous().numpy())
        else:
            arrays.append(argument)
    return tuple(arrays)


def parallel_for(loop: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run `loop(first, last, *arguments)` for all of `count`, by as many threads as torch uses.

    The threads are new in every call, so that none has to survive a fork. They take parts of the
    work in turn.
    """
    num_threads = min(torch.get_num_threads(), count)
    num_parts = PARTS_PER_THREAD * num_threads
    bounds = [count * part // num_parts for part in range(num_parts + 1)] if num_parts else []
    # next() of an iterator over a list is atomic.
    parts = iter([(first, last) for first, last in pairwise(bounds) if first < last])

    def work() -> None:
        for first, last in parts:
            loop(first, last, *arguments)

    if num_threads < 2:
        work()
        return
    if (pause := _find_omp_pause()) is not None:
        pause(1)  # omp_pause_soft
    with ThreadPoolExecutor(num_threads - 1) as pool:
        futures = [pool.submit(work) for _ in range(num_threads - 1)]
        work()
        for future in futures:
            future.result()


@lru_cache(maxsize=1)
def _find_omp_pause() -> Callable[[int], int] | None:
    """The function by which OpenMP ends its idle threads; None without OpenMP 5.

    They would spin for 20 ms after torch's last operation.
    """
    try:
        return ctypes.CDLL(None).omp_pause_resource_all
    except (OSError, TypeError, AttributeError):  # Windows has no handle on the whole process
        return None


def keep_compiled(*loops: Any) -> Path | None:
    """Let numba keep machine code in the user's cache folder.

    It is never kept beside the package, which may be read-only. The contents of the files that
    loops are written in name the folder, so that no old code is taken for new.

    Args:
        loops: compiled functions that are called from Python.

    Returns:
        The folder; None if none can be written. Every process then compiles anew.
    """
    import numba
    from numba.misc.appdirs import AppDirs

    config: Any = numba.config
    sources = [Path(__file__), *sorted(Path(__file__).parent.rglob("_*.py"))]
    try:
        contents = b"".join(source.read_bytes() for source in sources)
        digest = hashlib.sha256(contents).hexdigest()[:12]
        cache = config.CACHE_DIR or AppDirs("torchcaps", appauthor=False).user_cache_dir
        folder = Path(cache) / f"loops-{digest}"
        if not folder.is_absolute():  # no home folder
            return None
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return None

    previous = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        for loop in loops:
            loop.enable_caching()
    finally:
        config.CACHE_DIR = previous
    return folder
