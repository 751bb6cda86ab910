"""Self-attention routing: couplings from the inner products of all votes for a parent, computed once.

Vittorio Mazzia, Francesco Salvetti, Marcello Chiaberge, "Efficient-CapsNet: capsule network with self-attention
routing", Scientific Reports 11, 2021, arXiv 2101.12491. Letters: n, m children, k parents, d dimensions of a vote.
"""

import torch
from torch import nn

from torchcaps.errors import check_range
from torchcaps.functional.squash import full_precision, steep_squash_with_length
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import Router, register_router
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("self_attention")
class SelfAttentionRouting(Router):
    """A child belongs to the parents for which it votes as all children do together.

        a_nk = sum_m <u_nk, u_mk> / scale;  c_n = softmax(a_n) over parents;  s_k = sum_n (c_nk + B_nk) u_nk;
        v_k = (1 - exp(-|s_k|)) s_k / |s_k|

    The sum over m needs no matrix of products: it is <u_nk, sum_m u_mk>. There is no iteration, and the gradient flows
    through all of it. The prior B `[children, parents]` is learned from zero and added AFTER the softmax, as in the
    authors' code, which calls it a log prior: so couplings with their prior need not sum to one. `Routed.coupling` is
    c.

    Args:
        scale: by which products are divided, above zero; by default sqrt(d), d being the parents' as in the authors'
            code (the paper has the children's).
        equal: couple every child equally to all parents, which leaves the prior: the ablation that can be trained.
    """

    adds_bias = True
    permutation_equivariant = False  # the prior belongs to places

    def __init__(self, scale: float | None = None, *, equal: bool = False) -> None:
        super().__init__()
        if scale is not None:
            check_range("scale", scale, low=1e-6)
        self.scale, self.equal = scale, equal

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.prior = nn.Parameter(torch.zeros(sizes.children, sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        u, B = votes.dense(), votes.per_child(full_precision(self.prior))
        here = (
            None if votes.mask is None else votes.mask.to(B).unsqueeze(-1)
        )  # padding has no part in a sum
        # Products and sums in place of einsum: its small matrices, and their gradients, take four times as long.
        whole = (u if here is None else u * here.unsqueeze(-1)).sum(
            dim=-3, keepdim=True
        )  # sum_m u_mk
        a = (u * whole).sum(dim=-1) / (votes.dim**0.5 if self.scale is None else self.scale)
        c = votes.couple(None if self.equal else a)
        weights = c + (B if here is None else B * here)
        s = (weights.unsqueeze(-1) * u).sum(dim=-3)
        v, length = steep_squash_with_length(
            s if votes.bias is None else s + full_precision(votes.bias)
        )
        return Routed(v, length, c)
