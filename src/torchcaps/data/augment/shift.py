"""Shifts by whole pixels."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Generator

from torchcaps.data.augment._registry import AXES, Images, register_augmentation
from torchcaps.data.augment.crop import random_windows
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting


@dataclass(frozen=True)
class ShiftSettings:
    """How far an image is moved."""

    shift: int = setting(2, "largest shift in pixels along each axis, zeros come in", low=0)


def shift(images: Images, max_shift: int = 2, *, generator: Generator) -> Images:
    """Move each image by whole pixels.

    Args:
        images: `[batch, channels, height, width]`.
        max_shift: the largest move along each axis.
        generator: the move is drawn uniformly from -max_shift..max_shift per axis.
    """
    check_shape("images", images, AXES)
    check_range("max_shift", max_shift, low=0)
    padded = F.pad(images, (max_shift,) * 4)
    return random_windows(padded, images.shape[2:], generator)


@register_augmentation("shift", ShiftSettings, moves_pixels=True, order=10)
def _apply(images: Images, settings: ShiftSettings, generator: Generator) -> Images:
    return shift(images, settings.shift, generator=generator)
