"""Affine poses as six numbers: the upper two rows of a 3x3 matrix, row-major (Kosiorek and others, 1906.06818)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.functional.squash import full_precision

SMALLEST_SCALE, GAIN = 0.01, 5.0


def affine_pose(raw: Float[Tensor, "*batch 6"]) -> Float[Tensor, "*batch 6"]:
    """Any six numbers (widths, angle, shear, place) as the upper two rows of an affine matrix, row-major.

    Widths are `sigmoid + 0.01`, the angle is in turns, shear and place are `tanh(5 x)`.
    """
    sx, sy, turn, shear, tx, ty = full_precision(raw).unbind(-1)
    sx, sy = sx.sigmoid() + SMALLEST_SCALE, sy.sigmoid() + SMALLEST_SCALE
    cos, sin = (2 * math.pi * turn).cos(), (2 * math.pi * turn).sin()
    shear, tx, ty = ((GAIN * value).tanh() for value in (shear, tx, ty))
    rows = (sx * cos + shear * sy * sin, -sx * sin + shear * sy * cos, tx, sy * sin, sy * cos, ty)
    return torch.stack(rows, dim=-1)


def composed(
    outer: Float[Tensor, "*batch 6"], inner: Float[Tensor, "*batch 6"]
) -> Float[Tensor, "*batch 6"]:
    """`outer inner` of affine poses: the upper two rows of the product of their 3x3 matrices."""
    a, b = outer.unflatten(-1, (2, 3)), inner.unflatten(-1, (2, 3))
    product = a[..., :2] @ b
    return torch.cat([product[..., :2], product[..., 2:] + a[..., 2:]], dim=-1).flatten(-2)


def inverse(pose: Float[Tensor, "*batch 6"]) -> Float[Tensor, "*batch 6"]:
    """The affine pose that undoes this one, whose determinant is not zero."""
    a, b, x, c, d, y = pose.unbind(-1)
    determinant = a * d - b * c
    a, b, c, d = d / determinant, -b / determinant, -c / determinant, a / determinant
    return torch.stack([a, b, -(a * x + b * y), c, d, -(c * x + d * y)], dim=-1)
