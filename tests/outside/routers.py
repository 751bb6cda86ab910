"""Six published routings as somebody outside the library would write them: one file, from the papers' equations.

Letters: i children, j parents, d dimensions of a child, h of a vote.
"""

import math

import torch
from torch import nn

from torchcaps.functional.squash import safe_norm
from torchcaps.nn import FactorisedVotes, LinearVotes, MatrixVotes, Router, register_router
from torchcaps.types import Routed


@register_router("self_attention")
class SelfAttention(Router):
    """Efficient-CapsNet: couplings from the products of all votes for a parent, once (arXiv 2101.12491)."""

    exchangeable = False  # the prior belongs to places

    def learn(self, sizes):
        self.prior = nn.Parameter(torch.zeros(sizes.children, sizes.parents))

    def route(self, votes, parents):
        whole = votes.weighted(torch.ones_like(votes.dense()[..., 0]))  # sum_m u_jm
        c = votes.share(votes.agreement(whole) / votes.dim**0.5)
        s = votes.weighted(c + votes.per_child(self.prior))
        n = safe_norm(s, keepdim=True)
        return Routed(-torch.expm1(-n) * s / n, -torch.expm1(-n).squeeze(-1), c)


@register_router("vb")
class VariationalBayes(Router):
    """Variational Bayes routing with diagonal scales and the paper's constant priors (arXiv 1905.11455)."""

    activation = "probability"

    def __init__(self, iterations=3):
        super().__init__()
        self.iterations = iterations

    def learn(self, sizes):
        self.beta = nn.Parameter(torch.zeros(sizes.parents))

    def route(self, votes, parents):
        V, a = votes.dense(), votes.activation.unsqueeze(-1)
        D, logits = votes.dim, None
        steps = torch.arange(D, device=V.device, dtype=V.dtype)
        for _ in range(self.iterations):
            R = votes.share(logits)
            r = R * a
            N = r.sum(dim=-2)
            alpha, kappa, nu = 1 + N, 1 + N, D + 1 + N
            mu = torch.einsum("...ij,...ijh->...jh", r, V) / (N + 1e-8).unsqueeze(-1)
            m = (N / kappa).unsqueeze(-1) * mu
            spread = torch.einsum("...ij,...ijh->...jh", r, (V - mu.unsqueeze(-3)).square())
            inverse = 1 + spread + (N / kappa).unsqueeze(-1) * mu.square()
            log_pi = torch.digamma(alpha) - torch.digamma(alpha.sum(dim=-1, keepdim=True))
            log_det = torch.digamma((nu.unsqueeze(-1) - steps) / 2).sum(dim=-1) + D * math.log(2)
            log_det = log_det - inverse.log().sum(dim=-1)
            near = ((V - m.unsqueeze(-3)).square() / inverse.unsqueeze(-3)).sum(dim=-1)
            Q = (D / kappa).unsqueeze(-2) + nu.unsqueeze(-2) * near
            logits = (log_pi + 0.5 * log_det - 0.5 * D * math.log(2 * math.pi)).unsqueeze(-2) - 0.5 * Q
        H = 0.5 * D * math.log(2 * math.pi * math.e) - 0.5 * log_det
        return Routed(m, torch.sigmoid(self.beta - log_pi.exp() * H), R)


@register_router("self_routing")
class SelfRouting(Router):
    """Each child chooses its parents from its own pose alone (Hahn, Pyeon, Kim, NeurIPS 2019)."""

    activation, exchangeable, convention = "probability", False, "type"

    def learn(self, sizes):
        self.choice = nn.Parameter(torch.zeros(sizes.children, sizes.parents, sizes.in_dim))
        self.lean = nn.Parameter(torch.zeros(sizes.children, sizes.parents))

    def route(self, votes, parents):
        pose = votes.pose.to(votes.dense().dtype).clamp(-1e9, 1e9)
        logits = torch.einsum("...id,ijd->...ij", pose, votes.per_child(self.choice)) + votes.per_child(self.lean)
        c = votes.share(logits)
        a = votes.activation.clamp(min=1e-12)  # all children absent: none counts
        a = (a if votes.present is None else a * votes.present.to(a)).unsqueeze(-1)
        mass = (c * a).sum(dim=-2)
        pose = votes.weighted(c * a / mass.unsqueeze(-2).clamp(min=1e-20))
        return Routed(pose, mass / a.sum(dim=-2).clamp(min=1e-20), c)


# What each paper routes: its kind of votes.
VOTES = {
    "self_attention": LinearVotes, "heinsen_2019": MatrixVotes, "heinsen_2022": FactorisedVotes, "vb": MatrixVotes,
    "self_routing": LinearVotes, "inverted_attention": MatrixVotes,
}  # fmt: skip
