"""Inverted dot-product attention as a router.

Yao-Hung Hubert Tsai, Nitish Srivastava, Hanlin Goh, Ruslan Salakhutdinov, "Capsules with Inverted
Dot-Product Attention Routing", ICLR 2020, arXiv 2002.04764.

What comes in: the votes of each child i for the pose of each parent j, d numbers. What goes out:
the poses v_j of the parents, and the couplings r_ij, the share of child i that goes to parent j.

Shapes: `...` is the batch and the positions of the parents on a map.
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

        a_ij = <vote_ij, v_j> / sqrt(d)                 (2)
        r_ij = softmax over parents of a_ij             (3)
        v_j = LayerNorm(sum_i r_ij vote_ij)             (4)

    The numbers are those of the paper. v_j is computed from all votes in each iteration; the
    gradient flows through all of them. The first iteration has equal couplings, unless it gets the
    parents of the pass before: in a stack, whose passes interleave, take one iteration.

    Args:
        iterations: from 1 to 100; the paper has 2. One alone is no attention at all.
    """

    activation = "none"  # nothing says whether a parent is present
    convention = "type"  # only the parents of one position compete for a child
    adds_bias = True  # `_attend` adds the learned bias of the layer, `votes.bias`

    def __init__(self, iterations: int = 2) -> None:
        super().__init__()
        self.iterations = check_iterations(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Make the learned LayerNorm of equation 4; poses of one number have none.

        Args:
            sizes: numbers of children and parents, and the dimensions of their poses.
        """
        self.norm = nn.LayerNorm(sizes.dim) if sizes.dim > 1 else nn.Identity()

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Attend `iterations` times, a block of samples at a time.

        Args:
            votes: of a layer, stored or not.
            parents: of the pass before in a stack, or None.

        Returns:
            Pose v `[..., j, d]`, activation 1 `[..., j]` and coupling r `[..., i, j]`.
        """
        v: Any = None if parents is None else full_precision(parents.pose)
        for _ in range(self.iterations):
            v, r = ops.in_blocks(self._attend, votes, v)
        return Routed(v, torch.ones_like(v[..., 0]), r)

    def _attend(self, votes: Votes, v: Tensor | None) -> tuple[Tensor, Tensor]:
        """New v and r, from v of the iteration before; equal couplings without it."""
        # Equations 2 and 3.
        a = None if v is None else votes.agreement(v) * votes.dim**-0.5
        r = votes.couple(a)

        # Equation 4. Equal couplings at one position need no stored votes; fixed ones, of an
        # ablation, may be unequal.
        has_equal_couplings = v is None and votes.field.local and votes.context.fixed is None
        s = votes.sum() / votes.parents if has_equal_couplings else votes.weighted(r)
        if votes.bias is not None:
            s = s + votes.bias
        if isinstance(self.norm, nn.LayerNorm):
            weight = self.norm.weight.to(s)
            bias = self.norm.bias.to(s)
            s = nn.functional.layer_norm(s, s.shape[-1:], weight, bias, self.norm.eps)
        return s, r
