"""Random changes to a batch of images, each sample its own, in batched operations on the images' device.

Every function draws on its generator's device, so that a CPU generator gives the same changes whatever device the
images are on. Zero comes in from outside the picture. Each returns a new tensor of the type of its images,
`[batch, channels, height, width]`; those not said to be of floats take any type. ValueError: for other axes, or an
amount out of range.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Generator, Tensor

from torchcaps.errors import check_range, check_shape

AXES = ("batch", "channels", "height", "width")
Images = Shaped[Tensor, "batch channels height width"]


def shift(images: Images, max_shift: int = 2, *, generator: Generator) -> Images:
    """Move each image by whole pixels, drawn uniformly from -max_shift..max_shift per axis."""
    check_shape("images", images, AXES)
    check_range("max_shift", max_shift, low=0)
    return _random_windows(F.pad(images, (max_shift,) * 4), images.shape[2:], generator)


def random_crop(images: Images, size: int, *, generator: Generator) -> Images:
    """A window of `size` × `size` pixels of each image, its place drawn uniformly."""
    check_shape("images", images, AXES)
    check_range("size", size, low=1, high=min(images.shape[2:]))
    return _random_windows(images, (size, size), generator)


def _random_windows(images: Images, size: Sequence[int], generator: Generator) -> Images:
    top, left = (
        torch.randint(
            side - part + 1, (len(images),), generator=generator, device=generator.device
        ).to(images.device)
        for side, part in zip(images.shape[2:], size, strict=True)
    )
    return windows_at(images, size, top, left)


def windows_at(images: Images, size: Sequence[int], top: Tensor, left: Tensor) -> Images:
    """The window of `size` (height, width) of each image whose first pixel is at (top, left), `[batch]` each."""
    windows = images.unfold(2, size[0], 1).unfold(
        3, size[1], 1
    )  # a view, of which one window per sample is copied
    return windows[torch.arange(len(images), device=images.device), :, top, left]


def center_crop(images: Images, size: int) -> Images:
    """The middle `size` × `size` pixels of each image, a view; up and left by half a pixel where sides are odd."""
    check_shape("images", images, AXES)
    check_range("size", size, low=1, high=min(images.shape[2:]))
    top, left = ((side - size) // 2 for side in images.shape[2:])
    return images[:, :, top : top + size, left : left + size]


def random_horizontal_flip(
    images: Images, probability: float = 0.5, *, generator: Generator
) -> Images:
    """Mirror each image left to right with the given probability, in [0, 1]."""
    check_shape("images", images, AXES)
    check_range("probability", probability, low=0, high=1)
    chosen = _uniform((len(images),), 0, 1, images, generator) < probability
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)


def random_erasing(images: Images, side: int, *, generator: Generator) -> Images:
    """Set a square of `side` × `side` pixels of each image to zero, its place drawn uniformly."""
    check_shape("images", images, AXES)
    check_range("side", side, low=0, high=min(images.shape[2:]))
    rows, columns = (
        torch.arange(length, device=generator.device)
        - torch.randint(
            length - side + 1, (len(images), 1), generator=generator, device=generator.device
        )
        for length in images.shape[2:]
    )
    inside = [(along >= 0) & (along < side) for along in (rows, columns)]
    square = (inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).unsqueeze(1).to(images.device)
    return images.masked_fill(square, 0)


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
    """Turn, resize, shear, aspect and move each image about its center, by amounts drawn uniformly; sampled bilinearly.

    `degrees` is the largest rotation either way, `shear` the largest horizontal shear angle either way, below 90°;
    `scale` the smallest and largest factor of size, above 0; `translate` the largest move either way along each axis,
    as a fraction of it; `aspect` the largest share of its width that an image loses before all else, below 1.
    """
    check_shape("images", images, AXES)
    check_range("scale", scale[0], low=1e-3, high=scale[1])
    check_range("shear", shear, low=0, high=89)
    check_range("aspect", aspect, low=0, high=0.9)
    one = (len(images),)
    turn = _uniform(one, -math.radians(degrees), math.radians(degrees), images, generator)
    factor = _uniform(one, *scale, images, generator)
    slant = _uniform(one, -math.radians(shear), math.radians(shear), images, generator).tan()
    move = _uniform((len(images), 2), -2 * translate, 2 * translate, images, generator)
    narrow = 1 - _uniform(one, 0, aspect, images, generator) if aspect else 1.0
    # In the [-1, 1] coordinates of affine_grid an output point p shows the input at A⁻¹(p - move).
    aspect = images.shape[2] / images.shape[3]
    inverse = inverse_map(turn, slant, factor * narrow, factor)
    inverse = inverse * inverse.new_tensor([[1, aspect], [1 / aspect, 1]])
    theta = torch.cat([inverse, -inverse @ move.unsqueeze(-1)], dim=-1)
    pixels = images if images.is_floating_point() else images.float()
    grid = F.affine_grid(theta.to(pixels.dtype), list(images.shape), align_corners=False)
    moved = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved if images.is_floating_point() else moved.round().clamp(0, 255).to(images.dtype)


def inverse_map(
    turn: Tensor, shear: Tensor, scale_x: Tensor, scale_y: Tensor
) -> Float[Tensor, "batch 2 2"]:
    """Inverses of rotation(turn in radians) · [[1, shear], [0, 1]] · diag(scales) for points (x, y), y down."""
    cos, sin = turn.cos(), turn.sin()
    x = torch.stack([cos + shear * sin, sin - shear * cos], dim=1) / scale_x[:, None]
    y = torch.stack([-sin, cos], dim=1) / scale_y[:, None]
    return torch.stack([x, y], dim=1)


def _uniform(
    shape: tuple[int, ...], low: float, high: float, like: Tensor, generator: Generator
) -> Tensor:
    drawn = torch.rand(shape, generator=generator, device=generator.device)
    return (low + (high - low) * drawn).to(like.device)


def random_morphology(images: Images, share: float, *, generator: Generator) -> Images:
    """Make what is bright a pixel thicker in half of this share of the images, in [0, 1], and thinner in as many:
    each pixel becomes the largest, or smallest, of the 2 × 2 pixels of which it is the first."""
    check_shape("images", images, AXES)
    check_range("share", share, low=0, high=1)
    drawn = _uniform((len(images), 1, 1, 1), 0, 1, images, generator)
    pixels = F.pad(images, (0, 1, 0, 1)).unfold(2, 2, 1).unfold(3, 2, 1)
    thick, thin = pixels.amax(dim=(-2, -1)), pixels.amin(dim=(-2, -1))
    return torch.where(drawn < share / 2, thick, torch.where(drawn < share, thin, images))


def color_jitter(
    images: Float[Tensor, "batch channels height width"],
    *,
    brightness: float = 63 / 255,
    contrast: tuple[float, float] = (0.2, 1.8),
    generator: Generator,
) -> Float[Tensor, "batch channels height width"]:
    """Add to all pixels of an image, floats in [0, 1], one number, then stretch them about their mean; per sample.

    `brightness` is the largest number added, either way; `contrast` the smallest and largest factor, 0 or more. The
    defaults are those of matrix capsules (Hinton, Sabour, Frosst, 2018). Values may leave [0, 1], which
    `functional.standardize` corrects.
    """
    check_shape("images", images, AXES)
    check_range("brightness", brightness, low=0)
    check_range("contrast", contrast[0], low=0, high=contrast[1])
    added, factor = torch.rand(
        2, len(images), 1, 1, 1, generator=generator, device=generator.device
    ).to(images)
    images = images + brightness * (2 * added - 1)
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + (images - mean) * (contrast[0] + (contrast[1] - contrast[0]) * factor)
