"""What keeps finite numbers finite: bounds on what is multiplied, and products that half precision has no room for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchcaps.errors import check_floating

# Bounds as powers of the largest number of a type, about 2^128 in float32. Matrices and poses are multiplied to votes,
# votes with parents. EM routing squares votes and divides them by variances, which gradients do twice.
FACTOR, VOTE = 1 / 4, 1 / 2
EM_FACTOR, EM_VOTE = 3 / 16, 3 / 8


def bounded(x: Tensor, share: float) -> Tensor:
    """`x` with numbers beyond a bound taken for the bound: the largest of their type to the power of `share`."""
    if x.dtype == torch.float16:  # its largest number is below every bound
        return x
    limit = torch.finfo(x.dtype).max ** share
    return x.clamp(-limit, limit)


def multiplied(equation: str, pose: Tensor, weight: Tensor) -> Tensor:
    """The products of an einsum of poses and weights, in the type of the weight; float16 is multiplied in float32.

    Raises:
        ValueError: for tensors of other than floating point.
    """
    check_floating(pose=pose, weight=weight)
    pose, weight = bounded(pose.to(weight.dtype), FACTOR), bounded(weight, FACTOR)
    device = weight.device.type
    cast = device != "meta" and torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    if torch.float16 not in (weight.dtype, cast):
        return torch.einsum(equation, pose, weight)
    with without_autocast(weight):
        return torch.einsum(equation, pose.float(), weight.float())


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """A block in which operations on this tensor's device are of the type of what goes in."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)
