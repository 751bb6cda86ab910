"""Windows (rectangles) of images: at a random place, in the middle, or at places of choice.

Images are `[batch, channels, height, width]` of any type. A window is placed by its first row and
column. These functions are no augmentation with settings: a run crops by the setting `crop`.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from torchcaps.data.augment._registry import AXES, Images
from torchcaps.data.augment.random import random_offsets
from torchcaps.errors import check_range, check_shape
from torchcaps.transfer import to_device


def random_crop(images: Images, size: int, *, generator: Generator) -> Images:
    """Cut a window out of each image.

    Args:
        images: `[batch, channels, height, width]`.
        size: side of the square window in pixels, at most the smaller side of the images.
        generator: draws the place of each window uniformly.

    Returns:
        `[batch, channels, size, size]`.
    """
    _check_size(images, size)
    return random_windows(images, (size, size), generator)


def center_crop(images: Images, size: int) -> Images:
    """The middle `size` × `size` pixels of each image, a view.

    Where the margins cannot be equal, those above and on the left are smaller by a pixel.

    Args:
        images: `[batch, channels, height, width]`.
        size: pixels along a side, at most those of the images.

    Returns:
        `[batch, channels, size, size]`.
    """
    _check_size(images, size)
    height, width = images.shape[2:]
    row = (height - size) // 2
    column = (width - size) // 2
    rows = slice(row, row + size)
    columns = slice(column, column + size)
    return images[:, :, rows, columns]


def _check_size(images: Images, size: int) -> None:
    """Raise ValueError unless a square of this side fits into the images."""
    check_shape("images", images, AXES)
    height, width = images.shape[2:]
    check_range("size", size, low=1, high=min(height, width))


def random_windows(images: Images, size: Sequence[int], generator: Generator) -> Images:
    """Cut a window of `size` (height, width) out of each image, its place drawn uniformly."""
    height, width = images.shape[2:]
    # The first row and the first column of each window, both [batch].
    row = random_offsets(len(images), height, size[0], generator)
    column = random_offsets(len(images), width, size[1], generator)
    return windows_at(images, size, row, column)


def windows_at(images: Images, size: Sequence[int], row: Tensor, column: Tensor) -> Images:
    """Cut a window out of each image.

    Args:
        images: `[batch, channels, height, width]`.
        size: (height, width) of the window.
        row: first row of each window, `[batch]`, on the device of the images or on the CPU.
        column: first column of each window, `[batch]`, where the rows are.

    Returns:
        `[batch, channels, *size]`.
    """
    height, width = size
    # A view of all windows: [batch, channels, rows, columns, height, width].
    windows = images.unfold(2, height, 1)
    windows = windows.unfold(3, width, 1)
    # One of them is copied for each image.
    index = torch.arange(len(images), device=row.device)
    index, row, column = to_device(torch.stack([index, row, column]), images.device)
    return windows[index, :, row, column]
