"""The augmentation "erase": a square of zeros.

It changes masks of the images with them (`moves`). `EraseSettings` has the setting of a
run that switches it on; `setting` takes a default, a help, and the smallest number.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from torchcaps.data.augment._registry import AXES, MOVED, Images, register_augmentation
from torchcaps.data.augment.random import random_offsets
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting
from torchcaps.transfer import to_device


@dataclass(frozen=True)
class EraseSettings:
    """How much is erased."""

    erase: int = setting(
        0, "side of a square in pixels that is set to zero at a random place", low=0
    )


def random_erasing(images: Images, side: int, *, generator: Generator) -> Images:
    """Set a square of each image to zero.

    Args:
        images: `[batch, channels, height, width]`.
        side: pixels along a side of the square, 0 for none.
        generator: draws the place of each square uniformly.

    Returns:
        The changed images, a copy.
    """
    check_shape("images", images, AXES)
    check_range("side", side, low=0, high=min(images.shape[2:]))
    height, width = images.shape[2:]
    row_is_erased = _random_interval(images, height, side, generator)
    column_is_erased = _random_interval(images, width, side, generator)
    is_erased = row_is_erased.unsqueeze(2) & column_is_erased.unsqueeze(1)
    return images.masked_fill(is_erased.unsqueeze(1), 0)


def _random_interval(images: Images, length: int, side: int, generator: Generator) -> Tensor:
    """Which pixels of an axis lie in an interval of `side` pixels at a random place.

    Args:
        images: `[batch, ...]`; each gets an interval.
        length: pixels of the axis.
        side: pixels of the interval.
        generator: draws the place uniformly.

    Returns:
        Booleans `[batch, length]`.
    """
    start = random_offsets(len(images), length, side, generator)
    start = to_device(start, images.device).unsqueeze(1)  # [batch, 1]
    pixels = torch.arange(length, device=images.device)
    is_after_start = pixels >= start
    return is_after_start & (pixels < start + side)


# The crop has order 60: a square that is erased after it lies in what the model sees.
@register_augmentation("erase", EraseSettings, moves=MOVED, order=70)
def _apply(images: Images, settings: EraseSettings, generator: Generator) -> Images:
    return random_erasing(images, settings.erase, generator=generator)
