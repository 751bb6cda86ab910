"""Variational Bayes routing (Ribeiro, Leontidis, Kollias, "Capsule Routing via Variational Bayes", AAAI 2020).

arXiv 1905.11455, and the authors' code where it says more. Letters: i children, j parents, h dimensions of a vote, D of
them. The priors are constants: alpha_0 = kappa_0 = 1, m_0 = 0, Psi_0 = I, nu_0 = D + 1.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import check_known
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import Router, check_iterations, register_router
from torchcaps.types import Capsules, LayerSizes, Routed

Covariance = Literal["diagonal", "full"]


@register_router("vb")
class VBRouting(Router):
    """A mixture of Gaussians with priors on all of its parameters: a parent with few votes keeps its variance.

        R_ij equal shares;  repeat:  parameters;  couplings, except after the last parameters
        r_ij = R_ij a_i;  N_j = sum_i r_ij;  alpha_j = 1 + N_j;  kappa_j = 1 + N_j;  nu_j = D + 1 + N_j
        mu_j = sum_i r_ij V_ij / N_j;  m_j = N_j mu_j / kappa_j
        Psi_j^-1 = I + sum_i r_ij (V_ij - mu_j)(V_ij - mu_j)^T + (N_j / kappa_j) mu_j mu_j^T
        ln R_ij = E ln pi_j + (E ln |Lambda_j| - D ln 2 pi - D / kappa_j - nu_j |V_ij - m_j|^2_Psi) / 2 + constant_i
        a_j = sigmoid(beta_j - exp(E ln pi_j) H_j);  H_j = (D ln 2 pi e - E ln |Lambda_j|) / 2

    Equal couplings are the first iteration: `iterations=1` is this router without routing.

    Args:
        iterations: from 1 to 100; the paper uses 3.
        covariance: "diagonal" keeps the diagonal of Psi_j^-1 alone; "full" needs the time of D x D matrices.
        batch_norm: batch-normalize poses and the logits of activations, per parent and without parameters, as in the
            authors' code. There is no beta_j then: the mean takes its place.
        weighted: multiply H_j by N_j, as a comment of that code has it.
        outlier: log density of one more parent, "none of the above"; None is without. ln 1e-11 = -25.33 does what that
            code's lower bound of a sum of densities does.
    """

    activation = "probability"
    adds_bias = True

    def __init__(
        self,
        iterations: int = 3,
        *,
        covariance: Covariance = "diagonal",
        batch_norm: bool = False,
        weighted: bool = False,
        outlier: float | None = None,
    ) -> None:
        super().__init__()
        check_known("covariance", covariance, get_args(Covariance))
        self.iterations, self.covariance, self.weighted = (
            check_iterations(iterations),
            covariance,
            weighted,
        )
        self.batch_norm, self.outlier, self.leaky = batch_norm, outlier, outlier is not None

    def build_parameters(self, sizes: LayerSizes) -> None:
        if self.batch_norm:
            self.norms = nn.ModuleList(_Norm(sizes.parents, affine=False) for _ in range(2))
        else:
            self.beta = nn.Parameter(torch.zeros(sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """The updates in turn. Parents come before children here, so that sums over children are matrix products."""
        V = votes.dense() if votes.bias is None else votes.dense() + full_precision(votes.bias)
        V, a, D = V.transpose(-3, -2), votes.activation.unsqueeze(-1), votes.dim
        if self.covariance == "diagonal":
            V = torch.cat([V, V.square()], dim=-1)
        fit, distance = (
            (_fit, _distance) if self.covariance == "diagonal" else (_fit_full, _distance_full)
        )
        steps, R = torch.arange(D, device=V.device, dtype=V.dtype), self._share(votes, None)
        for left in reversed(range(self.num_iterations)):
            r = (R * a).mT
            N = r.sum(dim=-1)
            alpha, kappa, nu = 1 + N, 1 + N, D + 1 + N
            m, inverse, log_psi = fit(V, r, kappa)
            log_pi = torch.digamma(alpha) - torch.digamma(alpha.sum(dim=-1, keepdim=True))
            log_det = (
                torch.digamma((nu.unsqueeze(-1) - steps) / 2).sum(dim=-1)
                + D * math.log(2)
                + log_psi
            )
            if left:
                Q = (D / kappa).unsqueeze(-1) + nu.unsqueeze(-1) * distance(V, m, inverse)
                constant = log_pi + 0.5 * (log_det - D * math.log(2 * math.pi))
                R = self._share(votes, (constant.unsqueeze(-1) - 0.5 * Q).mT)
        H = 0.5 * (D * math.log(2 * math.pi * math.e) - log_det)
        logit = -log_pi.exp() * (H * N if self.weighted else H)
        if not self.batch_norm:
            return Routed(m, torch.sigmoid(full_precision(self.beta) + logit), R)
        pose, logit = (
            _normalized(x, y, axes)
            for x, y, axes in zip(self.norms, (m, logit), (2, 1), strict=True)
        )
        return Routed(pose, torch.sigmoid(logit), R)

    def _share(self, votes: Votes, log_p: Tensor | None) -> Tensor:
        """Couplings of these log densities, beside that of an outlier."""
        if log_p is None or self.outlier is None:
            return votes.couple(log_p)
        return votes.couple(log_p - self.outlier, leaky=True)


def _fit(X: Tensor, r: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m_j, the diagonal of Psi_j^-1 and ln |Psi_j|, from votes and their squares `[..., j, i, 2 D]`.

    With m_0 = 0 and kappa_0 = 1, both sums of Psi_j^-1 are one: sum_i r_ij V_ij V_ij^T - kappa_j m_j m_j^T.
    """
    first, second = (r.unsqueeze(-2) @ X).squeeze(-2).chunk(2, dim=-1)
    m = first / kappa.unsqueeze(-1)
    inverse = 1 + (second - first * m).clamp(min=0)
    return m, inverse, -inverse.log().sum(dim=-1)


def _distance(X: Tensor, m: Tensor, inverse: Tensor) -> Tensor:
    """`|V_ij - m_j|^2` in the metric of Psi_j, `[..., j, i]`, in one product."""
    near = m / inverse
    product = X @ torch.cat([-2 * near, 1 / inverse], dim=-1).unsqueeze(-1)
    return product.squeeze(-1) + (m * near).sum(dim=-1, keepdim=True)


def _fit_full(V: Tensor, r: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m_j, the lower triangle whose square is Psi_j^-1, and ln |Psi_j|."""
    m = (r.unsqueeze(-2) @ V).squeeze(-2) / kappa.unsqueeze(-1)
    second = (r.unsqueeze(-1) * V).mT @ V
    # Rounding may leave a matrix of large votes with an eigenvalue below zero, by so much of their squares.
    slack = (
        4 * V.shape[-1] * torch.finfo(V.dtype).eps * second.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    )
    inverse = second - kappa[..., None, None] * m.unsqueeze(-1) * m.unsqueeze(-2)
    eye = torch.eye(V.shape[-1], device=V.device, dtype=V.dtype)
    triangle = torch.linalg.cholesky(
        0.5 * (inverse + inverse.mT) + (1 + slack)[..., None, None] * eye
    )
    return m, triangle, -2 * triangle.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


def _distance_full(V: Tensor, m: Tensor, triangle: Tensor) -> Tensor:
    """`|V_ij - m_j|^2` in the metric of Psi_j, `[..., j, i]`."""
    white = torch.linalg.solve_triangular(
        triangle, (V - m.unsqueeze(-2)).mT, upper=False
    )  # [..., j, h, i]
    return white.square().sum(dim=-2)


class _Norm(nn.BatchNorm1d):
    """One value alone has no variance: it meets the running one, in training too."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.numel() == input.shape[1]:
            return F.batch_norm(input, self.running_mean, self.running_var)
        return super().forward(input)


def _normalized(norm: nn.Module, x: Tensor, axes: int) -> Tensor:
    """Over all but the parents, whose axis is the first of the last `axes`."""
    flat = x.flatten(0, -axes - 1).to(next(norm.buffers()).dtype)
    return norm(flat).to(x).view_as(x)
