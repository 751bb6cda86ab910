"""The augmentation "color_jitter": brightness and contrast.

It changes images alone, not their masks (`moves`). It is among the last (`order`),
because pixels may leave [0, 1]. `ColorJitterSettings` has the setting of a run that switches it on.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data.augment._registry import AXES, Images, register_augmentation
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting


@dataclass(frozen=True)
class ColorJitterSettings:
    """Whether brightness and contrast vary."""

    color_jitter: bool = setting(
        False, "vary brightness and contrast as in the smallNORB experiments"
    )


def color_jitter(
    images: Float[Tensor, "batch channels height width"],
    *,
    brightness: float = 63 / 255,
    contrast: tuple[float, float] = (0.2, 1.8),
    generator: Generator,
) -> Float[Tensor, "batch channels height width"]:
    """Change the brightness, then the contrast, of each image at random.

    One number is added to all pixels of an image. Then its contrast changes by one factor: each
    channel is stretched about its own mean. The defaults are those of matrix capsules (Hinton,
    Sabour, Frosst, 2018).

    Args:
        images: floats in [0, 1].
        brightness: largest number added, either way.
        contrast: smallest and largest factor, 0 or more.
        generator: draws both uniformly, for each image.

    Returns:
        Floats that may leave [0, 1]. Models that standardize each image (zero mean, variance 1)
        take them; see `functional.standardize`.
    """
    check_shape("images", images, AXES)
    check_range("brightness", brightness, low=0)
    check_range("contrast", contrast[0], low=0, high=contrast[1])
    # Two numbers in [0, 1) for each image, both [batch, 1, 1, 1].
    brightness_draw, contrast_draw = torch.rand(
        2, len(images), 1, 1, 1, generator=generator, device=generator.device
    ).to(images)
    images = images + brightness * (2 * brightness_draw - 1)

    low, high = contrast
    factor = low + (high - low) * contrast_draw
    channel_mean = images.mean(dim=(2, 3), keepdim=True)  # [batch, channels, 1, 1]
    return channel_mean + (images - channel_mean) * factor


@register_augmentation("color_jitter", ColorJitterSettings, moves=(), order=80)
def _apply(images: Images, _settings: ColorJitterSettings, generator: Generator) -> Images:
    return color_jitter(images, generator=generator)
