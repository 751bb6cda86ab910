"""Random couplings that depend on nothing but a seed and their place: an ablation of routing.

Paik, Kwak, Kim 2019 (arXiv 1907.13327) compare five routing algorithms with couplings that are
uniform or drawn once at random, and find no clear winner. Letters: i children, j parents.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range

WORD = 0xFFFFFFFF  # 32 bits


def random_logits(
    children: int,
    parents: int,
    seed: int = 0,
    *,
    scale: float = 1.0,
    device: torch.device | str | None = None,
) -> Float[Tensor, "children parents"]:
    """`scale * g_ij` of normal numbers g that depend on (seed, i, j, parents) alone.

    Each number is a hash of its place: every device gives the same numbers up to rounding, nothing
    needs to be stored, and a compiled model may hold them.

    Args:
        children: number of children.
        parents: number of parents.
        seed: of 32 bits.
        scale: standard deviation, at least 0.
        device: of the logits.

    Returns:
        `[children, parents]` in float32.

    Raises:
        ArgumentError: a seed or scale out of range.
    """
    check_range("seed", seed, low=0, high=WORD)
    check_range("scale", scale, low=0.0)
    place = torch.arange(children * parents, device=device).view(children, parents)
    word = _mix_bits(_mix_bits(place) ^ _mix_bits(torch.full_like(place, seed) ^ 0x9E3779B9))
    # 23 bits and a half are exact in float32: the outcome is never 0 and never 1.
    return scale * torch.special.ndtri(((word >> 9) + 0.5) / 2**23)


def random_coupling(
    children: int,
    parents: int,
    seed: int = 0,
    *,
    scale: float = 1.0,
    device: torch.device | str | None = None,
) -> Float[Tensor, "children parents"]:
    """Random couplings: the softmax of `random_logits` over parents.

    Args:
        children: number of children.
        parents: number of parents.
        seed: of 32 bits.
        scale: standard deviation of the logits, at least 0; 0 is uniform.
        device: of the couplings.

    Returns:
        `[children, parents]` in float32, whose rows sum to one.

    Raises:
        ArgumentError: a seed or scale out of range.
    """
    return random_logits(children, parents, seed, scale=scale, device=device).softmax(dim=-1)


def _mix_bits(word: Tensor) -> Tensor:
    """Words of 32 bits, in int64, whose every bit depends on all bits of the input.

    It is the finalizer of MurmurHash3.
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = ((word ^ (word >> shift)) * factor) & WORD
    return word ^ (word >> 16)
