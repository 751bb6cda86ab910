"""Rotation, size, shear and width in one sampling."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data.augment._registry import AXES, Images, register_augmentation
from torchcaps.data.augment.random import uniform
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting


@dataclass(frozen=True)
class AffineSettings:
    """How far an image is turned, resized, sheared and narrowed."""

    degrees: float | None = setting(
        None, "largest rotation either way; by default that of the task", low=0
    )
    zoom: float | None = setting(
        None,
        "largest change of size either way, as a fraction; by default that of the task",
        low=0,
        high=0.9,
    )
    shear: float | None = setting(
        None,
        "largest shear either way, pixels to the side for each down; by default that of the task",
        low=0,
    )
    aspect: float = setting(0.0, "largest share of its width that an image loses", low=0, high=0.9)


def affine(
    images: Images,
    *,
    degrees: float = 0.0,
    scale: tuple[float, float] = (1.0, 1.0),
    shear: float = 0.0,
    translate: float = 0.0,
    aspect: float = 0.0,
    generator: Generator,
) -> Images:
    """Turn, resize, shear, narrow and move each image about its center; sampled bilinearly.

    Args:
        images: of any type.
        degrees: largest rotation either way.
        scale: smallest and largest factor of size, above 0.
        shear: largest horizontal shear angle either way, in degrees below 90.
        translate: largest move either way along each axis, as a fraction of it.
        aspect: largest share of its width that an image loses before all else, below 1.
        generator: all amounts are drawn uniformly.
    """
    check_shape("images", images, AXES)
    check_range("scale", scale[0], low=1e-3, high=scale[1])
    check_range("shear", shear, low=0, high=89)
    check_range("aspect", aspect, low=0, high=0.9)
    one = (len(images),)
    turn = uniform(one, -math.radians(degrees), math.radians(degrees), images, generator)
    factor = uniform(one, *scale, images, generator)
    slant = uniform(one, -math.radians(shear), math.radians(shear), images, generator).tan()
    move = uniform((len(images), 2), -2 * translate, 2 * translate, images, generator)
    narrow = 1 - uniform(one, 0, aspect, images, generator) if aspect else 1.0

    # In the [-1, 1] coordinates of affine_grid an output point p shows the input at A⁻¹(p - move).
    ratio = images.shape[2] / images.shape[3]
    inverse = inverse_map(turn, slant, factor * narrow, factor)
    inverse = inverse * inverse.new_tensor([[1, ratio], [1 / ratio, 1]])
    theta = torch.cat([inverse, -inverse @ move.unsqueeze(-1)], dim=-1)
    pixels = images if images.is_floating_point() else images.float()
    grid = F.affine_grid(theta.to(pixels.dtype), list(images.shape), align_corners=False)
    transformed = F.grid_sample(pixels, grid, padding_mode="zeros", align_corners=False)
    if images.is_floating_point():
        return transformed
    return transformed.round().clamp(0, 255).to(images.dtype)


def inverse_map(
    turn: Tensor, shear: Tensor, scale_x: Tensor, scale_y: Tensor
) -> Float[Tensor, "batch 2 2"]:
    """Inverses of rotation · [[1, shear], [0, 1]] · diag(scales) for points (x, y), y down.

    `turn` is in radians.
    """
    cos, sin = turn.cos(), turn.sin()
    x = torch.stack([cos + shear * sin, sin - shear * cos], dim=1) / scale_x[:, None]
    y = torch.stack([-sin, cos], dim=1) / scale_y[:, None]
    return torch.stack([x, y], dim=1)


@register_augmentation("affine", AffineSettings, moves_pixels=True, order=40)
def _apply(images: Images, settings: AffineSettings, generator: Generator) -> Images:
    zoom = settings.zoom or 0.0
    return affine(
        images,
        degrees=settings.degrees or 0.0,
        scale=(1 - zoom, 1 + zoom),
        shear=math.degrees(math.atan(settings.shear or 0.0)),
        aspect=settings.aspect,
        generator=generator,
    )
