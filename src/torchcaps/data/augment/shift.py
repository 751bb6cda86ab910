"""The augmentation "shift": moves by whole pixels.

Masks of the images are moved with them (`moves`). `ShiftSettings` has the setting of a run;
`setting` takes a default, a help, and the smallest number.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Generator

from torchcaps.data.augment._registry import AXES, MOVED, Images, register_augmentation
from torchcaps.data.augment.crop import random_windows
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting


@dataclass(frozen=True)
class ShiftSettings:
    """How far an image is moved."""

    shift: int | None = setting(
        None,
        "largest shift in pixels along each axis, zeros come in; by default that of the task, and 2 "
        "where a model is trained by its name alone",
        low=0,
    )


def shift(images: Images, max_shift: int = 2, *, generator: Generator) -> Images:
    """Move each image by whole pixels; zeros come in.

    Args:
        images: `[batch, channels, height, width]`.
        max_shift: largest move in pixels, either way along each axis.
        generator: draws both moves of each image uniformly.

    Returns:
        The moved images, with zeros where nothing was.
    """
    check_shape("images", images, AXES)
    check_range("max_shift", max_shift, low=0)
    # A window of the old size, at a random place of the image with a margin of zeros.
    padded = F.pad(images, (max_shift,) * 4)
    return random_windows(padded, images.shape[2:], generator)


@register_augmentation("shift", ShiftSettings, moves=MOVED, order=10)
def _apply(images: Images, settings: ShiftSettings, generator: Generator) -> Images:
    return shift(images, settings.shift or 0, generator=generator)
