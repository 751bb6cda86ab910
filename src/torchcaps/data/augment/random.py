"""Uniform random numbers on the generator's device."""

import torch
from torch import Generator, Tensor


def uniform(
    shape: tuple[int, ...], low: float, high: float, like: Tensor, generator: Generator
) -> Tensor:
    """Numbers in [low, high), drawn on the generator's device, then on that of `like`."""
    numbers = torch.rand(shape, generator=generator, device=generator.device)
    return (low + (high - low) * numbers).to(like.device)
