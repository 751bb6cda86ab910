"""Published routings as somebody outside the library would write them: one file, from the papers' equations.

Letters: i children, j parents, d dimensions of a child, h of a vote.
"""

import torch
from torch import nn

from torchcaps.nn import FactorisedVotes, LinearVotes, MatrixVotes, Router, register_router
from torchcaps.types import Routed


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


@register_router("inverted_attention")
class InvertedAttention(Router):
    """Parents attend to votes, and compete for each child (arXiv 2002.04764). One iteration is uniform coupling.

    In a stack, whose passes interleave, each call is one pass that begins with the parents of the pass before.
    """

    activation, convention = "none", "type"

    def __init__(self, iterations=2):
        super().__init__()
        self.iterations = iterations

    def learn(self, sizes):
        self.norm = nn.LayerNorm(sizes.dim)

    def route(self, votes, parents):
        v = None if parents is None else parents.pose
        for _ in range(self.iterations):
            r = votes.share(None if v is None else votes.agreement(v) * votes.dim**-0.5)
            s = votes.weighted(r)
            v = nn.functional.layer_norm(s, s.shape[-1:], self.norm.weight.to(s), self.norm.bias.to(s))
        return Routed(v, torch.ones_like(v[..., 0]), r)


# What each paper routes: its kind of votes.
VOTES = {
    "self_attention": LinearVotes, "heinsen_2019": MatrixVotes, "heinsen_2022": FactorisedVotes, "vb": MatrixVotes,
    "self_routing": LinearVotes, "inverted_attention": MatrixVotes,
}  # fmt: skip
