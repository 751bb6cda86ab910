"""Devices, the precision that they compute in, and whether they repeat themselves."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchcaps.errors import ArgumentError, RunError, TrainingError

# Kinds of devices beside the CPU, in the order in which "auto" looks for them.
ACCELERATORS = ("cuda", "xpu", "mps")
# The type that matrix products and convolutions take under autocast.
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """A usable device; "auto" is a GPU where there is one (cuda, xpu, mps), and "1" is "cuda:1".

    Raises RunError for one that is not here.
    """
    if name.isdecimal():
        name = f"cuda:{name}"
    if name == "auto":
        available = [name for name in ACCELERATORS if getattr(torch, name).is_available()]
        return torch.device(available[0] if available else "cpu")
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
    return "bf16" if has_bf16(device) else "fp32"


def has_bf16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 run in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    # torch offers no public question for these CPU features.
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        is_supported = getattr(torch.cpu, name, None)
        if is_supported is not None and is_supported():
            return True
    return False


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
    settings = [torch.backends.cuda.matmul, cudnn.conv]
    rules = [(group, group.fp32_precision) for group in settings]
    mode = torch.get_deterministic_debug_mode()
    autotunes = torch.backends.cudnn.benchmark
    try:
        if device.type == "cuda":
            for group in settings:
                group.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        if deterministic:
            torch.backends.cudnn.benchmark = False
            torch.set_deterministic_debug_mode("error")
        yield
    finally:
        for group, rule in rules:
            group.fp32_precision = rule
        torch.backends.cudnn.benchmark = autotunes
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
