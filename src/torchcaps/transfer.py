"""Tensors on their way from the host to a device, and their widest type there."""

from functools import cache

import torch
from torch import Tensor


def to_device(tensor: Tensor, like: Tensor | torch.device) -> Tensor:
    """A tensor on a device; one of the CPU goes to a GPU without a wait of the host.

    A copy from pinned memory is a part of the device's work, which later operations follow.
    Numbers in float64 become float32 on a device without it.

    Args:
        tensor: on any device.
        like: the device; or a tensor on it, whose type is taken too.
    """
    device = like if isinstance(like, torch.device) else like.device
    if isinstance(like, Tensor):
        tensor = tensor.to(like.dtype)
    if tensor.dtype == torch.float64:
        tensor = tensor.to(widest_float(device.type))
    is_copy = tensor.device.type == "cpu" and device.type == "cuda"
    if is_copy and not torch.compiler.is_compiling():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def widen(x: Tensor) -> Tensor:
    """A tensor in float64; in float32 on a device without it, as those of Apple."""
    if x.device.type == "cpu":
        return x.double()
    return x.to(widest_float(x.device.type))


@cache
def widest_float(device: str) -> torch.dtype:
    """The largest type of floating point of a device: float64, or float32 where that is refused.

    Args:
        device: type of the device, such as "cuda".
    """
    if device in ("cpu", "meta"):
        return torch.float64
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64
