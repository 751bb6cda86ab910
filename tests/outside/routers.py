"""A routing as somebody outside the library would write it: the equations, nothing else."""

import torch
from torch import nn

from torchcaps.nn import (
    FactorizedVotes,
    LinearVotes,
    MatrixVotes,
    Router,
    SharedVotes,
    register_router,
)
from torchcaps.types import Routed


@register_router("prototype")
class Prototype(Router):
    """Children are projected into a space that all parents share, and belong to near prototypes.

    z_i = P u_i;  r_i = softmax over j of -|z_i - p_j|^2 / tau;  v_j = sum_i r_ij V_ij
    """

    activation = "none"
    permutation_equivariant = False  # prototypes belong to places

    def __init__(self, tau=1.0):
        super().__init__()
        self.tau = tau

    def build_parameters(self, sizes):
        self.P = nn.Parameter(torch.randn(sizes.dim, sizes.in_dim) * sizes.in_dim**-0.5)
        self.p = nn.Parameter(torch.randn(sizes.parents, sizes.dim))

    def route(self, votes, parents):
        z = votes.pose.to(self.P.dtype).clamp(-1e9, 1e9) @ self.P.mT
        logits = -(z.unsqueeze(-2) - self.p).square().sum(dim=-1) / self.tau
        r = votes.couple(logits)
        v = votes.weighted(r)
        return Routed(v, torch.ones_like(v[..., 0]), r)


# What each routing with parameters or poses of its own routes: its kind of votes.
VOTES = {
    "self_attention": LinearVotes,
    "heinsen_2019": MatrixVotes,
    "heinsen_2022": FactorizedVotes,
    "vb": MatrixVotes,
    "self_routing": LinearVotes,
    "inverted_attention": MatrixVotes,
    "slot_attention": SharedVotes,
    "prototype": LinearVotes,
}
