"""Brightness and contrast."""

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
    """Add one number to all pixels of an image, then stretch them about their mean; per sample.

    Args:
        images: floats in [0, 1]. Values may leave [0, 1], which `functional.standardize` corrects.
        brightness: largest number added, either way.
        contrast: smallest and largest factor, 0 or more.
        generator: both are drawn uniformly.

    The defaults are those of matrix capsules (Hinton, Sabour, Frosst, 2018).
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


@register_augmentation("color_jitter", ColorJitterSettings, moves_pixels=False, order=80)
def _apply(images: Images, _settings: ColorJitterSettings, generator: Generator) -> Images:
    return color_jitter(images, generator=generator)
