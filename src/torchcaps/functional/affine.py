"""Affine poses as six numbers: the upper two rows of a 3x3 matrix, row-major.

Source: Kosiorek, Sabour, Teh, Hinton, "Stacked Capsule Autoencoders", arXiv 1906.06818.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.functional.squash import full_precision

Poses = Float[Tensor, "*batch 6"]
MIN_SCALE = 0.01
GAIN = 5.0


def affine_pose(raw: Poses) -> Poses:
    """The affine pose that six numbers stand for.

    Args:
        raw: any numbers, `[*batch, 6]`: two scales, an angle, a shear and a translation. Scales are
            `sigmoid + 0.01`, the angle is in turns, shear and translation are `tanh(5 x)`.

    Returns:
        The upper two rows of an affine matrix, `[*batch, 6]`.
    """
    sx, sy, turns, shear, tx, ty = full_precision(raw).unbind(-1)
    sx = sx.sigmoid() + MIN_SCALE
    sy = sy.sigmoid() + MIN_SCALE
    cos = (2 * math.pi * turns).cos()
    sin = (2 * math.pi * turns).sin()
    shear = (GAIN * shear).tanh()
    tx = (GAIN * tx).tanh()
    ty = (GAIN * ty).tanh()

    elements = [
        sx * cos + shear * sy * sin,
        -sx * sin + shear * sy * cos,
        tx,
        sy * sin,
        sy * cos,
        ty,
    ]
    return torch.stack(elements, dim=-1)


def composed(outer: Poses, inner: Poses) -> Poses:
    """`outer inner` of affine poses: the upper two rows of the product of their 3x3 matrices."""
    outer = outer.unflatten(-1, (2, 3))
    product = outer[..., :2] @ inner.unflatten(-1, (2, 3))
    return torch.cat([product[..., :2], product[..., 2:] + outer[..., 2:]], dim=-1).flatten(-2)


def inverse(pose: Poses) -> Poses:
    """The affine pose that undoes this one, whose determinant is not zero."""
    a, b, x, c, d, y = pose.unbind(-1)
    determinant = a * d - b * c
    # The inverse of the 2x2 matrix, and of the translation.
    p = d / determinant
    q = -b / determinant
    r = -c / determinant
    s = a / determinant
    return torch.stack([p, q, -(p * x + q * y), r, s, -(r * x + s * y)], dim=-1)
