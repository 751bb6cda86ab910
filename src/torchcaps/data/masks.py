"""Masks, a class for each pixel: sets with them, and their pictures."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from torchcaps.data.dataset import Dataset

OPACITY = 0.45  # of the class colors in an overlay
# Distinct under every common color blindness, as far as possible; the background is black.
COLORS = (
    (0, 0, 0),
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
    (160, 160, 160),
)


def masked_set(images: Tensor, masks: Tensor, classes: tuple[str, ...], name: str) -> Dataset:
    """A set of images and masks, whose label is the class with most pixels of a mask.

    Args:
        images: `[n, channels, height, width]`, uint8 in 0..255 or float32 in [0, 1].
        masks: indices into `classes`, uint8 `[n, height, width]`.
        classes: names of the classes, the background first.
        name: name of the set.

    Returns:
        The set.
    """
    labels = main_classes(masks, len(classes))
    return Dataset(images, {"label": labels, "mask": masks}, classes, name)


def main_classes(masks: Tensor, num_classes: int) -> Tensor:
    """The class with most pixels of each mask, the background only where there is no other.

    Args:
        masks: class indices `[n, height, width]`.
        num_classes: number of classes with the background.

    Returns:
        Class indices `[n]`.
    """
    counts = [(masks == index).flatten(1).sum(dim=1) for index in range(1, num_classes)]
    pixel_counts = torch.stack(counts, dim=1)
    return torch.where(pixel_counts.sum(dim=1) > 0, 1 + pixel_counts.argmax(dim=1), 0)


def palette(num_classes: int) -> NDArray[np.uint8]:
    """Colors of classes, uint8 `[num_classes, 3]`, the background first."""
    colors = list(COLORS[:num_classes])
    for index in range(len(COLORS), num_classes):
        rgb = colorsys.hsv_to_rgb(0.618 * index % 1, 0.65, 0.9 - 0.35 * (index % 3) / 2)
        colors.append(tuple(np.rint(255 * np.array(rgb))))
    return np.array(colors, dtype=np.uint8)


def write_mask(path: Path, mask: NDArray[np.uint8], num_classes: int) -> None:
    """Write a mask `[height, width]` as an indexed PNG, in the colors of `palette`."""
    image = Image.fromarray(mask)
    image.putpalette(palette(num_classes).tobytes())
    image.save(path, format="PNG")


def overlaid(
    image: NDArray[np.uint8], mask: NDArray[np.integer[Any]], num_classes: int
) -> NDArray[np.uint8]:
    """An image with the colors of its mask over it, and lines where one class ends.

    Args:
        image: uint8 `[channels, height, width]`, gray or color.
        mask: class indices `[height, width]`.
        num_classes: number of classes with the background.

    Returns:
        uint8 `[height, width, 3]`.
    """
    colors = palette(num_classes)
    overlay = np.broadcast_to(image, (3, *mask.shape)).transpose(1, 2, 0).astype(np.float32)
    is_foreground = mask > 0
    class_colors = colors[mask[is_foreground]]
    overlay[is_foreground] = (1 - OPACITY) * overlay[is_foreground] + OPACITY * class_colors
    for axis, length in enumerate(mask.shape):
        previous = mask.take([0, *range(length - 1)], axis)
        is_edge = mask != previous
        overlay[is_edge] = colors[np.maximum(mask, previous)[is_edge]]
    return overlay.round().clip(0, 255).astype(np.uint8)
