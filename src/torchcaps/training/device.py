"""The machine of a training: device, precision, processor threads, and versions."""

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from timeit import repeat
from typing import Any

import torch

from torchcaps import plugins
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, RunError, TrainingError, check_range
from torchcaps.types import Json

# Kinds of devices beside the CPU, in the order in which "auto" looks for them.
ACCELERATORS = ("cuda", "xpu", "mps")
MAX_THREADS = 256  # where the machine has fewer processors; the runtime aborts on thousands
PAUSE = 0.03  # seconds, in which other programs come and go
SLOWDOWN = 3.0  # time of all threads over that of one from which one is taken

_default = torch.get_num_threads()  # 0 once a number was set


def resolve_device(name: str) -> torch.device:
    """A usable device; "auto" is a GPU where there is one (cuda, xpu, mps), and "1" is "cuda:1".

    Raises RunError for one that is not here.
    """
    if name.isdecimal():
        name = f"cuda:{name}"
    if name == "auto":
        usable = (kind for kind in ACCELERATORS if getattr(torch, kind).is_available())
        return torch.device(next(usable, "cpu"))
    try:
        device = torch.device(name)
        if torch.zeros(1, device=device).item() != 0:  # "meta" has no values at all
            raise RuntimeError("it does not compute")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RunError(
            f"device: {name!r} cannot be used here ({str(error).splitlines()[0]})"
        ) from error
    return device


def resolve_precision(name: str, device: torch.device) -> str:
    """A precision by name; "auto" is bf16 where the device multiplies it in hardware, else fp32.

    Raises ArgumentError for tf32 and fp16 where the device is no GPU of CUDA.
    """
    if name in ("tf32", "fp16") and device.type != "cuda":
        raise ArgumentError(
            "precision", f"{name} is for GPUs (cuda), and the device is {device}; take bf16 or fp32"
        )
    if name != "auto":
        return name
    is_fast = False  # whether bfloat16 is multiplied in hardware
    if device.type == "cuda":
        is_fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":  # torch offers no public question for these features
        for question in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            is_fast = is_fast or getattr(torch.cpu, question, bool)()
    return "bf16" if is_fast else "fp32"


@contextmanager
def arithmetic(device: torch.device, precision: str, deterministic: bool) -> Iterator[None]:
    """While open, products and convolutions of a device follow one rule, and may have to repeat.

    Without it, torch multiplies matrices in float32 and convolves in TF32 on the same GPU.

    Args:
        device: where a training runs; on a CPU only `deterministic` has an effect.
        precision: "tf32" rounds factors to 10 bits; all others leave float32 as it is.
        deterministic: whether operations that give other bits each time raise RuntimeError.
    """
    cudnn: Any = torch.backends.cudnn
    groups = [torch.backends.cuda.matmul, cudnn.conv]
    rules = [group.fp32_precision for group in groups]
    mode = torch.get_deterministic_debug_mode()
    autotunes = cudnn.benchmark
    try:
        if device.type == "cuda":
            for group in groups:
                group.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        if deterministic:
            cudnn.benchmark = False
            torch.set_deterministic_debug_mode("error")
        yield
    finally:
        for group, rule in zip(groups, rules, strict=True):
            group.fp32_precision = rule
        cudnn.benchmark = autotunes
        torch.set_deterministic_debug_mode(mode)


@contextmanager
def memory_errors(batch_size: int = 1) -> Iterator[None]:
    """Raise TrainingError, one sentence, where the memory of any device is exhausted.

    Args:
        batch_size: images of a step; half of them is advised.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # Most devices raise no class of their own.
        if isinstance(error, MemoryError) or re.search(
            "out of memory|can't allocate memory|not enough memory", str(error)
        ):
            batch = f"batch_size than {batch_size}, such as {batch_size // 2}, or a smaller "
            raise TrainingError(
                f"the memory is exhausted; use a smaller {batch if batch_size > 1 else ''}"
                "img_size or model"
            ) from error
        raise


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
    is_chosen = (
        count != _default or "OMP_NUM_THREADS : [not set]" not in torch.__config__.parallel_info()
    )
    if resumed:
        if _default:
            count = resumed
    elif count > 1 and not is_chosen and device.type == "cpu" and current().world_size == 1:
        slowdown = measure_slowdown()
        if slowdown >= SLOWDOWN:
            count = 1
            sentence = (
                f"one thread in place of {before}: other programs keep the processor busy, so "
                f"that an operation with all takes {slowdown:.0f} times as long"
            )
    torch.set_num_threads(count)  # also where it is the same: MKL then keeps to it
    try:
        yield sentence
    finally:
        torch.set_num_threads(before)


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


def environment() -> Json:
    """Versions and hardware, for the record.

    Modules that a command was told to import (`--import`) are "imports".
    """
    facts = {
        "torchcaps": package_version("torchcaps"),
        "torch": torch.__version__,
        "numpy": package_version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    if modules := plugins.imported():
        facts["imports"] = modules
    return facts


def package_version(package: str) -> str:
    """The version of an installed package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
