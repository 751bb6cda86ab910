"""Pictures as the page has them: bytes `[channels, height, width]`.

They are read from a file, moved, and laid over one another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from jaxtyping import UInt8
from torch import Tensor

from torchcaps.data import Preprocess, decode_image
from torchcaps.data.images import opened
from torchcaps.errors import DataError, check_known, check_range, check_shape
from torchcaps.evaluation import transform_images

MAX_PIXELS = 16_000_000  # of an image file
AXES = ("channels", "height", "width")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

Picture = UInt8[Tensor, "channels height width"]


@dataclass(frozen=True)
class Motion:
    """A change of an image about its center: resized, then turned, then moved.

    Attributes:
        degrees: of the rotation, clockwise.
        scale: factor of its size.
        right: pixels by which it is moved to the right.
        down: pixels by which it is moved down.
        changing: name of the amount that a sweep changes.
        LIMITS: range of each amount.

    Raises:
        ValueError: for an amount out of range, or another name.
    """

    degrees: float = 0.0
    scale: float = 1.0
    right: float = 0.0
    down: float = 0.0
    changing: str = "degrees"
    LIMITS: ClassVar = {
        "degrees": (-180, 180),
        "scale": (0.25, 4),
        "right": (-512, 512),
        "down": (-512, 512),
    }

    def __post_init__(self) -> None:
        for name, (low, high) in self.LIMITS.items():
            check_range(name, getattr(self, name), low=float(low), high=float(high))
        check_known("motion", self.changing, self.LIMITS)

    def at(self, value: float) -> Self:
        """The same motion with another amount of what changes."""
        return replace(self, **cast(Any, {self.changing: value}))


def read_picture(file: bytes, preprocess: Preprocess) -> Picture:
    """Decode an image file for a model; gray, in every channel, unless the model takes 1 or 3.

    Args:
        file: its bytes.
        preprocess: of the model.

    Raises:
        DataError: for what is no image of the kinds in `FORMATS`, or has more than `MAX_PIXELS`.
    """
    with opened(file, "image") as image:  # its header alone: nothing is decoded yet
        if image.format not in FORMATS:
            raise DataError(f"expected {', '.join(FORMATS)}, got {image.format}")
        if image.width * image.height > MAX_PIXELS:
            size = f"{image.width} × {image.height}"
            raise DataError(f"expected at most {MAX_PIXELS:,} pixels, got {size}")
    channels = preprocess.in_chans
    file_channels = channels if channels in (1, 3) else 1
    pixels = decode_image(file, preprocess.img_size, file_channels, name="image")
    return preprocess.finish(pixels.expand(channels, -1, -1).unsqueeze(0))[0].contiguous()


def move(image: Picture, motion: Motion | None) -> Picture:
    """The image after this motion; black comes in from outside."""
    if motion is None:
        return image
    pixels = transform_images(
        image.unsqueeze(0).float(),
        rotation=motion.degrees,
        scale=100 * motion.scale,
        shift=(motion.right, motion.down),
    )
    return pixels[0].round().clamp(0, 255).to(image.dtype)


def overlay(first: Picture, second: Picture, right: float = 0, down: float = 0) -> Picture:
    """The sum of two images, at most white.

    Args:
        first: an image.
        second: another one, of the same shape.
        right: pixels by which the second is moved to the right.
        down: pixels by which the second is moved down.

    Raises:
        ValueError: for images of unequal shapes, or a move that is too large.
    """
    sizes = dict(zip(AXES, first.shape, strict=True))
    check_shape("second", second, AXES, **sizes)
    second = move(second, Motion(right=right, down=down))
    brightness = first.int() + second.int()
    return brightness.clamp(max=255).to(torch.uint8)
