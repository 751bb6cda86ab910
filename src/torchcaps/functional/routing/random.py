"""Random coupling: routing that looks at nothing. The ablation beside uniform coupling.

Paik, Kwak, Kim 2019 (arXiv 1907.13327) compare five routing algorithms with couplings that are uniform or drawn once at
random, and find no clear winner. Letters: i children, j parents, d pose dimensions.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_floating, check_range, check_shape
from torchcaps.functional.bounds import summed, without_autocast
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.types import Routed

_WORD = 0xFFFFFFFF  # 32 bits


def random_routing(
    votes: Float[Tensor, "*batch children parents dim"],
    seed: int = 0,
    *,
    scale: float = 1.0,
    bias: Float[Tensor, "parents dim"] | None = None,
) -> Routed:
    """`v_j = squash(sum_i c_ij u_ij + bias_j)` with fixed random couplings c, the same for every sample and position.

    Args:
        votes: u, `[batch, *space, children, parents, dim]`. Half precision is computed in float32.
        seed: of the couplings; see `random_coupling`.
        scale: standard deviation of their logits.
        bias: `[parents, dim]` added before the squash.

    Returns:
        Routed: pose `[batch, *space, parents, dim]`, activation in [0, 1), coupling `[batch, *space, children,
        parents]`, which sums to one over parents.

    Raises:
        ValueError: for votes without these axes, or of other than floating point, or a seed or scale out of range.
    """
    check_shape("votes", votes, ("*batch", "children", "parents", "dim"))
    check_floating(votes=votes, bias=bias)
    u = full_precision(votes)
    children, parents = u.shape[-3:-1]
    c = random_coupling(children, parents, seed, scale=scale, device=u.device).to(u.dtype)
    with without_autocast(u):
        s = summed("ij,...ijd->...jd", c, u)
        if bias is not None:
            s = s + full_precision(bias)
        v, length = squash_with_length(s)
    return Routed(v, length, c.expand(u.shape[:-1]))


def random_coupling(
    children: int, parents: int, seed: int = 0, *, scale: float = 1.0, device: torch.device | str | None = None
) -> Float[Tensor, "children parents"]:
    """`softmax_j(scale * g_ij)` of normal numbers g that depend on (seed, i, j, parents) alone.

    No generator is drawn from: each number is a hash of its place, so that every device gives the same couplings up to
    rounding, nothing needs to be stored, and a compiled model may hold it.

    Args:
        children: i counts them.
        parents: j counts them.
        seed: from 0 to 2^32 - 1.
        scale: standard deviation of the logits, at least 0; 0 gives uniform couplings.
        device: where to make it; None is torch's default.

    Returns:
        `[children, parents]` float32 in [0, 1]; rows sum to one.

    Raises:
        ValueError: for a seed or scale out of range.
    """
    check_range("seed", seed, low=0, high=_WORD)
    check_range("scale", scale, low=0.0)
    place = torch.arange(children * parents, device=device).view(children, parents)
    word = _mixed(_mixed(place) ^ _mixed(torch.full_like(place, seed) ^ 0x9E3779B9))
    uniform = ((word >> 9) + 0.5) / 2**23  # 23 bits and a half are exact in float32: never 0, never 1
    return (scale * torch.special.ndtri(uniform)).softmax(dim=-1)


def _mixed(word: Tensor) -> Tensor:
    """Words of 32 bits, in int64, whose every bit depends on all bits that came (the finaliser of MurmurHash3)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> 16)
