"""Inverted dot-product attention as a router.

Yao-Hung Hubert Tsai, Nitish Srivastava, Hanlin Goh, Ruslan Salakhutdinov, "Capsules with Inverted
Dot-Product Attention Routing", ICLR 2020, arXiv 2002.04764.

Input: vote_ij, the vote of each child i for the pose of each parent j. Output: the pose v_j of each
parent, and the couplings r_ij, the share of child i that goes to parent j. The paper writes v_ij
for a vote and p_j for the pose of a parent.

Shapes: `...` is the batch and the positions of the parents on a map; i and j stand for the numbers
of children and parents, and d is the dimension of a pose.
"""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps import ops
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import IterativeRouter, register_router
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("inverted_attention")
class InvertedAttention(IterativeRouter):
    """Parents, the queries, compete for each child: the softmax runs over them, not over votes.

        a_ij = <vote_ij, v_j> / sqrt(d)                 (2)
        r_ij = softmax over parents of a_ij             (3)
        v_j = LayerNorm(sum_i r_ij vote_ij + bias_j)    (4)

    Equation numbers are those of the paper. 1 / sqrt(d) is not in its equation 2 but in the code of
    the authors; the bias, where the layer has one, is an addition of this library. The gradient
    flows through all iterations.

    The v_j of equation 2 is that of the iteration before. The first iteration has none, so its
    couplings are equal: one iteration of a layer alone is no attention. In concurrent routing, the
    layers of a stack are updated together, once in each pass, and get their own output of the pass
    before as v_j. There, take one iteration.

    Args:
        iterations: from 1 to 100; the paper has 2.
    """

    activation = "none"  # nothing says whether a parent is present
    convention = "type"  # the parent types of one position compete, not those of all positions
    adds_bias = True  # `_attend` adds the learned bias of the layer, `votes.bias`

    def __init__(self, iterations: int = 2) -> None:
        super().__init__(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Make the learned LayerNorm of equation 4; poses of dimension 1 have none.

        Args:
            sizes: of the layer: counts of children and parents, and the dimensions of their poses.
        """
        self.norm = nn.LayerNorm(sizes.dim) if sizes.dim > 1 else nn.Identity()

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Attend `iterations` times, one block of the batch at a time.

        Args:
            votes: of all children, as one tensor or computed where they are used.
            parents: capsules that this layer returned in the pass before, or None.

        Returns:
            Pose v `[..., j, d]`, activation 1 `[..., j]` and coupling r `[..., i, j]`.
        """
        # `Any`: None at most before the first iteration, then a tensor.
        v: Any = None if parents is None else full_precision(parents.pose)
        for _ in range(self.iterations):
            v, r = ops.in_blocks(self._attend, votes, v)
        return Routed(v, torch.ones_like(v[..., 0]), r)

    def _attend(self, votes: Votes, v: Tensor | None) -> tuple[Tensor, Tensor]:
        """New v and r, from v of the iteration before; equal couplings without it."""
        # Equation 2, scaled.
        a = None if v is None else votes.agreement(v) * votes.dim**-0.5
        # Equation 3: softmax over the parents that compete; for None, equal couplings.
        r = votes.couple(a)

        # The sum of equation 4. If only the parents of one position compete (`local`), equal
        # couplings are 1 / votes.parents, the number of their types, and a plain sum is cheaper.
        # Couplings that an ablation fixed may be unequal.
        has_equal_couplings = v is None and votes.field.local and votes.context.fixed is None
        s = votes.sum() / votes.parents if has_equal_couplings else votes.weighted(r)
        s = votes.add_bias(s)
        # LayerNorm in the precision of s, which may be higher than that of the parameters.
        if isinstance(self.norm, nn.LayerNorm):
            weight = self.norm.weight.to(s)
            bias = self.norm.bias.to(s)
            s = nn.functional.layer_norm(s, s.shape[-1:], weight, bias, self.norm.eps)
        return s, r
