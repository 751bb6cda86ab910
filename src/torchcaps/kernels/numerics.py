"""Bounds that keep products of huge numbers finite, and the gradient of squash.

A vote is the product of a pose and a weight. Routing multiplies votes with each other, and its
gradient does so again. Fast paths bound poses and weights before, so that nothing overflows;
numbers of ordinary size stay as they are. The limits are those of `functional.bounds`.
"""

import math

import torch
from torch import Tensor

from torchcaps.functional.bounds import gradient_limit
from torchcaps.functional.squash import safe_norm


def max_magnitude(x: Tensor) -> float:
    """Largest magnitude of a tensor; 0 if it has no elements."""
    if x.numel() == 0:
        return 0.0
    low, high = x.aminmax()
    return max(-low.item(), high.item())


def clamp_magnitude(x: Tensor, limit: float) -> Tensor:
    """`x` clamped to magnitudes up to a limit; on a CPU no copy where none is beyond it.

    On other devices a look at the numbers would make the host wait.
    """
    if x.device.type != "cpu" or max_magnitude(x) > limit:
        return x.clamp(-limit, limit)
    return x


def rescale_samples(x: Tensor, limit: float | Tensor) -> tuple[Tensor, Tensor | None]:
    """Scale each sample of `x` so that no magnitude is beyond a limit.

    Squash gives directions: those of huge votes are the same at any scale.

    Args:
        x: `[b, ...]`, b samples.
        limit: largest magnitude.

    Returns:
        The samples, and the factor of each, `[b, 1, ...]`; None where no sample was scaled, which
        only a CPU looks for.
    """
    if x.numel() == 0 or (x.device.type == "cpu" and not max_magnitude(x) > limit):  # nor is NaN
        return x, None
    all_but_samples = list(range(1, x.dim()))
    magnitudes = x.abs().amax(dim=all_but_samples, keepdim=True)
    scale = limit / magnitudes.clamp(min=limit)
    return x * scale, scale


def bound_factors(pose: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Bound the two factors of votes so that routing and its gradient can multiply the votes.

    Args:
        pose: poses of children `[b, i, k]`: samples, children, dimensions.
        weight: `[i, j, d, k]` for parents j of d dimensions; a vote is a sum of k products.

    Returns:
        The poses and the weights, and the factor by which the poses of each sample were scaled,
        `[b, 1, 1]`; None where none was.
    """
    limit = gradient_limit(weight.dtype)
    weight = clamp_magnitude(weight, limit)
    largest = torch.linalg.vector_norm(weight.detach(), math.inf).clamp(min=1.0)
    pose, scale = rescale_samples(pose, limit / (weight.shape[-1] * largest))
    return pose, weight, scale


def squash_backward(s: Tensor, grad_v: Tensor, grad_length: Tensor | None) -> Tensor:
    """Gradient of a loss L with respect to s, from that of v = squash(s) and of the length |v|.

    With n = |s| and g = n / (1 + n^2), v = g s and |v| = g n (arXiv 1710.09829, equation 1). So

        dL/ds = g dL/dv + (n g'(n) <s/n, dL/dv> + (g n)'(n) dL/d|v|) s/n

    where n g'(n) = g (g/n - g n) and (g n)'(n) = 2 g^2 / n.

    Args:
        s: vectors `[..., d]`.
        grad_v: dL/dv `[..., d]`.
        grad_length: dL/d|v| `[...]`, or None if the loss does not depend on it.

    Returns:
        dL/ds `[..., d]`.
    """
    n = safe_norm(s, keepdim=True)
    g = (n.reciprocal() + n).reciprocal()
    unit = s / n
    slope = g * (g / n - g * n)  # n g'(n), in a form where g^2 does not underflow
    radial = slope * (unit * grad_v).sum(dim=-1, keepdim=True)
    if grad_length is not None:
        length_slope = 2.0 * g.square() / n
        radial = radial + length_slope * grad_length.unsqueeze(-1)
    return g * grad_v + radial * unit
