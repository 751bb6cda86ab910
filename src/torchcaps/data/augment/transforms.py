"""All augmentations (random changes of training images) of a run, one after the other.

An `Augmentation` has a function `apply(images, settings, generator)` and says whether pixels of
other tensors move with those of the image (`moves_pixels`), whether masks may be changed so
(`fits_masks`), and its place (`order`, the lowest first). `Augmentation.configured` gives its
settings, or None where they switch it off; `Augmentation.refuse` raises an error if the settings,
other than by default, switch it on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from torchcaps.data.augment._registry import (
    AXES,
    CROP_ORDER,
    Augmentation,
    Images,
    ordered_augmentations,
)
from torchcaps.data.augment.crop import random_crop
from torchcaps.errors import ArgumentError, named_shape


class Transforms:
    """The random changes of training images that a run's settings ask for, in their order.

    Args:
        settings: those of the group "augmentation" (`TrainConfig.augmentation`).
        crop: side of the window that is cut out at a random place; None keeps whole images.
        masks: whether masks (a channel for each class) are changed with their images. An
            augmentation that they cannot follow is then left out if it is on by default.

    Raises:
        ArgumentError: a setting, other than the default, asks for one that masks cannot follow.

    Attributes:
        steps: each augmentation with its settings, in their order.
        is_checked: whether a batch has been looked at for numbers that are not finite. Only the
            first one is: on a GPU, each look waits for all work before it.
    """

    is_checked = False

    def __init__(self, settings: Any, crop: int | None = None, *, masks: bool = False) -> None:
        self.steps: list[tuple[Augmentation, Any]] = []
        if crop is not None:
            cropping = Augmentation(
                "crop",
                _crop,
                settings=object,
                moves_pixels=True,
                fits_masks=True,
                order=CROP_ORDER,
            )
            self.steps.append((cropping, crop))
        for augmentation in ordered_augmentations():
            if masks and augmentation.moves_pixels and not augmentation.fits_masks:
                augmentation.refuse(settings, "images with masks, which would not fit")
                continue
            augmentation_settings = augmentation.configured(settings)
            if augmentation_settings is not None:
                self.steps.append((augmentation, augmentation_settings))
        self.steps.sort(key=lambda step: step[0].order)

    def __call__(
        self, images: Images, generator: Generator, companions: Tensor | None = None
    ) -> tuple[Images, Tensor | None]:
        """Change each image at random.

        Args:
            images: floats in [0, 1], `[batch, channels, height, width]`.
            generator: source of the random numbers.
            companions: `[batch, any, height, width]`, tensors that belong to the images: a channel
                for each class of their masks, or the single layers that an image is composed of.
                Their pixels go where those of their image go.

        Returns:
            The images, in the memory format channels_last, which is fastest for convolutions; and
            the companions, None where there are none.

        Raises:
            ArgumentError: an augmentation, which it names, returns another shape or, for the first
                batch, a number that is not finite.
        """
        channels = images.shape[1]
        # What moves together is one tensor, so that it meets the same random numbers.
        pixels = images if companions is None else torch.cat([images, companions], dim=1)
        for augmentation, settings in self.steps:
            if augmentation.moves_pixels or companions is None:
                pixels = self._apply(augmentation, pixels, settings, generator)
            else:
                changed = self._apply(augmentation, pixels[:, :channels], settings, generator)
                pixels = torch.cat([changed, pixels[:, channels:]], dim=1)
        self.is_checked = True
        images = pixels[:, :channels].contiguous(memory_format=torch.channels_last)
        return images, None if companions is None else pixels[:, channels:]

    def _apply(
        self, augmentation: Augmentation, images: Images, settings: Any, generator: Generator
    ) -> Images:
        """The images changed by an augmentation; ArgumentError where it returns something else."""
        changed = augmentation.apply(images, settings, generator)
        shape = changed.shape if isinstance(changed, Tensor) else type(changed).__name__
        if shape != images.shape and augmentation.apply is not _crop:
            expected = named_shape(AXES, images.shape)
            raise ArgumentError(augmentation.name, f"expected it to return {expected}, got {shape}")
        if not self.is_checked and not changed.isfinite().all():
            raise ArgumentError(augmentation.name, "expected it to return finite numbers")
        return changed.to(images)

    def append(self, function: Callable[[Images, Generator], Images]) -> None:
        """Apply a function (images, generator) to images after all augmentations.

        Companions stay as they are.

        Args:
            function: of images and a generator; it returns as many images of the same size.
        """

        def apply(images: Images, _settings: None, generator: Generator) -> Images:
            return function(images, generator)

        augmentation = Augmentation(
            "transform",
            apply,
            settings=object,
            moves_pixels=False,
            fits_masks=True,
            order=math.inf,
        )
        self.steps.append((augmentation, None))


def _crop(images: Images, side: int, generator: Generator) -> Images:
    """The crop as an `Augmentation.apply`, whose settings are the side of the window."""
    return random_crop(images, side, generator=generator)


def refuse_augmentations(settings: Any, reason: str) -> None:
    """Refuse augmentations in a run that changes no images, such as one of sets of points.

    Args:
        settings: those of the group "augmentation" (`TrainConfig.augmentation`).
        reason: kind of data of the run; the last words of the message "expected 0 for ...".

    Raises:
        ArgumentError: a setting is on and not the default.
    """
    for augmentation in ordered_augmentations():
        augmentation.refuse(settings, reason)
