"""Thicker and thinner strokes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator

from torchcaps.data.augment._registry import AXES, Images, register_augmentation
from torchcaps.data.augment.random import uniform
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting


@dataclass(frozen=True)
class MorphologySettings:
    """How many images get other strokes."""

    morphology: float = setting(
        0.0,
        "share of images in which what is bright is made a pixel thicker, or thinner",
        low=0,
        high=1,
    )


def random_morphology(images: Images, share: float, *, generator: Generator) -> Images:
    """Make what is bright a pixel thicker in half of this share of the images, thinner in as many.

    Each pixel becomes the largest, or smallest, of the 2 × 2 pixels of which it is the first.

    Args:
        images: `[batch, channels, height, width]`.
        share: of the images that are changed, in [0, 1].
        generator: which images are changed.
    """
    check_shape("images", images, AXES)
    check_range("share", share, low=0, high=1)
    chance = uniform((len(images), 1, 1, 1), 0, 1, images, generator)
    pixels = F.pad(images, (0, 1, 0, 1)).unfold(2, 2, 1).unfold(3, 2, 1)
    thick = pixels.amax(dim=(-2, -1))
    thin = pixels.amin(dim=(-2, -1))
    return torch.where(chance < share / 2, thick, torch.where(chance < share, thin, images))


# A mask is no stroke: its classes would grow into each other.
@register_augmentation(
    "morphology", MorphologySettings, moves_pixels=True, fits_masks=False, order=30
)
def _apply(images: Images, settings: MorphologySettings, generator: Generator) -> Images:
    return random_morphology(images, settings.morphology, generator=generator)
