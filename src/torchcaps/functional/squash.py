"""Squash, a steeper one, and norms that are safe at zero.

Source: Sabour, Frosst, Hinton, "Dynamic Routing Between Capsules", arXiv 1710.09829, equation 1.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_floating
from torchcaps.functional.bounds import full_precision as full_precision
from torchcaps.types import Capsules

# Added to |s|^2. It bounds the slope of the square root at zero to 1e4, and that of squash to 1e-4.
EPSILON = 1e-8
# The same in float64, which has the range for less: values then equal those of code without it.
DOUBLE_EPSILON = 1e-60

Vectors = Float[Tensor, "*rest"]


def safe_norm(s: Vectors, dim: int = -1, keepdim: bool = False) -> Float[Tensor, "*reduced"]:
    """Euclidean norm with a finite gradient at zero and no overflow: `sqrt(|s|^2 + 1e-8)`.

    In float64 the number that is added is 1e-60.

    Args:
        s: vectors; half precision is computed in float32.
        dim: the axis of their dimensions.
        keepdim: keep that axis.

    Returns:
        Norms of at least 1e-4; of 1e-30 in float64.

    Raises:
        ArgumentError: a tensor that is not of floating point.
    """
    check_floating(s=s)
    s = full_precision(s)
    # Squares of numbers beyond 1e19 overflow float32: divide by the largest one first.
    scale = s.detach().abs().amax(dim, keepdim=True).clamp(min=1.0)
    norm = scale * ((s / scale).square().sum(dim, keepdim=True) + _epsilon(s)).sqrt()
    if keepdim:
        return norm
    return norm.squeeze(dim)


def squash(s: Vectors, dim: int = -1) -> Vectors:
    """Shrink vectors to a length in [0, 1): `|s|^2 / (1 + |s|^2) * s / |s|`.

    Source: arXiv 1710.09829, equation 1. The gradient is finite everywhere and almost zero at zero,
    so a capsule of zeros does not learn by itself: give the layer a bias, or weights that are large
    enough.

    Args:
        s: vectors; half precision is computed and returned in float32.
        dim: the axis of a capsule's dimensions.

    Returns:
        Vectors of the same shape and direction.

    Example:
        >>> squash(torch.tensor([3.0, 4.0]))
        tensor([0.5769, 0.7692])
    """
    return squash_with_length(s, dim).pose


def squash_with_length(s: Vectors, dim: int = -1) -> Capsules:
    """`squash`, and the lengths of its vectors without a second root.

    Args:
        s: vectors of any length, with any axes.
        dim: axis of the vectors.

    Returns:
        The vectors as poses, and their lengths in [0, 1) without the axis `dim` as activations.
    """
    if _counts_launches(s):
        return Capsules._make(Squash.apply(full_precision(s), dim)[:2])
    scaled, norm, inverse_scale = _rescale(s, dim)
    # |s|^2 / (1 + |s|^2) / |s|, for vectors and norms in units of the scale.
    factor = (inverse_scale * inverse_scale / norm + norm).reciprocal()
    length = norm * factor
    return Capsules(scaled * factor, length.squeeze(dim))


def steep_squash_with_length(s: Vectors, dim: int = -1) -> Capsules:
    """Shrink vectors to a length below one: `(1 - exp(-|s|)) s / |s|`.

    Source: Efficient-CapsNet, arXiv 2101.12491. Near zero it leaves vectors as they are, so that
    short capsules keep their gradient; `squash` flattens them.

    Args:
        s: vectors of any length, with any axes.
        dim: axis of the vectors.

    Returns:
        The vectors as poses, and their lengths without the axis `dim` as activations: 1e-4 for
        zeros.

    Example:
        >>> steep_squash_with_length(torch.tensor([3.0, 4.0]))
        Capsules(pose=tensor([0.5960, 0.7946]), activation=tensor(0.9933))
    """
    scaled, norm, inverse_scale = _rescale(s, dim)
    # expm1 is exact for the shortest vectors, and exp(|s|) would overflow.
    length = -torch.expm1(norm / -inverse_scale)
    return Capsules(scaled * (length / norm), length.squeeze(dim))


class Squash(torch.autograd.Function):
    """Squash in a third of the launches, for a GPU: other roundings than in `squash_with_length`.

    With n = |s| and g = n / (1 + n^2), v = g s and its length is l = g n. In e = v / l,

        dL/ds = g (dL/dv + e ((1 - 2 l) (<e, dL/dv> + dL/dg g / l) + 2 dL/dl g^2 / l))
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """v, its length and g, which keeps the axis `dim`."""
        ctx.dim = dim
        scale = torch.linalg.vector_norm(s, math.inf, dim, keepdim=True).clamp_(min=1.0)
        scaled = s / scale
        norm = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
        norm = norm.hypot(norm.new_full((), _epsilon(s) ** 0.5))
        inverse_scale = scale.reciprocal_()
        # In units of the scale, as in `squash_with_length`.
        factor = norm.addcdiv(inverse_scale.square(), norm).reciprocal_()
        v = scaled.mul_(factor)
        length = norm.mul_(factor).squeeze(dim)
        g = factor.mul_(inverse_scale)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(v, length, g)
        return v, length, g

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        """dL/ds, of operations that have a gradient themselves."""
        grad_v, grad_length, grad_g = grads
        v, length, g = ctx.saved_tensors
        length = length.unsqueeze(ctx.dim)
        direction = v / length
        radial = None if grad_v is None else (direction * grad_v).sum(ctx.dim, keepdim=True)
        if grad_g is not None:  # in the gradient of the gradient
            along = grad_g * g / length
            radial = along if radial is None else radial + along
        if radial is not None:
            radial = radial * torch.rsub(length, 1.0, alpha=2.0)
        if grad_length is not None:
            along = 2.0 * g.square() / length * grad_length.unsqueeze(ctx.dim)
            radial = along if radial is None else radial + along
        if radial is None:
            return None, None
        if grad_v is None:
            return g * direction * radial, None
        return g * torch.addcmul(grad_v, direction, radial), None


def _rescale(s: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors in units of their largest number (at least one), where squares do not overflow.

    With n = |s| and r = n / scale, the factor n / (1 + n^2) by which squash multiplies s is
    1 / (r + 1 / (scale^2 r)) / scale.

    Returns:
        The vectors and their norms r in these units, and 1 / scale.
    """
    check_floating(s=s)
    s = full_precision(s)
    inverse_scale = s.detach().abs().amax(dim, keepdim=True).clamp(min=1.0).reciprocal()
    scaled = s * inverse_scale
    return scaled, (scaled.square().sum(dim, keepdim=True) + _epsilon(s)).sqrt(), inverse_scale


def _counts_launches(x: Tensor) -> bool:
    """Whether each operation on `x` is a launch of its own, of a GPU without a compiler."""
    return not (
        x.device.type in ("cpu", "meta") or torch.compiler.is_compiling() or is_transforming()
    )


def is_transforming() -> bool:
    """Whether a transform of `torch.func` is running."""
    # torch 2.11 to 2.15 have no public function for it.
    return torch._C._are_functorch_transforms_active()


def _epsilon(s: Tensor) -> float:
    """What is added to a squared norm of this precision."""
    return DOUBLE_EPSILON if s.dtype == torch.float64 else EPSILON
