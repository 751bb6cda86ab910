"""Self-attention routing: couplings from the inner products of all votes for a parent.

Vittorio Mazzia, Francesco Salvetti, Marcello Chiaberge, "Efficient-CapsNet: capsule network with
self-attention routing", Scientific Reports 11, 2021, arXiv 2101.12491. Letters: n, m children, k
parents, d dimensions of a vote.
"""

import torch
from torch import nn

from torchcaps.errors import check_range
from torchcaps.functional.squash import full_precision, steep_squash_with_length
from torchcaps.functional.votes import Votes, per_child
from torchcaps.nn.routers import Router, register_router
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("self_attention")
class SelfAttentionRouting(Router):
    """A child belongs to the parents for which it votes as all children do together.

        a_nk = sum_m <u_nk, u_mk> / scale
        c_n = softmax(a_n) over parents
        s_k = sum_n (c_nk + B_nk) u_nk
        v_k = (1 - exp(-|s_k|)) s_k / |s_k|

    The sum over m needs no matrix of products: it is <u_nk, sum_m u_mk>. There is no iteration, and
    the gradient flows through all of it. The prior B `[children, parents]` is learned from zero and
    added AFTER the softmax, as in the authors' code, which calls it a log prior: couplings with
    their prior need not sum to one. `Routed.coupling` is c.

    Args:
        scale: divides the products, above zero; by default sqrt(d), d being the parents' as in the
            authors' code (the paper has the children's).
        equal: couple every child equally to all parents, which leaves the prior: the ablation that
            can be trained.

    Raises:
        ArgumentError: a scale that is not above zero.
    """

    adds_bias = True
    permutation_equivariant = False  # the prior belongs to places

    def __init__(self, scale: float | None = None, *, equal: bool = False) -> None:
        super().__init__()
        if scale is not None:
            check_range("scale", scale, low=1e-6)
        self.scale = scale
        self.equal = equal

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.prior = nn.Parameter(torch.zeros(sizes.children, sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        u = votes.dense()
        B = per_child(full_precision(self.prior), votes.count)
        u_present = u
        mask = votes.mask
        if mask is not None:  # padding has no part in a sum
            present = mask.to(B).unsqueeze(-1)
            B = B * present
            u_present = u * present.unsqueeze(-1)

        # Products and sums: the small matrices of einsum, and their gradients, take four times as
        # long.
        scale = votes.dim**0.5 if self.scale is None else self.scale
        a = (u * u_present.sum(dim=-3, keepdim=True)).sum(dim=-1) / scale
        c = votes.couple(None if self.equal else a)
        s = ((c + B).unsqueeze(-1) * u).sum(dim=-3)
        v, length = steep_squash_with_length(votes.add_bias(s))
        return Routed(v, length, c)
