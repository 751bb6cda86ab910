"""Heinsen's two routings, and a head that routes a sequence of feature vectors to classes.

Franz A. Heinsen, "An Algorithm for Routing Vectors in Sequences", 2022, arXiv 2211.11754
(`Heinsen2022`, `RoutingHead`), and "An Algorithm for Routing Capsules in All Domains", 2019, arXiv
1911.00792 (`Heinsen2019`). Parameters have the names of the author's code.

What comes in: the pose and activation of each child i, and its votes V_ij for the pose of each
parent j. What goes out: poses and activations of the parents, and couplings R_ij, the share of
child i that parent j uses. Both routings weigh a benefit `beta_use` of what a parent uses of each
child against a cost `beta_ignore` of what it ignores.

Shapes: `...` is the batch and the positions of the parents on a map; n children i with poses of d
numbers, m parents j with poses (and votes) of h numbers. On a map, n counts types of children: the
children of one type at several positions share its parameters, and i runs over all of them.

A layer that is built for n = 1 takes any number of children: they share its parameters, which have
one row instead of n.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from torchcaps import ops
from torchcaps.errors import check_positive, check_shape
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import Votes, num_voters, per_child
from torchcaps.nn.routed import RoutedLayer
from torchcaps.nn.routers import IterativeRouter, register_router
from torchcaps.nn.votes import FactorizedVotes
from torchcaps.types import Capsules, LayerSizes, Routed

EPSILON = 1e-5  # of the author's code: added to sums of weights and to variances

Beta = nn.Linear | nn.Parameter


@register_router("heinsen_2022")
class Heinsen2022(IterativeRouter):
    """Efficient vector routing: parents predict their children, and credit is signed.

    Source: arXiv 2211.11754, algorithm 1. The numbers in brackets are those of the comments in
    `route`; * multiplies element by element:

        f_i = sigmoid(<x_i / sqrt(N), W_A_i> + B_A_i) a_i, how far child i is activated        (1)
        R_ij = 1 / m
        repeat `iterations` times:
            phi_ij = beta_use_ij f_i R_ij - beta_ignore_ij (f_i - f_i R_ij), the credit        (2)
            y_j = normalize(bias_j + sum_i phi_ij V_ij)                                        (3)
            p_j = (y_j W_G1) * W_G2_j + B_G2_j, the prediction of parent j for its children    (4)
            S_ij = <x_i, p_j> W_S_ij + B_S_ij, its agreement with child i                      (5)
            R_i = softmax over parents of log sigmoid(S_ij)                                    (6)

    The last iteration ends with equation 3. N is the number of children i, `num_voters(votes)`; x_i
    is the pose of child i, a_i its activation, y_j the pose of parent j. bias_j is the bias of the
    layer, `votes.bias` `[m, h]`, if it has one. `normalize` gives each y_j mean 0 and variance 1;
    for h = 1 it does nothing.

    With `FactorizedVotes` no vote is ever stored. The activation of a child is 1, or 0 for padding;
    that of a parent is 1.

    Args:
        iterations: from 1 to 100; the paper has 2. One is no routing: shares are equal.

    Attributes:
        W_A, B_A: `[n, d]`, `[n]`; activation score of each child, equation 1.
        W_G1, W_G2, B_G2: `[h, d]`, `[m, d]`, `[m, d]`; prediction of children, equation 4.
        W_S, B_S: `[n, m]`; scale and offset of agreements, equation 5.
        beta_use, beta_ignore: `[n, m]`; in a layer for one child, linear functions of the pose.
    """

    activation = "none"  # nothing says whether a parent is present
    permutation_equivariant = False  # parameters belong to places of children and parents
    adds_bias = True  # `route` adds the learned bias of the layer, `votes.bias`
    beta_use: Beta
    beta_ignore: Beta

    def __init__(self, iterations: int = 2) -> None:
        super().__init__(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Draw the parameters, with the author's standard deviations; the layer calls this.

        Args:
            sizes: numbers of children n and parents m, and the dimensions of their poses, d and h.
        """
        n, d, m, h = sizes
        self.W_A = nn.Parameter(torch.randn(n, d) * 2 * d**-0.5)
        self.B_A = nn.Parameter(torch.zeros(n))
        self.W_G1 = nn.Parameter(torch.randn(h, d) * h**-0.5)
        self.W_G2 = nn.Parameter(torch.randn(m, d))
        self.W_S = nn.Parameter(torch.randn(n, m) * d**-0.5)
        self.B_S = nn.Parameter(torch.zeros(n, m))
        self.B_G2 = nn.Parameter(torch.zeros(m, d))
        self.beta_use, self.beta_ignore = (
            nn.Linear(d, m) if n == 1 else nn.Parameter(torch.randn(n, m)) for _ in range(2)
        )

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Update credit, parents and couplings in turn.

        Args:
            votes: of a layer, stored or not, with the children's `pose` `[..., i, d]`.
            parents: not used; they are for routers that start from earlier poses.

        Returns:
            Pose y `[..., j, h]`, activation 1 `[..., j]`, coupling R `[..., i, j]`, and as an extra
            the credit phi `[..., i, j]` of the last iteration.
        """
        x = full_precision(votes.pose)
        beta_use = _beta(votes, x, self.beta_use)
        beta_ignore = _beta(votes, x, self.beta_ignore)

        # Equation 1.
        products = x * num_voters(votes) ** -0.5 * _per_child(votes, self.W_A)
        score = products.sum(dim=-1) + _per_child(votes, self.B_A)
        f = torch.sigmoid(score) * votes.activation  # [..., i]; 0 for absent children
        f = f.unsqueeze(-1)

        logits: Tensor | None = None
        for remaining in reversed(range(self.iterations)):
            R = votes.couple(logits)  # equal without logits, else equation 6
            phi = beta_use * f * R - beta_ignore * (f - f * R)  # equation 2

            # Equation 3; vectors of one number stay as they are.
            y = votes.add_bias(votes.weighted(phi))
            if votes.dim > 1:
                y = F.layer_norm(y, y.shape[-1:])
            if remaining:
                logits = F.logsigmoid(self._agreement(votes, x, y))
        votes.context.record(credit=phi)
        return Routed(y, torch.ones_like(y[..., 0]), R)

    def _agreement(self, votes: Votes, x: Tensor, y: Tensor) -> Tensor:
        """Equations 4 and 5: S `[..., i, j]`, of poses x `[..., i, d]` and y `[..., j, h]`."""
        predictions = (y @ full_precision(self.W_G1)) * full_precision(self.W_G2)
        predictions = predictions + full_precision(self.B_G2)  # [..., j, d]
        products = torch.einsum("...id,...jd->...ij", x, predictions)
        return products * _per_child(votes, self.W_S) + _per_child(votes, self.B_S)


def _beta(votes: Votes, x: Tensor, beta: Beta) -> Tensor:
    """`beta_use` or `beta_ignore` of each child and parent, `[..., i, j]`, from its parameter."""
    if isinstance(beta, nn.Linear):
        return F.linear(x, full_precision(beta.weight), full_precision(beta.bias))
    return _per_child(votes, beta)


def _per_child(votes: Votes, parameter: Tensor) -> Tensor:
    """A parameter `[n, ...]` for each child, `[i, ...]`; one row for all children stays one row.

    On a map, the n types of children may have several positions each, with the same parameters.
    """
    parameter = full_precision(parameter)
    if len(parameter) == 1:
        return parameter
    return per_child(parameter, votes.count)


@register_router("heinsen_2019")
class Heinsen2019(IterativeRouter):
    """Generative matrix routing: parents are Gaussians, as in EM routing.

    Source: arXiv 1911.00792, algorithm 1. The numbers in brackets are those of the comments in
    `_fit`; f_i is the activation of child i:

        R_ij = 1 / m
        repeat `iterations` times:
            D_ij = f_i R_ij, the data of child i that parent j uses                           (1)
            a_j = sum_i (beta_use_ij D_ij - beta_ignore_ij (f_i - D_ij))                      (2)
            mu_j, var_j = mean and variance of V_ij + B_ij, weighted by D_ij                  (3)
            R_i = softmax over parents of log sigmoid(a_j) + log N(V_ij + B_ij; mu_j, var_j),
                  except in the last iteration                                                (4)

    Unlike in EM routing, the activation of a parent, sigmoid(a_j), is the net benefit of the data
    that it uses over the data that it ignores. N is a Gaussian with a variance of its own for each
    of the h dimensions.

    Args:
        iterations: from 1 to 100; the paper has 3.

    Attributes:
        B: `[n, m, h]`; added to the votes.
        beta_use, beta_ignore: `[n, m]`.
    """

    activation = "probability"  # of a parent: a number of its own, not the length of its pose
    permutation_equivariant = False  # parameters belong to places of children and parents
    adds_bias = True  # `_fit` adds the learned bias of the layer, `votes.bias`

    def __init__(self, iterations: int = 3) -> None:
        super().__init__(iterations)

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Start all parameters at 0, as the author does.

        Args:
            sizes: numbers of children n and parents m, and the dimensions of their poses.
        """
        n, _, m, h = sizes
        self.B = nn.Parameter(torch.zeros(n, m, h))
        self.beta_use = nn.Parameter(torch.zeros(n, m))
        self.beta_ignore = nn.Parameter(torch.zeros(n, m))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Route a block of samples at a time, so that the votes of a batch are never stored.

        Args:
            votes: of a layer; `dense()` is V `[..., i, j, h]`, and `activation` f `[..., i]`.
            parents: not used; they are for routers that start from earlier poses.

        Returns:
            Pose mu `[..., j, h]`, activation `[..., j]`, coupling R `[..., i, j]`, and as an extra
            the logits a `[..., j]` of the activations.
        """
        mu, a, R = ops.in_blocks(self._fit, votes)
        votes.context.record(logits=a)
        return Routed(mu, a.sigmoid(), R)

    def _fit(self, votes: Votes) -> tuple[Tensor, Tensor, Tensor]:
        """Means mu `[..., j, h]`, logits a `[..., j]` and couplings R `[..., i, j]`."""
        beta_use = _per_child(votes, self.beta_use)
        beta_ignore = _per_child(votes, self.beta_ignore)
        V = votes.dense() + votes.add_bias(_per_child(votes, self.B))
        f = votes.activation.unsqueeze(-1)

        logits: Tensor | None = None
        for _ in range(self.iterations):
            R = votes.couple(logits)  # equal without logits, else equation 4

            # Equations 1 and 2.
            D = f * R
            a = (beta_use * D - beta_ignore * (f - D)).sum(dim=-2)

            # Equation 3; the weights of a parent sum to one, but for EPSILON, over its children.
            weights = D / (D.sum(dim=-2, keepdim=True) + EPSILON)
            mu = torch.einsum("...ij,...ijh->...jh", weights, V)
            squares = (V - mu.unsqueeze(-3)).square()
            var = torch.einsum("...ij,...ijh->...jh", weights, squares) + EPSILON

            # Logits of equation 4, up to a constant: log N sums over the h dimensions.
            half_log_det = 0.5 * var.log().sum(dim=-1).unsqueeze(-2)
            distance = (squares / (2 * var.unsqueeze(-3))).sum(dim=-1)
            log_density = -distance - half_log_det
            logits = F.logsigmoid(a).unsqueeze(-2) + log_density
        return mu, a, R


class RoutingHead(nn.Module):
    """Any sequence of feature vectors -> capsules -> logits of classes, by the routing of 2022.

    Args:
        dim: of the feature vectors, and of the capsules between them and the classes.
        classes: at least 1. The pose of a class is its logit, one number.
        hidden: number of capsules of each layer between the features and the classes.
        length: number of vectors in a sequence; None takes sequences of any length, whose vectors
            share one child's parameters.
        iterations: of the routing.

    Shapes:
        input `[batch, n, dim]`, any numbers (normalized first), and optionally a mask `[batch, n]`,
        True for vectors that are present: the others change nothing; output logits
        `[batch, classes]`.

    Raises:
        ArgumentError: sizes below 1, iterations outside 1 to 100, or features of another shape.

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

        # Each layer's children are the parents of the layer before.
        counts = (length or 1, *hidden)
        sizes = [LayerSizes(n, dim, m, dim) for n, m in pairwise(counts)]
        sizes.append(LayerSizes(counts[-1], dim, classes, 1))
        self.routings = nn.Sequential()
        for layer_sizes in sizes:
            self.routings.append(
                RoutedLayer(FactorizedVotes(layer_sizes), "heinsen_2022", iterations=iterations)
            )

    def forward(
        self,
        features: Float[Tensor, "batch n dim"],
        mask: Bool[Tensor, "batch n"] | None = None,
    ) -> Float[Tensor, "batch classes"]:
        length = features.shape[1] if self.length is None else self.length
        check_shape("features", features, ("batch", "n", "dim"), dim=self.dim, n=length)
        pose = full_precision(self.norm(features))
        lowest: Capsules = self.routings[0](
            Capsules(pose, torch.ones_like(pose[..., 0])), mask=mask
        )
        class_capsules: Capsules = self.routings[1:](lowest)
        return class_capsules.pose.squeeze(-1)
