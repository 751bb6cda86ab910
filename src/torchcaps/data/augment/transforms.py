"""All augmentations of a training, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from torchcaps.data.augment._registry import (
    CROP_ORDER,
    Augmentation,
    Images,
    ordered_augmentations,
)
from torchcaps.data.augment.crop import random_crop


class Transforms:
    """The random changes of training images that a run's settings ask for, in their order.

    Args:
        settings: of the group "augmentation" (`TrainConfig.augmentation`).
        crop: side of the window that is cut out at a random place; None keeps whole images.
        masks: whether masks go along, which not every augmentation can do.

    Raises:
        ArgumentError: an augmentation is on that `masks` cannot follow.
    """

    def __init__(self, settings: Any, crop: int | None = None, *, masks: bool = False) -> None:
        self.crop = crop
        self.steps: list[tuple[Augmentation, Any]] = []
        for augmentation in ordered_augmentations():
            if masks and augmentation.moves_pixels and not augmentation.fits_masks:
                augmentation.refuse(settings, "images with masks, which would not fit")
            own_settings = augmentation.configured(settings)
            if own_settings is not None:
                self.steps.append((augmentation, own_settings))

    def __call__(
        self, images: Images, generator: Generator, companions: Tensor | None = None
    ) -> tuple[Images, Tensor | None]:
        """Change images `[batch, channels, height, width]`, floats in [0, 1], each at random.

        `companions` `[batch, more, height, width]`, such as a channel for each class of masks or the single layers of
        an image, go where the pixels of their image go. Both are returned, images in the memory format channels_last,
        which is fastest for convolutions; the companions are None where none are given.
        """
        channels = images.shape[1]
        pixels = images if companions is None else torch.cat([images, companions], dim=1)
        is_cropped = self.crop is None
        for augmentation, settings in self.steps:
            if not is_cropped and augmentation.order >= CROP_ORDER:
                pixels = self._cropped(pixels, generator)
                is_cropped = True
            if augmentation.moves_pixels or companions is None:
                pixels = augmentation.apply(pixels, settings, generator)
            else:
                changed = augmentation.apply(pixels[:, :channels], settings, generator)
                pixels = torch.cat([changed, pixels[:, channels:]], dim=1)
        if not is_cropped:
            pixels = self._cropped(pixels, generator)
        images = pixels[:, :channels].contiguous(memory_format=torch.channels_last)
        return images, None if companions is None else pixels[:, channels:]

    def append(self, function: Callable[[Images, Generator], Images]) -> None:
        """Apply a function to images after all augmentations. Companions stay as they are."""

        def apply(images: Images, _settings: None, generator: Generator) -> Images:
            return function(images, generator)

        augmentation = Augmentation("transform", apply, object, False, True, math.inf)
        self.steps.append((augmentation, None))

    def _cropped(self, pixels: Tensor, generator: Generator) -> Tensor:
        return pixels if self.crop is None else random_crop(pixels, self.crop, generator=generator)


def refuse_augmentations(settings: Any, reason: str) -> None:
    """For what is no image: ArgumentError for the first setting that is on and not the default."""
    for augmentation in ordered_augmentations():
        augmentation.refuse(settings, reason)
