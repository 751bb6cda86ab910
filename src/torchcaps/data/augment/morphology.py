"""The augmentation "morphology": strokes (bright lines on a dark ground) made thicker or thinner.

Pixels take the values of their neighbors of the image and its singles, but masks, a channel for
each class, cannot follow (`moves`). `MorphologySettings` has the setting of a run that
switches it on.
"""

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
    """Make strokes a pixel thicker in half of this share of the images, thinner in the other half.

    Each pixel becomes the largest, or smallest, of the 2 × 2 pixels of which it is the upper left.

    Args:
        images: `[batch, channels, height, width]`.
        share: of the images that are changed, in [0, 1].
        generator: draws which images are changed.

    Returns:
        The images, some of them changed.
    """
    check_shape("images", images, AXES)
    check_range("share", share, low=0, high=1)
    # The 2 x 2 pixels at each pixel: [batch, channels, height, width, 2, 2].
    padded = F.pad(images, (0, 1, 0, 1))
    squares = padded.unfold(2, 2, 1).unfold(3, 2, 1)
    thick = squares.amax(dim=(-2, -1))
    thin = squares.amin(dim=(-2, -1))

    # A number in [0, 1) for each image decides which one it becomes.
    numbers = uniform((len(images), 1, 1, 1), 0, 1, images, generator)
    thin_or_same = torch.where(numbers < share, thin, images)
    return torch.where(numbers < share / 2, thick, thin_or_same)


# A mask is no stroke: its classes would grow into each other.
@register_augmentation("morphology", MorphologySettings, moves=("singles",), order=30)
def _apply(images: Images, settings: MorphologySettings, generator: Generator) -> Images:
    return random_morphology(images, settings.morphology, generator=generator)
