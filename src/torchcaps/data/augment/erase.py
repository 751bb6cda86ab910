"""A square of zeros."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from torchcaps.data.augment._registry import AXES, Images, register_augmentation
from torchcaps.data.augment.random import random_offsets
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting


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
        generator: the place is drawn uniformly.
    """
    check_shape("images", images, AXES)
    check_range("side", side, low=0, high=min(images.shape[2:]))
    height, width = images.shape[2:]
    in_rows = _is_erased(images, height, side, generator)
    in_columns = _is_erased(images, width, side, generator)
    square = in_rows.unsqueeze(2) & in_columns.unsqueeze(1)
    return images.masked_fill(square.unsqueeze(1), 0)


def _is_erased(images: Images, length: int, side: int, generator: Generator) -> Tensor:
    """Which pixels along an axis lie in the square, `[batch, length]`."""
    first = random_offsets(images, length, side, generator).unsqueeze(1)
    pixels = torch.arange(length, device=images.device)
    is_behind = pixels >= first
    return is_behind & (pixels < first + side)


# After the crop, so that the square lies in what the model sees.
@register_augmentation("erase", EraseSettings, moves_pixels=True, order=70)
def _apply(images: Images, settings: EraseSettings, generator: Generator) -> Images:
    return random_erasing(images, settings.erase, generator=generator)
