"""Random capsules and votes that repeat: nothing here touches the global random state."""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.functional import squash_with_length
from torchcaps.types import Capsules


def seeded(seed: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own with this seed."""
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

    Poses are `[batch, *space, capsules, dim]`; the vectors have the standard deviation `scale` before the squash: 1
    gives lengths of about `dim / (1 + dim)`. They come from `generator`, or from a fresh one with seed 0.

    Example:
        >>> from torchcaps.testing import random_capsules
        >>> random_capsules(2, 5, 8, space=(3, 4)).pose.shape
        torch.Size([2, 3, 4, 5, 8])
    """
    size = (batch, *space, capsules, dim)
    s = scale * torch.randn(
        size, generator=generator or seeded(device=device), dtype=dtype, device=device
    )
    return Capsules(*squash_with_length(s))


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
    """Normal votes `[batch, *space, children, parents, dim]` of standard deviation `scale`; see `random_capsules`."""
    size = (batch, *space, children, parents, dim)
    return scale * torch.randn(
        size, generator=generator or seeded(device=device), dtype=dtype, device=device
    )
