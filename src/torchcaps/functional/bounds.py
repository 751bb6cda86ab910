"""What keeps finite numbers finite: bounds on what is multiplied, and products that half precision has no room for."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchcaps.errors import check_floating

ROOM = 2.0**16  # sums of so many of the largest numbers stay finite


def factor_limit(dtype: torch.dtype) -> float:
    """The largest number that is multiplied to votes: 2^32 in float32, which bounds half precision, too."""
    return _largest(dtype) ** (1 / 4)


def steady_limit(dtype: torch.dtype) -> float:
    """The largest number that gradients of several passes multiply again and again: 2^24 in float32.

    Beyond it numbers of that type have no fractions.
    """
    return _largest(dtype) ** (3 / 16)


def _largest(dtype: torch.dtype) -> float:
    is_half = dtype in (torch.float16, torch.bfloat16)
    return torch.finfo(torch.float32 if is_half else dtype).max


def clamp_finite(x: Tensor, limit: Callable[[torch.dtype], float]) -> Tensor:
    """`x` with numbers beyond the limit of its type taken for it. All of float16 are below every limit."""
    most = limit(x.dtype)
    return x if x.dtype == torch.float16 else x.clamp(-most, most)


def einsum_fp32(equation: str, small: Tensor, votes: Tensor) -> Tensor:
    """An einsum that stays finite for votes of any size: in units of 2^16, which changes no bit of ordinary numbers."""
    most = torch.finfo(votes.dtype).max / ROOM**2
    return torch.einsum(equation, small / ROOM, votes).clamp(-most, most) * ROOM


def detach_extremes(logits: Tensor) -> Tensor:
    """Logits; no gradient flows to those so large that their next neighbors are further than 1 away."""
    return torch.where(logits.abs() < steady_limit(logits.dtype), logits, logits.detach())


def einsum_autocast(equation: str, pose: Tensor, weight: Tensor) -> Tensor:
    """The products of an einsum of poses and weights, in the type of the weight; float16 is multiplied in float32."""
    check_floating(pose=pose, weight=weight)
    pose, weight = (
        clamp_finite(pose.to(weight.dtype), factor_limit),
        clamp_finite(weight, factor_limit),
    )
    device = weight.device.type
    cast = (
        device != "meta" and torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    )
    if torch.float16 not in (weight.dtype, cast):
        return torch.einsum(equation, pose, weight)
    with without_autocast(weight):
        return torch.einsum(equation, pose.float(), weight.float())


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """A block in which operations on this tensor's device are of the type of what goes in."""
    return (
        nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)
    )
