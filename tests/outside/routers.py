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


@register_router("heinsen_2019")
class Heinsen2019(Router):
    """Generative matrix routing: benefit and cost of the data that each parent uses and ignores (1911.00792)."""

    activation, exchangeable = "probability", False

    def __init__(self, iterations=3):
        super().__init__()
        self.iterations = iterations

    def learn(self, sizes):
        self.offset = nn.Parameter(torch.zeros(sizes.children, sizes.parents, sizes.dim))
        self.use, self.ignore = (nn.Parameter(torch.zeros(sizes.children, sizes.parents)) for _ in range(2))

    def route(self, votes, parents):
        V, f = votes.dense() + votes.per_child(self.offset), votes.activation.unsqueeze(-1)
        use, ignore, logits = votes.per_child(self.use), votes.per_child(self.ignore), None
        for _ in range(self.iterations):
            R = votes.share(logits)
            D = f * R
            a = (use * D - ignore * (f - D)).sum(dim=-2)
            w = D / (D.sum(dim=-2, keepdim=True) + 1e-5)
            mu = torch.einsum("...ij,...ijh->...jh", w, V)
            far = (V - mu.unsqueeze(-3)).square()
            var = torch.einsum("...ij,...ijh->...jh", w, far) + 1e-5
            density = -(far / (2 * var.unsqueeze(-3))).sum(dim=-1) - 0.5 * var.log().sum(dim=-1).unsqueeze(-2)
            logits = nn.functional.logsigmoid(a).unsqueeze(-2) + density
        return Routed(mu, a.sigmoid(), R).and_more(logits=a)


@register_router("heinsen_2022")
class Heinsen2022(Router):
    """Efficient vector routing: parents predict their children, and credit is signed (arXiv 2211.11754)."""

    activation, exchangeable = "none", False

    def __init__(self, iterations=2):
        super().__init__()
        self.iterations = iterations

    def learn(self, sizes):
        n, d, m, h = sizes
        self.W_A, self.B_A = nn.Parameter(torch.randn(n, d) * 2 * d**-0.5), nn.Parameter(torch.zeros(n))
        self.W_G1, self.W_G2 = nn.Parameter(torch.randn(h, d) * h**-0.5), nn.Parameter(torch.randn(m, d))
        self.W_S, self.B_G2 = nn.Parameter(torch.randn(n, m) * d**-0.5), nn.Parameter(torch.zeros(m, d))
        self.B_S, self.use, self.ignore = (nn.Parameter(f(n, m)) for f in (torch.zeros, torch.randn, torch.randn))

    def route(self, votes, parents):
        x = votes.pose.float() if votes.pose.dtype in (torch.float16, torch.bfloat16) else votes.pose
        n, each = self.W_A.shape[0], votes.per_child
        f = torch.sigmoid((x * n**-0.5 * each(self.W_A)).sum(dim=-1) + each(self.B_A))
        f = (f if votes.present is None else f * votes.present.to(f)).unsqueeze(-1)
        use, ignore, logits = each(self.use), each(self.ignore), None
        for _ in range(self.iterations):
            R = votes.share(logits)
            phi = use * f * R - ignore * (f - f * R)
            y = votes.weighted(phi)
            y = nn.functional.layer_norm(y, y.shape[-1:]) if votes.dim > 1 else y
            guess = (y @ self.W_G1) * self.W_G2 + self.B_G2
            S = torch.einsum("...id,...jd->...ij", x, guess) * each(self.W_S) + each(self.B_S)
            logits = nn.functional.logsigmoid(S)
        return Routed(y, torch.ones_like(y[..., 0]), R).and_more(credit=phi)


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
