"""All augmentations (random changes of training images) of a run, one after the other.

An `Augmentation` has a function `apply(images, settings, generator)` and says which targets move
with the image (`moves`), and its place (`order`, the lowest first). `Augmentation.configured` gives
its settings, or None where they switch it off; `Augmentation.refuse` raises an error if the
settings, other than by default, switch it on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from torchcaps.data.augment._registry import (
    AXES,
    CROP_ORDER,
    MOVED,
    Augmentation,
    Images,
    ordered_augmentations,
)
from torchcaps.data.augment.crop import random_crop
from torchcaps.data.types import Batch
from torchcaps.errors import ArgumentError, named_shape


class Transforms:
    """The random changes of training images that a run's settings ask for, in their order.

    Args:
        settings: those of the group "augmentation" (`TrainConfig.augmentation`).
        crop: side of the window that is cut out at a random place; None keeps whole images.
        mask_classes: number of classes of the masks that are changed with their images; None
            without masks. An augmentation that masks cannot follow is left out if it is on by
            default.

    Raises:
        ArgumentError: a setting, other than the default, asks for one that masks cannot follow.

    Attributes:
        steps: each augmentation with its settings, in their order.
        is_checked: whether a batch has been looked at for numbers that are not finite. Only the
            first one is: on a GPU, each look waits for all work before it.
    """

    is_checked = False

    def __init__(
        self, settings: Any, crop: int | None = None, *, mask_classes: int | None = None
    ) -> None:
        self.mask_classes = mask_classes
        self.steps: list[tuple[Augmentation, Any]] = []
        if crop is not None:
            cropping = Augmentation("crop", _crop, object, moves=MOVED, order=CROP_ORDER)
            self.steps.append((cropping, crop))
        for augmentation in ordered_augmentations():
            if mask_classes is not None and augmentation.moves and "mask" not in augmentation.moves:
                augmentation.refuse(settings, "images with masks, which would not fit")
                continue
            augmentation_settings = augmentation.configured(settings)
            if augmentation_settings is not None:
                self.steps.append((augmentation, augmentation_settings))
        self.steps.sort(key=lambda step: step[0].order)

    def __call__(self, batch: Batch, generator: Generator) -> Batch:
        """Change each input at random, and move with it those of its targets that follow.

        Args:
            batch: inputs `[batch, channels, height, width]` in [0, 1]. Of the targets, the pixels
                of "mask" `[batch, height, width]` and of "singles", the images that an input is
                composed of `[batch, k, channels, height, width]`, go where those of the input go.
                A pixel of a turned or resized mask is a mixture of several: it takes the class
                with the largest share. What comes from outside is background.
            generator: source of the random numbers.

        Returns:
            The batch, its inputs in the memory format channels_last, which is fastest for
            convolutions.

        Raises:
            ArgumentError: an augmentation, which it names, returns another shape or, for the first
                batch, a number that is not finite.
        """
        planes = {"inputs": batch.inputs}
        targets = dict(batch.targets)
        if self.steps and "mask" in targets and self.mask_classes is not None:
            planes["mask"] = one_hot_foreground(targets["mask"], self.mask_classes - 1)
        if self.steps and "singles" in targets:
            planes["singles"] = targets["singles"].flatten(1, 2)
        for augmentation, settings in self.steps:
            names = ["inputs", *(name for name in planes if name in augmentation.moves)]
            moved = [planes[name] for name in names]
            # What moves together is one tensor, so that it meets the same random numbers.
            pixels = moved[0] if len(moved) == 1 else torch.cat(moved, dim=1)
            changed = self._apply(augmentation, pixels, settings, generator)
            parts = changed.split([part.shape[1] for part in moved], dim=1)
            planes |= dict(zip(names, parts, strict=True))
        self.is_checked = True
        if "mask" in planes:
            background = 1 - planes["mask"].sum(dim=1, keepdim=True)
            targets["mask"] = torch.cat([background, planes["mask"]], dim=1).argmax(dim=1)
        if "singles" in planes:
            shape = targets["singles"].shape[1:3]
            targets["singles"] = planes["singles"].unflatten(1, shape).contiguous()
        inputs = planes["inputs"].contiguous(memory_format=torch.channels_last)
        return Batch(inputs, targets, batch.indices)

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
        """Apply a function (images, generator) to inputs alone, after all augmentations.

        Args:
            function: of images and a generator; it returns as many images of the same size.
        """

        def apply(images: Images, _settings: None, generator: Generator) -> Images:
            return function(images, generator)

        augmentation = Augmentation("transform", apply, object, moves=(), order=math.inf)
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


def one_hot_foreground(
    masks: Int64[Tensor, "batch height width"], num_foreground: int
) -> Float[Tensor, "batch classes height width"]:
    """1 where a pixel is of a class, else 0, for each class but the background."""
    class_indices = torch.arange(1, 1 + num_foreground, device=masks.device).view(-1, 1, 1)
    return (masks.unsqueeze(1) == class_indices).float()
