"""Inverted dot-product attention as a router.

Yao-Hung Hubert Tsai, Nitish Srivastava, Hanlin Goh, Ruslan Salakhutdinov, "Capsules with Inverted
Dot-Product Attention Routing", ICLR 2020, arXiv 2002.04764. Letters: i children, j parents, d
dimensions of a vote.
"""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps import ops
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import Router, check_iterations, register_router
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("inverted_attention")
class InvertedAttention(Router):
    """Parents, the queries, compete for each child: the softmax runs over them, not over votes.

        a_ij = <vote_ij, v_j> / sqrt(d)
        r_ij = softmax over parents of a_ij
        v_j = LayerNorm(sum_i r_ij vote_ij)

    These are equations 2 to 4 of the paper. v_j is computed from all votes in each iteration; the
    gradient flows through all of them. The first iteration has equal couplings, unless it gets the
    parents of the pass before: in a stack, whose passes interleave, take one iteration. Nothing
    says whether a parent is present.

    Args:
        iterations: from 1 to 100; the paper has 2. One alone is no attention at all.
    """

    activation = "none"
    convention = "type"
    adds_bias = True

    def __init__(self, iterations: int = 2) -> None:
        super().__init__()
        self.iterations = check_iterations(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.norm = nn.LayerNorm(sizes.dim) if sizes.dim > 1 else nn.Identity()

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        v: Any = None if parents is None else full_precision(parents.pose)
        for _ in range(self.iterations):
            v, r = ops.in_blocks(self._attend, votes, v)
        return Routed(v, torch.ones_like(v[..., 0]), r)

    def _attend(self, votes: Votes, v: Tensor | None) -> tuple[Tensor, Tensor]:
        a = None if v is None else votes.agreement(v) * votes.dim**-0.5
        r = votes.couple(a)
        if v is None and votes.field.local and votes.context.fixed is None:
            s = votes.sum() / votes.parents  # equal couplings: no vote is stored
        else:
            s = votes.weighted(r)
        if votes.bias is not None:
            s = s + votes.bias
        if isinstance(self.norm, nn.LayerNorm):
            weight = self.norm.weight.to(s)
            bias = self.norm.bias.to(s)
            s = nn.functional.layer_norm(s, s.shape[-1:], weight, bias, self.norm.eps)
        return s, r
