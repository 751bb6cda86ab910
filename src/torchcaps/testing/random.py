"""Random capsules and votes that repeat: the global random state is left alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.functional import squash_with_length
from torchcaps.types import Capsules


def seeded(seed: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A new generator with this seed.

    Args:
        seed: of the generator.
        device: on which it draws.

    Returns:
        The generator.
    """
    return torch.Generator(device).manual_seed(seed)


def random_capsules(
    batch: int = 2,
    capsules: int = 6,
    dim: int = 8,
    *,
    space: tuple[int, ...] = (),
    scale: float = 1.0,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Capsules:
    """Vector capsules in random directions: squashed normal vectors, and their lengths.

    Args:
        batch: number of samples.
        capsules: number of capsules at each position.
        dim: dimensions of a pose.
        space: positions along each axis.
        scale: standard deviation of the vectors before the squash: 1 gives lengths of about
            `dim / (1 + dim)`.
        generator: of the vectors; by default a new one with seed 0.
        dtype: type of the capsules.
        device: device of the capsules and of the generator.

    Returns:
        Poses `[batch, *space, capsules, dim]` and activations `[batch, *space, capsules]`.

    Example:
        >>> from torchcaps.testing import random_capsules
        >>> random_capsules(2, 5, 8, space=(3, 4)).pose.shape
        torch.Size([2, 3, 4, 5, 8])
    """
    size = (batch, *space, capsules, dim)
    generator = generator or seeded(device=device)
    s = scale * torch.randn(size, generator=generator, dtype=dtype, device=device)
    return squash_with_length(s)


def random_votes(
    batch: int = 2,
    children: int = 6,
    parents: int = 5,
    dim: int = 4,
    *,
    space: tuple[int, ...] = (),
    scale: float = 1.0,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "batch *space children parents dim"]:
    """Normal votes.

    Args:
        batch: number of samples.
        children: number of children.
        parents: number of parents.
        dim: dimensions of a vote.
        space: sizes of the axes of positions; none by default.
        scale: standard deviation.
        generator: draws the votes; by default a new one with seed 0.
        dtype: type of the votes.
        device: device of the votes and of the generator.

    Returns:
        Votes `[batch, *space, children, parents, dim]`.
    """
    size = (batch, *space, children, parents, dim)
    generator = generator or seeded(device=device)
    return scale * torch.randn(size, generator=generator, dtype=dtype, device=device)
