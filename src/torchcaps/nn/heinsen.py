"""Heinsen's routings, 2022 and 2019, and a head that routes any sequence of feature vectors to classes."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from torchcaps import ops
from torchcaps.errors import check_positive, check_shape
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import Votes
from torchcaps.nn.routed import RoutedLayer
from torchcaps.nn.routers import Router, check_iterations, register_router
from torchcaps.nn.votes import FactorizedVotes
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("heinsen_2022")
class Heinsen2022(Router):
    """Efficient vector routing (arXiv 2211.11754): parents predict their children, and credit is signed.

    With `FactorizedVotes` no vote is ever made. In a layer for one child, all of any number of children share the
    parameters, and what using or ignoring one is worth is read from its pose. The activation of a child is 1, or 0 for
    padding. The paper has 2 iterations; one is no routing: shares are equal, and credit is what is learned.
    """

    activation, permutation_equivariant = "none", False
    adds_bias = True

    def __init__(self, iterations: int = 2) -> None:
        super().__init__()
        self.iterations = check_iterations(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        n, d, m, h = sizes
        self.W_A, self.B_A = (
            nn.Parameter(torch.randn(n, d) * 2 * d**-0.5),
            nn.Parameter(torch.zeros(n)),
        )
        self.W_G1, self.W_G2 = (
            nn.Parameter(torch.randn(h, d) * h**-0.5),
            nn.Parameter(torch.randn(m, d)),
        )
        self.W_S, self.B_S = (
            nn.Parameter(torch.randn(n, m) * d**-0.5),
            nn.Parameter(torch.zeros(n, m)),
        )
        self.B_G2 = nn.Parameter(torch.zeros(m, d))
        for name in ("beta_use", "beta_ignore"):
            setattr(self, name, nn.Linear(d, m) if n == 1 else nn.Parameter(torch.randn(n, m)))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Algorithm 1: y_j = sum_i phi_ij V_ij."""
        x, learned = (
            full_precision(votes.pose),
            {k: full_precision(p) for k, p in self.named_parameters()},
        )
        W_A, B_A, W_S, B_S = (_each(votes, learned[name]) for name in ("W_A", "B_A", "W_S", "B_S"))
        use, ignore = (self._beta(votes, x, learned, name) for name in ("beta_use", "beta_ignore"))
        f = torch.sigmoid((x * votes.count**-0.5 * W_A).sum(dim=-1) + B_A)
        f = (f * votes.activation).unsqueeze(-1)  # that child i is there
        S = y = None
        for _ in range(self.iterations):
            if y is not None:
                guess = (y @ learned["W_G1"]) * learned["W_G2"] + learned[
                    "B_G2"
                ]  # what j expects a child to be
                S = F.logsigmoid(torch.einsum("...id,...jd->...ij", x, guess) * W_S + B_S)
            R = votes.couple(S)
            phi = use * f * R - ignore * (
                f - f * R
            )  # the worth of what j uses of i, less that of what it ignores
            y = votes.weighted(phi) if votes.bias is None else votes.weighted(phi) + votes.bias
            y = F.layer_norm(y, y.shape[-1:]) if votes.dim > 1 else y
        assert y is not None
        return Routed(y, torch.ones_like(y[..., 0]), R).with_extras(credit=phi)

    def _beta(self, votes: Votes, x: Tensor, learned: dict[str, Tensor], name: str) -> Tensor:
        if name in learned:
            return _each(votes, learned[name])
        return F.linear(x, learned[f"{name}.weight"], learned[f"{name}.bias"])


@register_router("heinsen_2019")
class Heinsen2019(Router):
    """Generative matrix routing (arXiv 1911.00792): parents are Gaussians, as in EM routing.

    What differs: the activation of a parent is the net benefit of the data that it uses over the data that it ignores.
    In a layer for one child, all of any number of children share the parameters. The paper has 3 iterations.
    """

    activation, permutation_equivariant = "probability", False
    adds_bias = True

    def __init__(self, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = check_iterations(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.B = nn.Parameter(torch.zeros(sizes.children, sizes.parents, sizes.dim))
        self.beta_use, self.beta_ignore = (
            nn.Parameter(torch.zeros(sizes.children, sizes.parents)) for _ in range(2)
        )

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Algorithm 1, some samples at a time; the logits of the parents are told beside the activations."""
        B, use, ignore = (
            full_precision(_each(votes, p)) for p in (self.B, self.beta_use, self.beta_ignore)
        )
        B = B if votes.bias is None else B + votes.bias
        mu, a, R = ops.in_blocks(lambda part: self._explain(part, B, use, ignore), votes)
        return Routed(mu, a.sigmoid(), R).with_extras(logits=a)

    def _explain(
        self, votes: Votes, B: Tensor, use: Tensor, ignore: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        V, f, logits = votes.dense() + B, votes.activation.unsqueeze(-1), None
        for _ in range(self.iterations):
            R = votes.couple(logits)
            D = f * R  # data of child i that parent j uses; it ignores f - D
            a = (use * D - ignore * (f - D)).sum(dim=-2)
            w = D / (D.sum(dim=-2, keepdim=True) + 1e-5)
            mu = torch.einsum("...ij,...ijh->...jh", w, V)
            far = (V - mu.unsqueeze(-3)).square()
            var = torch.einsum("...ij,...ijh->...jh", w, far) + 1e-5
            density = -(far / (2 * var.unsqueeze(-3))).sum(dim=-1) - 0.5 * var.log().sum(
                dim=-1
            ).unsqueeze(-2)
            logits = F.logsigmoid(a).unsqueeze(-2) + density
        return mu, a, R


def _each(votes: Votes, learned: Tensor) -> Tensor:
    """What is learned for each child; what all share stays one row, which goes with every child."""
    return learned if len(learned) == 1 else votes.per_child(learned)


class RoutingHead(nn.Module):
    """Any sequence of feature vectors -> 64 capsules -> 64 capsules -> logits of classes, by the routing of 2022.

    Args:
        dim: of the feature vectors, and of the capsules.
        classes: at least 1.
        hidden: capsules of the layers before the classes.
        length: of the sequences; None for any, whose vectors then share what is learned for one.
        iterations: of the routing.

    Shapes:
        input `[batch, n, dim]`, any numbers (normalized first), and optionally a mask `[batch, n]`, True for vectors
        that are there; output logits `[batch, classes]`.

    Example:
        >>> RoutingHead(768, 10)(torch.randn(2, 197, 768)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        hidden: tuple[int, ...] = (64, 64),
        length: int | None = None,
        iterations: int = 2,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, classes=classes, length=1 if length is None else length)
        self.dim, self.length, counts = dim, length, (length or 1, *hidden, classes)
        self.norm = nn.LayerNorm(dim)
        sizes = [LayerSizes(n, dim, m, dim) for n, m in zip(counts, hidden, strict=False)]
        sizes.append(LayerSizes(counts[-2], dim, classes, 1))
        layers = (
            RoutedLayer(FactorizedVotes(each), "heinsen_2022", iterations=iterations)
            for each in sizes
        )
        self.routings = nn.Sequential(*layers)

    def forward(
        self, features: Float[Tensor, "batch n dim"], mask: Bool[Tensor, "batch n"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        lengths = {} if self.length is None else {"n": self.length}
        check_shape("features", features, ("batch", "n", "dim"), dim=self.dim, **lengths)
        pose = full_precision(self.norm(features))
        activation = torch.ones_like(pose[..., 0]) if mask is None else mask.to(pose)
        classes: Capsules = self.routings(Capsules(pose, activation))
        return classes.pose.squeeze(-1)
