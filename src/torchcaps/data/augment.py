"""Random changes to a batch of images, each sample its own, in batched operations on the images' device.

Every function draws from the generator it is given, on that generator's device, so that a CPU generator gives the
same changes whatever device the images are on. Zero fills what comes in from outside the picture.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Generator, Tensor

from torchcaps.errors import check_range, check_shape

AXES = ("batch", "channels", "height", "width")
Images = Shaped[Tensor, "batch channels height width"]


def shift(images: Images, max_shift: int = 2, *, generator: Generator) -> Images:
    """Move each image by whole pixels, drawn uniformly from -max_shift..max_shift per axis.

    Args:
        images: `[batch, channels, height, width]`, any type.
        max_shift: in pixels, 0 or more.
        generator: where the moves are drawn from.

    Returns:
        A new tensor of the same shape and type.
    """
    check_shape("images", images, AXES)
    check_range("max_shift", max_shift, low=0)
    _, _, height, width = images.shape
    moves = torch.randint(2 * max_shift + 1, (2, len(images)), generator=generator, device=generator.device)
    down, right = moves.to(images.device)
    # Every shifted copy is a window of the padded image: a view, of which one per sample is copied.
    windows = F.pad(images, (max_shift,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=images.device), :, down, right]


def flip(images: Images, probability: float = 0.5, *, generator: Generator) -> Images:
    """Mirror each image left to right with the given probability.

    Args:
        images: `[batch, channels, height, width]`, any type.
        probability: in [0, 1].
        generator: where the choices are drawn from.

    Returns:
        A new tensor of the same shape and type.
    """
    check_shape("images", images, AXES)
    check_range("probability", probability, low=0, high=1)
    chosen = _uniform((len(images),), 0, 1, images, generator) < probability
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)


def affine(
    images: Images,
    *,
    degrees: float = 0.0,
    scale: tuple[float, float] = (1.0, 1.0),
    shear: float = 0.0,
    translate: float = 0.0,
    generator: Generator,
) -> Images:
    """Turn, resize, shear and move each image about its centre, by amounts drawn uniformly per sample.

    Args:
        images: `[batch, channels, height, width]`, uint8 or floating.
        degrees: largest rotation either way, in degrees.
        scale: smallest and largest factor of size, above 0; 2 makes the content twice as large.
        shear: largest horizontal shear angle either way, in degrees, below 90.
        translate: largest move either way along each axis, as a fraction of that axis.
        generator: where the amounts are drawn from.

    Returns:
        A new tensor of the same shape and type, sampled bilinearly.
    """
    check_shape("images", images, AXES)
    check_range("scale", scale[0], low=1e-3, high=scale[1])
    check_range("shear", shear, low=0, high=89)
    one = (len(images),)
    turn = _uniform(one, -math.radians(degrees), math.radians(degrees), images, generator)
    factor = _uniform(one, *scale, images, generator)
    slant = _uniform(one, -math.radians(shear), math.radians(shear), images, generator).tan()
    move = _uniform((len(images), 2), -2 * translate, 2 * translate, images, generator)
    theta = _inverse_maps(turn, factor, slant, move, images.shape[2] / images.shape[3])
    pixels = images if images.is_floating_point() else images.float()
    grid = F.affine_grid(theta.to(pixels.dtype), list(images.shape), align_corners=False)
    moved = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved if images.is_floating_point() else moved.round().clamp(0, 255).to(images.dtype)


def _uniform(shape: tuple[int, ...], low: float, high: float, like: Tensor, generator: Generator) -> Tensor:
    drawn = torch.rand(shape, generator=generator, device=generator.device)
    return (low + (high - low) * drawn).to(like.device)


def _inverse_maps(
    turn: Tensor, factor: Tensor, slant: Tensor, move: Tensor, aspect: float
) -> Float[Tensor, "batch 2 3"]:
    """Where each output point comes from, in the [-1, 1] coordinates of affine_grid.

    An output point p shows the input at A⁻¹(p - move), A = factor · rotation(turn) · [[1, slant], [0, 1]] in pixels.
    """
    cos, sin = turn.cos() / factor, turn.sin() / factor
    # rows of A⁻¹ = [[1, -slant], [0, 1]] · [[cos, sin], [-sin, cos]]; aspect = height / width turns pixels to [-1, 1]
    inverse = torch.stack(
        [
            torch.stack([cos + slant * sin, (sin - slant * cos) * aspect], dim=-1),
            torch.stack([-sin / aspect, cos], dim=-1),
        ],
        dim=-2,
    )
    return torch.cat([inverse, -inverse @ move.unsqueeze(-1)], dim=-1)
