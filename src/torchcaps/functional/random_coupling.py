"""Random couplings that depend on nothing but a seed and their place: for the ablation of routing.

Paik, Kwak, Kim 2019 (arXiv 1907.13327) compare five routing algorithms with couplings that are uniform or drawn once at
random, and find no clear winner. Letters: i children, j parents.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range

_WORD = 0xFFFFFFFF  # 32 bits


def random_logits(
    children: int,
    parents: int,
    seed: int = 0,
    *,
    scale: float = 1.0,
    device: torch.device | str | None = None,
) -> Float[Tensor, "children parents"]:
    """`scale * g_ij` of normal numbers g that depend on (seed, i, j, parents) alone: `[children, parents]` float32.

    No generator is drawn from: each number is a hash of its place, so that every device gives the same numbers up to
    rounding, nothing needs to be stored, and a compiled model may hold it. ValueError for a seed out of 32 bits, or for
    a scale, the standard deviation, below 0.
    """
    check_range("seed", seed, low=0, high=_WORD)
    check_range("scale", scale, low=0.0)
    place = torch.arange(children * parents, device=device).view(children, parents)
    word = _mixed(_mixed(place) ^ _mixed(torch.full_like(place, seed) ^ 0x9E3779B9))
    uniform = (
        (word >> 9) + 0.5
    ) / 2**23  # 23 bits and a half are exact in float32: never 0, never 1
    return scale * torch.special.ndtri(uniform)


def random_coupling(
    children: int,
    parents: int,
    seed: int = 0,
    *,
    scale: float = 1.0,
    device: torch.device | str | None = None,
) -> Float[Tensor, "children parents"]:
    """`softmax_j` of `random_logits`: `[children, parents]` float32; scale 0 gives uniform couplings."""
    return random_logits(children, parents, seed, scale=scale, device=device).softmax(dim=-1)


def _mixed(word: Tensor) -> Tensor:
    """Words of 32 bits, in int64, whose every bit depends on all bits that came (the finalizer of MurmurHash3)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> 16)
