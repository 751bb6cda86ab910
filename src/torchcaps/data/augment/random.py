"""Random numbers for augmentations, drawn on the device of their generator.

They are then moved to the device of the images, so that a generator on the CPU gives the same
numbers for images on any device.
"""

import torch
from torch import Generator, Tensor

from torchcaps.transfer import to_device


def uniform(
    shape: tuple[int, ...],
    low: float,
    high: float,
    like: Tensor,
    generator: Generator,
) -> Tensor:
    """Uniform numbers in [low, high).

    Args:
        shape: shape of the numbers.
        low: smallest number.
        high: limit above.
        like: a tensor, to whose device the numbers are moved.
        generator: draws them on its own device.
    """
    numbers = torch.rand(shape, generator=generator, device=generator.device)
    return to_device(low + (high - low) * numbers, like.device)


def random_offsets(images: Tensor, side: int, window: int, generator: Generator) -> Tensor:
    """Where a window begins along an axis, for each image.

    Args:
        images: `[batch, ...]`.
        side: pixels of the axis.
        window: pixels of the window along it, at most `side`.
        generator: draws the offsets uniformly, on its own device.

    Returns:
        `[batch]` integers from 0 to `side - window`, on the device of the images.
    """
    num_offsets = side - window + 1
    offsets = torch.randint(
        num_offsets,
        (len(images),),
        generator=generator,
        device=generator.device,
    )
    return to_device(offsets, images.device)
