"""Inverted dot-product attention as a router (Tsai, Srivastava, Goh, Salakhutdinov, ICLR 2020, arXiv 2002.04764)."""

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
    """Parents, the queries, compete for each child: the softmax runs over them and not over the votes that they read.

    Nothing tells whether a parent is present. In a stack, whose passes interleave, a call begins with the parents of
    the pass before: take one iteration there; the paper has 2. Without parents of a pass before, the first has equal
    couplings, so that one iteration is no attention at all.
    """

    activation, convention = "none", "type"
    adds_bias = True

    def __init__(self, iterations: int = 2) -> None:
        super().__init__()
        self.iterations = check_iterations(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.norm = nn.LayerNorm(sizes.dim) if sizes.dim > 1 else nn.Identity()

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Equations 2 to 4: v_j is made anew from all votes in each iteration; the gradient flows through all."""
        v: Any = None if parents is None else full_precision(parents.pose)
        for _ in range(self.iterations):
            v, r = ops.in_blocks(self._attend, votes, v)
        return Routed(v, torch.ones_like(v[..., 0]), r)

    def _attend(self, votes: Votes, v: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = (
            None if v is None else votes.agreement(v) * votes.dim**-0.5
        )  # <vote_ij, v_j> / sqrt(d)
        r = votes.couple(logits)  # over j
        if v is None and votes.field.local and votes.context.fixed is None:
            s = votes.sum() / votes.parents  # equal couplings: no vote is made alone
        else:
            s = votes.weighted(r)  # sum_i r_ij vote_ij
        s = s if votes.bias is None else s + votes.bias
        if isinstance(self.norm, nn.LayerNorm):
            weight, bias = self.norm.weight.to(s), self.norm.bias.to(s)
            s = nn.functional.layer_norm(s, s.shape[-1:], weight, bias, self.norm.eps)
        return s, r
