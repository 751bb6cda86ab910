"""Windows of images: at a random place, in the middle, at given places."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from torchcaps.data.augment._registry import AXES, Images
from torchcaps.errors import check_range, check_shape


def random_crop(images: Images, size: int, *, generator: Generator) -> Images:
    """A window of `size` × `size` pixels of each image, its place drawn uniformly."""
    check_shape("images", images, AXES)
    check_range("size", size, low=1, high=min(images.shape[2:]))
    return random_windows(images, (size, size), generator)


def center_crop(images: Images, size: int) -> Images:
    """The middle `size` × `size` pixels of each image, a view.

    Where the sides are odd it lies half a pixel up and left.
    """
    check_shape("images", images, AXES)
    check_range("size", size, low=1, high=min(images.shape[2:]))
    top, left = ((side - size) // 2 for side in images.shape[2:])
    return images[:, :, top : top + size, left : left + size]


def random_windows(images: Images, size: Sequence[int], generator: Generator) -> Images:
    """A window of `size` (height, width) of each image, its place drawn uniformly."""
    top, left = (
        torch.randint(
            side - part + 1, (len(images),), generator=generator, device=generator.device
        ).to(images.device)
        for side, part in zip(images.shape[2:], size, strict=True)
    )
    return windows_at(images, size, top, left)


def windows_at(images: Images, size: Sequence[int], top: Tensor, left: Tensor) -> Images:
    """The window of `size` (height, width) of each image whose first pixel is at (top, left).

    `top` and `left` are `[batch]`.
    """
    # A view of all windows, of which one per sample is copied.
    windows = images.unfold(2, size[0], 1).unfold(3, size[1], 1)
    return windows[torch.arange(len(images), device=images.device), :, top, left]
