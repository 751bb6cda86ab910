"""Squash (Sabour, Frosst, Hinton 2017, arXiv 1710.09829, equation 1), a steeper one, and norms safe at zero."""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_floating

# In float32 this bounds the slope of the square root at zero to 1e4, and the slope of squash there to 1e-4.
EPSILON = 1e-8


def full_precision(x: Tensor) -> Tensor:
    """`x` in float32 where it is float16 or bfloat16, else unchanged: norms and exponentials need the bits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def safe_norm(
    s: Float[Tensor, "*rest"], dim: int = -1, keepdim: bool = False
) -> Float[Tensor, "*kept"]:
    """Euclidean norm with a finite gradient at zero and no overflow: `sqrt(|s|^2 + 1e-8)`, at least 1e-4.

    Half precision is computed in float32; `dim` is the axis of a pose's dimensions.

    ValueError for integers.
    """
    check_floating(s=s)
    s = full_precision(s)
    # Squares of values beyond 1e19 overflow float32: divide by the largest magnitude first, where it exceeds one.
    scale = s.detach().abs().amax(dim, keepdim=True).clamp(min=1.0)
    norm = scale * ((s / scale).square().sum(dim, keepdim=True) + EPSILON).sqrt()
    return norm if keepdim else norm.squeeze(dim)


def squash(s: Float[Tensor, "*rest"], dim: int = -1) -> Float[Tensor, "*rest"]:
    """Shrink vectors to a length in [0, 1), keeping their direction: `|s|^2 / (1 + |s|^2) * s / |s|`.

    Source: arXiv 1710.09829, equation 1. The gradient is finite everywhere and (almost) zero at zero, so a capsule that
    is exactly zero does not wake up by itself: give the layer a bias, or weights that are large enough. Half precision
    is computed and returned in float32; `dim` is the axis of a capsule's dimensions.

    Example:
        >>> squash(torch.tensor([3.0, 4.0]))
        tensor([0.5769, 0.7692])
    """
    return squash_with_length(s, dim)[0]


Pair = tuple[Float[Tensor, "*rest"], Float[Tensor, "*kept"]]


def squash_with_length(s: Float[Tensor, "*rest"], dim: int = -1) -> Pair:
    """Squash, and the length of the outcome, in [0, 1), without a second root; `dim` is gone from the lengths."""
    scaled, norm, inverse = _measured(s, dim)
    factor = 1.0 / (inverse * inverse / norm + norm)
    return scaled * factor, (norm * factor).squeeze(dim)


def steep_squash_with_length(s: Float[Tensor, "*rest"], dim: int = -1) -> Pair:
    """Shrink vectors to a length below one: `(1 - exp(-|s|)) s / |s|`, and that length; 1e-4 for zeros.

    Source: Efficient-CapsNet (arXiv 2101.12491). Near zero it leaves vectors as they are, so that short capsules keep
    their gradient; `squash` flattens them. Otherwise as `squash_with_length`.

    Example:
        >>> steep_squash_with_length(torch.tensor([3.0, 4.0]))
        (tensor([0.5960, 0.7946]), tensor(0.9933))
    """
    scaled, norm, inverse = _measured(s, dim)
    length = -torch.expm1(-norm / inverse)  # exact for the shortest; exp(|s|) would overflow
    return scaled * (length / norm), length.squeeze(dim)


def _measured(s: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors in units of their largest magnitude (at least one), their norms in these units, and one by the unit.

    With r = |s| / scale, the n / (1 + n^2) of squash is 1 / (r + 1 / (scale^2 r)) / scale, where nothing overflows.
    """
    check_floating(s=s)
    s = full_precision(s)
    inverse = 1.0 / s.detach().abs().amax(dim, keepdim=True).clamp(min=1.0)
    scaled = s * inverse
    return scaled, (scaled.square().sum(dim, keepdim=True) + EPSILON).sqrt(), inverse
