"""Turning, resizing and moving one image by amounts that a person chose."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from torchcaps.errors import UnknownNameError, check_range, check_shape

LIMITS = {"degrees": (-180.0, 180.0), "scale": (0.25, 4.0), "right": (-512.0, 512.0), "down": (-512.0, 512.0)}


@dataclass(frozen=True)
class Motion:
    """A change of an image about its centre: resized, then turned, then moved.

    Attributes:
        degrees: clockwise, from -180 to 180.
        scale: factor of size, from 0.25 to 4.
        right: pixels, from -512 to 512.
        down: pixels, from -512 to 512.
        changing: which of them a sweep changes.

    Raises:
        ValueError: for values out of range, and a name that is none of them.
    """

    degrees: float = 0.0
    scale: float = 1.0
    right: float = 0.0
    down: float = 0.0
    changing: str = "degrees"

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            check_range(name, getattr(self, name), low=low, high=high)
        if self.changing not in LIMITS:
            raise UnknownNameError("motion", self.changing, LIMITS)

    def at(self, value: float) -> Motion:
        """The same with another amount of what changes."""
        change: dict[str, Any] = {self.changing: value}
        return replace(self, **change)


def move(image: UInt8[Tensor, "channels height width"], motion: Motion) -> UInt8[Tensor, "channels height width"]:
    """The image after this motion, sampled bilinearly once; what comes in from outside is black.

    Args:
        image: `[channels, height, width]`.
        motion: how far.
    """
    check_shape("image", image, ("channels", "height", "width"))
    height, width = image.shape[1:]
    turn = math.radians(motion.degrees)
    cos, sin = math.cos(turn) / motion.scale, math.sin(turn) / motion.scale
    down = torch.arange(height).sub((height - 1) / 2 + motion.down).unsqueeze(1)
    right = torch.arange(width).sub((width - 1) / 2 + motion.right).unsqueeze(0)
    # Where each pixel comes from, in pixels from the centre, then in the [-1, 1] of grid_sample.
    x, y = cos * right + sin * down, cos * down - sin * right
    grid = torch.stack([x * (2 / width), y * (2 / height)], dim=-1).unsqueeze(0)
    moved = F.grid_sample(image.unsqueeze(0).float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved[0].round().clamp(0, 255).to(torch.uint8)
