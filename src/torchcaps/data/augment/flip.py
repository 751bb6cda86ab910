"""The augmentation "flip": images mirrored left to right.

Masks of the images are mirrored with them (`moves`). `FlipSettings` has the setting of
a run that switches it on.
"""

from dataclasses import dataclass

import torch
from torch import Generator

from torchcaps.data.augment._registry import AXES, MOVED, Images, register_augmentation
from torchcaps.data.augment.random import uniform
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting


@dataclass(frozen=True)
class FlipSettings:
    """Whether images are mirrored."""

    flip: bool = setting(False, "mirror half of the images")


def random_horizontal_flip(
    images: Images, probability: float = 0.5, *, generator: Generator
) -> Images:
    """Mirror images left to right.

    Args:
        images: `[batch, channels, height, width]`.
        probability: share of the images that are mirrored, in [0, 1].
        generator: draws which images are mirrored.

    Returns:
        The images, some of them mirrored.
    """
    check_shape("images", images, AXES)
    check_range("probability", probability, low=0, high=1)
    # A number in [0, 1) for each image, on its device.
    numbers = uniform((len(images), 1, 1, 1), 0, 1, images, generator)
    is_mirrored = numbers < probability
    return torch.where(is_mirrored, images.flip(-1), images)


@register_augmentation("flip", FlipSettings, moves=MOVED, order=20)
def _apply(images: Images, _settings: FlipSettings, generator: Generator) -> Images:
    return random_horizontal_flip(images, generator=generator)
