"""Random numbers on the generator's device."""

import torch
from torch import Generator, Tensor


def uniform(
    shape: tuple[int, ...],
    low: float,
    high: float,
    like: Tensor,
    generator: Generator,
) -> Tensor:
    """Numbers in [low, high), drawn on the generator's device, then on that of `like`."""
    numbers = torch.rand(shape, generator=generator, device=generator.device)
    return (low + (high - low) * numbers).to(like.device)


def random_offsets(images: Tensor, side: int, window: int, generator: Generator) -> Tensor:
    """The first pixel of a window along an axis, for each image: `[batch]`, on their device.

    Args:
        images: `[batch, ...]`.
        side: pixels along the axis.
        window: pixels of the window, at most `side`.
        generator: the offsets are drawn uniformly, on its device.
    """
    num_offsets = side - window + 1
    offsets = torch.randint(
        num_offsets,
        (len(images),),
        generator=generator,
        device=generator.device,
    )
    return offsets.to(images.device)
