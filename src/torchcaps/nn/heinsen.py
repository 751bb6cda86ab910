"""Heinsen's routings of 2022 and 2019, and a head that routes feature vectors to classes."""

from itertools import pairwise

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

EPSILON = 1e-5


@register_router("heinsen_2022")
class Heinsen2022(Router):
    """Efficient vector routing: parents predict their children, and credit is signed.

        R_ij equal
        repeat:
            phi_ij = beta_use_ij f_i R_ij - beta_ignore_ij (f_i - f_i R_ij)
            y_j = normalize(sum_i phi_ij V_ij)
            R_i = softmax over parents of log sigmoid(S_ij), except in the last iteration

    f_i is the share of child i that is activated, S_ij its agreement with the prediction of parent
    j. Source: arXiv 2211.11754, algorithm 1.

    With `FactorizedVotes` no vote is ever stored. In a layer for one child, any number of children
    share the parameters, and the betas are linear functions of the pose. The activation of a child
    is 1, or 0 for padding.

    Args:
        iterations: from 1 to 100; the paper has 2. One is no routing: shares are equal.
    """

    activation = "none"
    permutation_equivariant = False
    adds_bias = True
    beta_use: nn.Linear | nn.Parameter
    beta_ignore: nn.Linear | nn.Parameter

    def __init__(self, iterations: int = 2) -> None:
        super().__init__()
        self.iterations = check_iterations(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        n, d, m, h = sizes
        self.W_A = nn.Parameter(torch.randn(n, d) * 2 * d**-0.5)
        self.B_A = nn.Parameter(torch.zeros(n))
        self.W_G1 = nn.Parameter(torch.randn(h, d) * h**-0.5)
        self.W_G2 = nn.Parameter(torch.randn(m, d))
        self.W_S = nn.Parameter(torch.randn(n, m) * d**-0.5)
        self.B_S = nn.Parameter(torch.zeros(n, m))
        self.B_G2 = nn.Parameter(torch.zeros(m, d))
        self.beta_use = nn.Linear(d, m) if n == 1 else nn.Parameter(torch.randn(n, m))
        self.beta_ignore = nn.Linear(d, m) if n == 1 else nn.Parameter(torch.randn(n, m))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        x = full_precision(votes.pose)
        beta_use = _beta(votes, x, self.beta_use)
        beta_ignore = _beta(votes, x, self.beta_ignore)
        weighted_x = x * votes.count**-0.5 * _per_child(votes, self.W_A)
        a = weighted_x.sum(dim=-1) + _per_child(votes, self.B_A)
        f = torch.sigmoid(a) * votes.activation  # 0 for absent children
        f = f.unsqueeze(-1)

        logits: Tensor | None = None
        for remaining in reversed(range(self.iterations)):
            R = votes.couple(logits)
            phi = beta_use * f * R - beta_ignore * (f - f * R)
            y = votes.weighted(phi)
            if votes.bias is not None:
                y = y + votes.bias
            if votes.dim > 1:
                y = F.layer_norm(y, y.shape[-1:])
            if remaining:
                logits = F.logsigmoid(self._agreement(votes, x, y))
        return Routed(y, torch.ones_like(y[..., 0]), R).with_extras(credit=phi)

    def _agreement(self, votes: Votes, x: Tensor, y: Tensor) -> Tensor:
        """S_ij: how well the prediction of parent j, made from y_j, fits child i."""
        predictions = (y @ full_precision(self.W_G1)) * full_precision(self.W_G2)
        predictions = predictions + full_precision(self.B_G2)
        products = torch.einsum("...id,...jd->...ij", x, predictions)
        return products * _per_child(votes, self.W_S) + _per_child(votes, self.B_S)


def _beta(votes: Votes, x: Tensor, beta: nn.Linear | nn.Parameter) -> Tensor:
    """The benefit of using or ignoring each child for each parent, `[..., i, j]`."""
    if isinstance(beta, nn.Linear):
        return F.linear(x, full_precision(beta.weight), full_precision(beta.bias))
    return _per_child(votes, beta)


def _per_child(votes: Votes, parameter: Tensor) -> Tensor:
    """A parameter of each child; one row that all children share stays one row."""
    parameter = full_precision(parameter)
    if len(parameter) == 1:
        return parameter
    return votes.per_child(parameter)


@register_router("heinsen_2019")
class Heinsen2019(Router):
    """Generative matrix routing: parents are Gaussians, as in EM routing.

        R_ij equal
        repeat:
            D_ij = f_i R_ij
            a_j = sum_i (beta_use_ij D_ij - beta_ignore_ij (f_i - D_ij))
            mu_j, var_j = mean and variance of V_ij + B_ij, weighted by D_ij
            R_i = softmax over parents of log sigmoid(a_j) + log N(V_ij + B_ij; mu_j, var_j),
                  except in the last iteration

    Unlike in EM routing, the activation of a parent is the net benefit of the data that it uses
    over the data that it ignores. Source: arXiv 1911.00792, algorithm 1. In a layer for one child,
    any number of children share the parameters.

    Args:
        iterations: from 1 to 100; the paper has 3.
    """

    activation = "probability"
    permutation_equivariant = False
    adds_bias = True

    def __init__(self, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = check_iterations(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.B = nn.Parameter(torch.zeros(sizes.children, sizes.parents, sizes.dim))
        self.beta_use = nn.Parameter(torch.zeros(sizes.children, sizes.parents))
        self.beta_ignore = nn.Parameter(torch.zeros(sizes.children, sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Route some samples at a time; the logits of the parents are in the extras."""
        mu, a, R = ops.in_blocks(self._fit, votes)
        return Routed(mu, a.sigmoid(), R).with_extras(logits=a)

    def _fit(self, votes: Votes) -> tuple[Tensor, Tensor, Tensor]:
        """Means `[..., j, h]`, logits of activations `[..., j]` and couplings `[..., i, j]`."""
        beta_use = _per_child(votes, self.beta_use)
        beta_ignore = _per_child(votes, self.beta_ignore)
        B = _per_child(votes, self.B)
        if votes.bias is not None:
            B = B + votes.bias
        V = votes.dense() + B
        f = votes.activation.unsqueeze(-1)

        logits: Tensor | None = None
        for _ in range(self.iterations):
            R = votes.couple(logits)
            D = f * R
            a = (beta_use * D - beta_ignore * (f - D)).sum(dim=-2)
            w = D / (D.sum(dim=-2, keepdim=True) + EPSILON)
            mu = torch.einsum("...ij,...ijh->...jh", w, V)
            squares = (V - mu.unsqueeze(-3)).square()
            var = torch.einsum("...ij,...ijh->...jh", w, squares) + EPSILON
            log_std = 0.5 * var.log().sum(dim=-1).unsqueeze(-2)
            distance = (squares / (2 * var.unsqueeze(-3))).sum(dim=-1)
            log_density = -distance - log_std
            logits = F.logsigmoid(a).unsqueeze(-2) + log_density
        return mu, a, R


class RoutingHead(nn.Module):
    """Any sequence of feature vectors -> capsules -> logits of classes, by the routing of 2022.

    Args:
        dim: of the feature vectors, and of the capsules.
        classes: at least 1.
        hidden: capsules of the layers before the classes.
        length: of the sequences; None for any, whose vectors then share the parameters of one.
        iterations: of the routing.

    Shapes:
        input `[batch, n, dim]`, any numbers (normalized first), and optionally a mask `[batch, n]`,
        True for vectors that are present; output logits `[batch, classes]`.

    Raises:
        ArgumentError: sizes below 1, or features of another shape.

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
        self.dim = dim
        self.length = length
        self.norm = nn.LayerNorm(dim)
        counts = (length or 1, *hidden)
        sizes = [LayerSizes(n, dim, m, dim) for n, m in pairwise(counts)]
        sizes.append(LayerSizes(counts[-1], dim, classes, 1))
        layers = [
            RoutedLayer(FactorizedVotes(size), "heinsen_2022", iterations=iterations)
            for size in sizes
        ]
        self.routings = nn.Sequential(*layers)

    def forward(
        self, features: Float[Tensor, "batch n dim"], mask: Bool[Tensor, "batch n"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        length = features.shape[1] if self.length is None else self.length
        check_shape("features", features, ("batch", "n", "dim"), dim=self.dim, n=length)
        pose = full_precision(self.norm(features))
        activation = torch.ones_like(pose[..., 0]) if mask is None else mask.to(pose)
        classes: Capsules = self.routings(Capsules(pose, activation))
        return classes.pose.squeeze(-1)
