"""Random capsules and votes that repeat: the global random state is left alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.functional import squash_with_length
from torchcaps.types import Capsules


def seeded(seed: int = 0) -> torch.Generator:
    """A new generator with this seed.

    Args:
        seed: of the generator.

    Returns:
        The generator.
    """
    return torch.Generator().manual_seed(seed)


def random_capsules(
    batch: int = 2,
    capsules: int = 6,
    dim: int = 8,
    *,
    space: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Capsules:
    """Vector capsules in random directions: squashed normal vectors, and their lengths.

    The lengths are about `dim / (1 + dim)`.

    Args:
        batch: number of samples.
        capsules: number of capsules at each position.
        dim: dimensions of a pose.
        space: positions along each axis.
        generator: of the vectors; by default a new one with seed 0.

    Returns:
        Poses `[batch, *space, capsules, dim]` and activations `[batch, *space, capsules]`.

    Example:
        >>> from torchcaps.testing import random_capsules
        >>> random_capsules(2, 5, 8, space=(3, 4)).pose.shape
        torch.Size([2, 3, 4, 5, 8])
    """
    size = (batch, *space, capsules, dim)
    return squash_with_length(torch.randn(size, generator=generator or seeded()))


def random_votes(
    batch: int = 2,
    children: int = 6,
    parents: int = 5,
    dim: int = 4,
    *,
    space: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch *space children parents dim"]:
    """Normal votes.

    Args:
        batch: number of samples.
        children: number of children.
        parents: number of parents.
        dim: dimensions of a vote.
        space: sizes of the axes of positions; none by default.
        generator: draws the votes; by default a new one with seed 0.
        dtype: type of the votes.

    Returns:
        Votes `[batch, *space, children, parents, dim]`.
    """
    size = (batch, *space, children, parents, dim)
    return torch.randn(size, generator=generator or seeded(), dtype=dtype)
