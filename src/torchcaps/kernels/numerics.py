"""What fast paths share: numbers so bounded that products stay finite, and the gradient of squash."""

from torch import Tensor

from torchcaps.functional.bounds import steady_limit
from torchcaps.functional.squash import safe_norm


def max_magnitude(x: Tensor) -> float:
    """Largest magnitude; 0 of no numbers."""
    low, high = (end.item() for end in x.aminmax()) if x.numel() else (0.0, 0.0)
    return max(-low, high)


def clamp_magnitude(x: Tensor, most: float) -> Tensor:
    """`x` with numbers beyond a bound taken for it, without a copy where there are none: to look costs less."""
    return x.clamp(-most, most) if max_magnitude(x) > most else x


def rescale(x: Tensor, most: float) -> tuple[Tensor, Tensor | None]:
    """`x` with each sample in units in which nothing is beyond a bound, and those units `[b, 1, ...]`; None for 1.

    Squash gives directions: those of huge votes are the same in any unit.
    """
    if not max_magnitude(x) > most:
        return x, None
    units = most / x.abs().amax(dim=list(range(1, x.dim())), keepdim=True).clamp(min=most)
    return x * units, units


def rescale_factors(pose: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Poses `[b, i, k]` and weights whose votes routing and its gradient can multiply, and the units of the poses."""
    most = steady_limit(weight.dtype)
    weight = clamp_magnitude(weight, most)
    pose, units = rescale(pose, most / (weight.shape[-1] * max(1.0, max_magnitude(weight))))
    return pose, weight, units


def squash_backward(s: Tensor, grad_v: Tensor, grad_length: Tensor | None) -> Tensor:
    """Gradient of s `[..., d]` from that of squash(s) and, unless None, of its length `[...]`.

    With n = |s| and g = n / (1 + n^2): v = g s, so dL/ds = g dv + g'/n <s, dv> s, where g'(n) = (g/n)^2 - g^2;
    and dlength/dn = 2 g^2 / n.
    """
    n = safe_norm(s, keepdim=True)
    g = 1.0 / (1.0 / n + n)
    unit = s / n
    along = (
        g * (g / n - g * n) * (unit * grad_v).sum(dim=-1, keepdim=True)
    )  # n g'(n): g^2 alone would underflow
    if grad_length is not None:
        along = along + 2.0 * g.square() / n * grad_length.unsqueeze(-1)
    return g * grad_v + along * unit
