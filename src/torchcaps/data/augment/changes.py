"""Augmentations: those that move pixels (shift, flip, affine, erase), and those of their values.

Masks of the images are changed with them (`moves`). Each field of their settings is a setting of a
run; `setting` takes its default, its help, and the smallest and largest number. A setting of None
takes the default of the run's task, before the images are changed.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data.augment.transforms import MOVED, register_augmentation
from torchcaps.data.pixels import Images, random_crop, random_offsets
from torchcaps.errors import check_range
from torchcaps.groups import setting
from torchcaps.transfer import to_device

# Of `color_jitter`.
BRIGHTNESS = 63 / 255  # largest number that is added, either way
CONTRAST = (0.2, 1.8)  # smallest and largest factor


@dataclass(frozen=True)
class ShiftSettings:
    """How far an image is moved."""

    shift: int | None = setting(
        None,
        "largest shift in pixels along each axis, zeros come in; by default that of the task, and 2 "
        "where a model is trained by its name alone",
        low=0,
    )


@register_augmentation("shift", ShiftSettings, moves=MOVED, order=10)
def shift(images: Images, settings: ShiftSettings, generator: Generator) -> Images:
    """Move each image by whole pixels, uniformly along each axis; zeros come in."""
    # A window of the old size, at a random place of the image with a margin of zeros.
    height, width = images.shape[2:]
    padded = F.pad(images, (settings.shift or 0,) * 4)
    return random_crop(padded, (height, width), generator=generator)


@dataclass(frozen=True)
class FlipSettings:
    """Whether images are mirrored."""

    flip: bool = setting(False, "mirror half of the images")


@register_augmentation("flip", FlipSettings, moves=MOVED, order=20)
def flip(images: Images, _settings: FlipSettings, generator: Generator) -> Images:
    """Mirror half of the images left to right."""
    # A number in [0, 1) for each image, on its device.
    numbers = uniform((len(images), 1, 1, 1), 0, 1, images, generator)
    return torch.where(numbers < 0.5, images.flip(-1), images)


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


@register_augmentation("affine", AffineSettings, moves=MOVED, order=40)
def affine(images: Images, settings: AffineSettings, generator: Generator) -> Images:
    """Narrow, resize, shear and turn each image, in this order, about its center.

    Pixels are sampled bilinearly; what comes in from outside is 0.

    Args:
        images: `[batch, channels, height, width]`, of any type.
        settings: the largest amounts.
        generator: draws all amounts uniformly, for each image; the shear as an angle.

    Returns:
        The transformed images, of the same shape and type.
    """
    # The amounts of each image, [batch], in [low, high) and on the device of the images.
    batch = len(images)
    largest_turn = math.radians(settings.degrees or 0.0)
    turn = uniform((batch,), -largest_turn, largest_turn, images, generator)
    zoom = settings.zoom or 0.0
    factor = uniform((batch,), 1 - zoom, 1 + zoom, images, generator)
    largest_angle = math.atan(settings.shear or 0.0)
    slope = uniform((batch,), -largest_angle, largest_angle, images, generator).tan()
    # Moves of 0, [batch, 2]: the numbers after them stay those that a seed always gave.
    move = uniform((batch, 2), 0, 0, images, generator)
    aspect = settings.aspect
    width_factor = 1 - uniform((batch,), 0, aspect, images, generator) if aspect else 1.0

    # The output at a point p shows the input at A⁻¹p.
    inverse = inverse_map(turn, slope, factor * width_factor, factor)
    # From pixels to the coordinates of affine_grid, in which both sides have equal lengths.
    ratio = images.shape[2] / images.shape[3]
    inverse = inverse * to_device(torch.tensor([[1, ratio], [1 / ratio, 1]]), inverse)
    theta = torch.cat([inverse, move.unsqueeze(-1)], dim=-1)  # [batch, 2, 3]

    # Integers are sampled as floats, then rounded.
    pixels = images if images.is_floating_point() else images.float()
    grid = F.affine_grid(theta.to(pixels.dtype), list(images.shape), align_corners=False)
    transformed = F.grid_sample(pixels, grid, align_corners=False)
    if images.is_floating_point():
        return transformed
    return transformed.round().clamp(0, 255).to(images.dtype)


def inverse_map(
    turn: Tensor, shear: Tensor, scale_x: Tensor, scale_y: Tensor
) -> Float[Tensor, "batch 2 2"]:
    """Inverses of the maps A = rotation · [[1, shear], [0, 1]] · diag(scale_x, scale_y).

    They are of points (x, y), y down, so A⁻¹ = diag(scales)⁻¹ · [[1, -shear], [0, 1]] · rotationᵀ.

    Args:
        turn: `[batch]` angles of the rotation, [[cos, -sin], [sin, cos]], in radians.
        shear: `[batch]` horizontal shears, x for each y.
        scale_x: `[batch]` factors of the width.
        scale_y: `[batch]` factors of the height.
    """
    cos = turn.cos()
    sin = turn.sin()
    x = torch.column_stack([cos + shear * sin, sin - shear * cos]) / scale_x[:, None]
    y = torch.column_stack([-sin, cos]) / scale_y[:, None]
    return torch.stack([x, y], dim=1)


@dataclass(frozen=True)
class EraseSettings:
    """How much is erased."""

    erase: int = setting(
        0, "side of a square in pixels that is set to zero at a random place", low=0
    )


# The crop has order 60: a square that is erased after it lies in what the model sees.
@register_augmentation("erase", EraseSettings, moves=MOVED, order=70)
def erase(images: Images, settings: EraseSettings, generator: Generator) -> Images:
    """Set a square at a uniformly random place of each image to zero, in a copy."""
    side = settings.erase
    check_range("erase", side, low=0, high=min(images.shape[2:]))
    is_erased = []
    for length in images.shape[2:]:  # whether a pixel of the axis is in the square, [batch, length]
        start = to_device(random_offsets(len(images), length, side, generator), images.device)
        from_start = torch.arange(length, device=images.device) - start.unsqueeze(1)
        is_erased.append((from_start >= 0) & (from_start < side))
    rows, columns = is_erased
    return images.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), 0)


def uniform(
    shape: tuple[int, ...],
    low: float,
    high: float,
    like: Tensor,
    generator: Generator,
) -> Tensor:
    """Uniform numbers in [low, high).

    Args:
        shape: shape of the numbers.
        low: smallest number.
        high: limit above.
        like: a tensor, to whose device the numbers are moved.
        generator: draws them on its own device.
    """
    numbers = torch.rand(shape, generator=generator, device=generator.device)
    return to_device(low + (high - low) * numbers, like.device)


@dataclass(frozen=True)
class MorphologySettings:
    """How many images get other strokes."""

    morphology: float = setting(
        0.0,
        "share of images in which what is bright is made a pixel thicker, or thinner",
        low=0,
        high=1,
    )


# A mask is no stroke: its classes would grow into each other.
@register_augmentation("morphology", MorphologySettings, moves=("singles",), order=30)
def morphology(images: Images, settings: MorphologySettings, generator: Generator) -> Images:
    """Make strokes a pixel thicker in half of a share of the images, thinner in the other half.

    Each pixel becomes the largest, or smallest, of the 2 × 2 pixels of which it is the upper left.
    """
    # The 2 x 2 pixels at each pixel: [batch, channels, height, width, 2, 2].
    squares = F.pad(images, (0, 1, 0, 1)).unfold(2, 2, 1).unfold(3, 2, 1)
    thick = squares.amax(dim=(-2, -1))
    thin = squares.amin(dim=(-2, -1))

    # A number in [0, 1) for each image decides which one it becomes.
    share = settings.morphology
    numbers = uniform((len(images), 1, 1, 1), 0, 1, images, generator)
    thin_or_same = torch.where(numbers < share, thin, images)
    return torch.where(numbers < share / 2, thick, thin_or_same)


@dataclass(frozen=True)
class ColorJitterSettings:
    """Whether brightness and contrast vary."""

    color_jitter: bool = setting(
        False, "vary brightness and contrast as in the smallNORB experiments"
    )


@register_augmentation("color_jitter", ColorJitterSettings, moves=(), order=80)
def color_jitter(
    images: Float[Tensor, "batch channels height width"],
    _settings: ColorJitterSettings,
    generator: Generator,
) -> Float[Tensor, "batch channels height width"]:
    """Change the brightness, then the contrast, of each image at random.

    One number is added to all pixels of an image. Then its contrast changes by one factor: each
    channel is stretched about its own mean. Both are uniform, in the ranges of matrix capsules
    (Hinton, Sabour, Frosst, 2018). Values may leave [0, 1]. Models that standardize each image
    (zero mean, variance 1) take them; see `functional.standardize`.
    """
    # Two numbers in [0, 1) for each image, both [batch, 1, 1, 1].
    draws = torch.rand(2, len(images), 1, 1, 1, generator=generator, device=generator.device)
    brightness_draw, contrast_draw = to_device(draws, images)
    images = images + BRIGHTNESS * (2 * brightness_draw - 1)

    low, high = CONTRAST
    factor = low + (high - low) * contrast_draw
    channel_mean = images.mean(dim=(2, 3), keepdim=True)  # [batch, channels, 1, 1]
    return channel_mean + (images - channel_mean) * factor
