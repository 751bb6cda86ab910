"""Random numbers for augmentations, drawn on the device of their generator.

They are moved to the device of the images afterwards, so that a generator on the CPU gives the same
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


def random_offsets(count: int, side: int, window: int, generator: Generator) -> Tensor:
    """Where windows begin along an axis.

    Args:
        count: number of windows.
        side: pixels of the axis.
        window: pixels of a window along it, at most `side`.
        generator: draws the offsets uniformly.

    Returns:
        `[count]` integers from 0 to `side - window`, on the device of the generator.
    """
    num_offsets = side - window + 1
    return torch.randint(num_offsets, (count,), generator=generator, device=generator.device)
