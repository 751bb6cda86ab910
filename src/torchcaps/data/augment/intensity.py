"""Augmentations that change the values of pixels: strokes, and brightness and contrast."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data.augment.spatial import uniform
from torchcaps.data.augment.transforms import register_augmentation
from torchcaps.data.pixels import Images
from torchcaps.groups import setting
from torchcaps.transfer import to_device

BRIGHTNESS = 63 / 255  # largest number that is added, either way
CONTRAST = (0.2, 1.8)  # smallest and largest factor


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
    padded = F.pad(images, (0, 1, 0, 1))
    squares = padded.unfold(2, 2, 1).unfold(3, 2, 1)
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
