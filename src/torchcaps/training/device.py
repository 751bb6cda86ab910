"""Devices and the precision that they compute in."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchcaps.errors import RunError, TrainingError


def resolve_device(name: str) -> torch.device:
    """A usable device; "auto" is a GPU where there is one, and "1" is "cuda:1".

    Raises RunError for one that is not here.
    """
    if name.isdecimal():
        name = f"cuda:{name}"
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
    """ "fp32" or "bf16"; "auto" is bf16 where the device multiplies it in hardware."""
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
def memory_errors() -> Iterator[None]:
    """Raise TrainingError, one sentence, where the memory of any device is exhausted."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # Most devices raise no class of their own.
        if isinstance(error, MemoryError) or re.search(
            "out of memory|can't allocate memory|not enough memory", str(error)
        ):
            raise TrainingError(
                "the memory is exhausted; use a smaller batch_size, img_size or model"
            ) from error
        raise
