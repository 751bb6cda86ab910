"""What keeps finite numbers finite: bounds on what is multiplied, and products that half precision has no room for."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchcaps.errors import check_floating

# Powers of the largest number of a type, which is about 2^128 in float32: of what is multiplied to votes, and of what
# gradients of several passes multiply again and again. In float32 numbers beyond the latter, 2^24, have no fractions.
FACTOR, STEADY = 1 / 4, 3 / 16
ROOM = 2.0**16  # sums of so many of the largest numbers stay finite


def limit(dtype: torch.dtype, share: float) -> float:
    """The largest number of a type to the power of `share`; of float32 in the place of half precision."""
    return (
        torch.finfo(torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype).max
        ** share
    )


def clamp_finite(x: Tensor, share: float) -> Tensor:
    """`x` with numbers beyond that limit taken for it. All of float16 are below every limit."""
    most = limit(x.dtype, share)
    return x if x.dtype == torch.float16 else x.clamp(-most, most)


def einsum_fp32(equation: str, small: Tensor, votes: Tensor) -> Tensor:
    """An einsum that stays finite for votes of any size: in units of 2^16, which changes no bit of ordinary numbers."""
    most = torch.finfo(votes.dtype).max / ROOM**2
    return torch.einsum(equation, small / ROOM, votes).clamp(-most, most) * ROOM


def detach_extremes(logits: Tensor) -> Tensor:
    """Logits; no gradient flows to those so large that their next neighbors are further than 1 away."""
    return torch.where(logits.abs() < limit(logits.dtype, STEADY), logits, logits.detach())


def einsum_autocast(equation: str, pose: Tensor, weight: Tensor) -> Tensor:
    """The products of an einsum of poses and weights, in the type of the weight; float16 is multiplied in float32."""
    check_floating(pose=pose, weight=weight)
    pose, weight = clamp_finite(pose.to(weight.dtype), FACTOR), clamp_finite(weight, FACTOR)
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
