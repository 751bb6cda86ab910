"""What fast paths share: bounds that keep products finite, and the gradient of squash."""

from torch import Tensor

from torchcaps.functional.bounds import steady_limit
from torchcaps.functional.squash import safe_norm


def max_magnitude(x: Tensor) -> float:
    """Largest magnitude of a tensor; 0 if it has no elements."""
    if x.numel() == 0:
        return 0.0
    low, high = x.aminmax()
    return max(-low.item(), high.item())


def clamp_magnitude(x: Tensor, limit: float) -> Tensor:
    """`x` clamped to magnitudes up to a limit; no copy where none is beyond it."""
    return x.clamp(-limit, limit) if max_magnitude(x) > limit else x


def rescale(x: Tensor, limit: float) -> tuple[Tensor, Tensor | None]:
    """Scale each sample so that no magnitude is beyond a limit.

    Squash gives directions: those of huge votes are the same at any scale.

    Returns:
        The samples, and the factor of each, `[b, 1, ...]`; None where all are 1.
    """
    if not max_magnitude(x) > limit:
        return x, None
    largest = x.abs().amax(dim=list(range(1, x.dim())), keepdim=True)
    scale = limit / largest.clamp(min=limit)
    return x * scale, scale


def rescale_factors(pose: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Bound poses `[b, i, k]` and weights so that routing and its gradient can multiply the votes.

    Returns:
        Poses, weights, and the factor of each sample's poses; see `rescale`.
    """
    limit = steady_limit(weight.dtype)
    weight = clamp_magnitude(weight, limit)
    pose, scale = rescale(pose, limit / (weight.shape[-1] * max(1.0, max_magnitude(weight))))
    return pose, weight, scale


def squash_backward(s: Tensor, grad_v: Tensor, grad_length: Tensor | None) -> Tensor:
    """Gradient of s `[..., d]` from that of v = squash(s) and, unless None, of its length `[...]`.

    With n = |s| and g = n / (1 + n^2): v = g s, so dL/ds = g dL/dv + g'/n <s, dL/dv> s, where
    g'(n) = (g/n)^2 - g^2. Of the length, g n, the derivative is 2 g^2 / n.
    """
    n = safe_norm(s, keepdim=True)
    g = 1.0 / (1.0 / n + n)
    unit = s / n
    # n g'(n); g^2 alone would underflow.
    slope = g * (g / n - g * n)
    along = slope * (unit * grad_v).sum(dim=-1, keepdim=True)
    if grad_length is not None:
        along = along + 2.0 * g.square() / n * grad_length.unsqueeze(-1)
    return g * grad_v + along * unit
