"""Turning, resizing and moving one image by amounts that a person chose."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from jaxtyping import UInt8
from torch import Tensor

from torchcaps.errors import check_known, check_range
from torchcaps.evaluation import transform_images

LIMITS = {"degrees": (-180.0, 180.0), "scale": (0.25, 4.0), "right": (-512.0, 512.0), "down": (-512.0, 512.0)}


@dataclass(frozen=True)
class Motion:
    """A change of an image about its centre: resized, then turned clockwise, then moved by pixels.

    `LIMITS` has the range of each amount, and `changing` names the one that a sweep changes. ValueError for others.
    """

    degrees: float = 0.0
    scale: float = 1.0
    right: float = 0.0
    down: float = 0.0
    changing: str = "degrees"

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            check_range(name, getattr(self, name), low=low, high=high)
        check_known("motion", self.changing, LIMITS)

    def at(self, value: float) -> Motion:
        """The same with another amount of what changes."""
        return Motion(**(asdict(self) | {self.changing: value}))


def move(image: UInt8[Tensor, "channels height width"], motion: Motion) -> UInt8[Tensor, "channels height width"]:
    """The image `[channels, height, width]` after this motion; what comes in from outside is black."""
    how = {"rotation": motion.degrees, "scale": 100 * motion.scale}
    moved = transform_images(image.unsqueeze(0).float(), **how, shift=(motion.right, motion.down))
    return moved[0].round().clamp(0, 255).to(image.dtype)
