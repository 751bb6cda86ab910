"""Bounds that keep finite numbers finite, and products that half precision has no room for.

Routing multiplies votes with each other and with couplings, and gradients do so again. Poses,
weights and votes are clamped to magnitudes whose products do not overflow: far beyond those of any
network that trains, so that no bit of ordinary numbers changes.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchcaps.errors import check_floating

# Number of summands whose sum stays finite, if they are bounded by the largest number over it.
ROOM = 2.0**16


def full_precision(x: Tensor) -> Tensor:
    """`x` in float32 where it is float16 or bfloat16: norms and exponentials need the bits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def factor_limit(dtype: torch.dtype) -> float:
    """Largest magnitude of a number that multiplies votes: 2^32 in float32, 2^256 in float64.

    A product of four such numbers is finite. Half precision has the limit of float32.
    """
    return _largest(dtype) ** (1 / 4)


def gradient_limit(dtype: torch.dtype) -> float:
    """Largest magnitude of a number that the gradients of several passes multiply: 2^24 in float32.

    Beyond it, numbers of that type have no fractions.
    """
    return _largest(dtype) ** (3 / 16)


def _largest(dtype: torch.dtype) -> float:
    """Largest finite number of a type; that of float32 for half precision."""
    is_half = dtype in (torch.float16, torch.bfloat16)
    return torch.finfo(torch.float32 if is_half else dtype).max


def clamp_finite(x: Tensor, limit: Callable[[torch.dtype], float]) -> Tensor:
    """Clamp numbers to the limit of their type; all numbers of float16 are below every limit.

    Args:
        x: numbers.
        limit: `factor_limit` or `gradient_limit`.
    """
    bound = limit(x.dtype)
    if x.dtype == torch.float16:
        return x
    if torch.compiler.is_compiling():  # a graph of torch expects another layout of that gradient
        return x.clamp(-bound, bound)
    return torch.nn.functional.hardtanh(x, -bound, bound)  # a clamp whose gradient is one operation


def einsum_fp32(equation: str, coefficients: Tensor, votes: Tensor) -> Tensor:
    """Sum votes, weighted by coefficients up to 1, so that the sums stay finite for any votes.

    It computes in units of 2^16, which changes no bit of ordinary numbers.

    Args:
        equation: of `torch.einsum`, for coefficients and votes.
        coefficients: such as couplings.
        votes: in float32 or float64.
    """
    bound = torch.finfo(votes.dtype).max / ROOM**2
    return torch.einsum(equation, coefficients / ROOM, votes).clamp(-bound, bound) * ROOM


def detach_extremes(logits: Tensor) -> Tensor:
    """Cut the gradient of logits so large that neighboring numbers are more than 1 apart."""
    return torch.where(logits.abs() < gradient_limit(logits.dtype), logits, logits.detach())


def einsum_autocast(equation: str, pose: Tensor, weight: Tensor) -> Tensor:
    """Multiply poses and weights in the type of the weight or of the autocast.

    float16 has no room for the products: they are computed in float32 then.

    Args:
        equation: of `torch.einsum`, for the pose and the weight.
        pose: poses of capsules.
        weight: matrices that make votes of them.

    Raises:
        ArgumentError: a tensor is not of floating point.
    """
    check_floating(pose=pose, weight=weight)
    pose = clamp_finite(pose.to(weight.dtype), factor_limit)
    weight = clamp_finite(weight, factor_limit)
    if torch.float16 not in (weight.dtype, autocast_dtype(weight)):
        return torch.einsum(equation, pose, weight)
    with without_autocast(weight):
        return torch.einsum(equation, pose.float(), weight.float())


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Type of matrix products under the autocast of this tensor's device; None without autocast."""
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Context without autocast on this tensor's device: operations keep the types of inputs."""
    if autocast_dtype(x) is None:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)
