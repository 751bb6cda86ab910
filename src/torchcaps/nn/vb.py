"""Variational Bayes routing.

Fabio De Sousa Ribeiro, Georgios Leontidis, Stefanos Kollias, "Capsule Routing via Variational
Bayes", AAAI 2020, arXiv 1905.11455, and the authors' code where it says more. Letters: i children,
j parents, h dimensions of a vote, D of them. The priors are constants: alpha_0 = kappa_0 = 1,
m_0 = 0, Psi_0 = I, nu_0 = D + 1.
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
LOG_2_PI = math.log(2 * math.pi)
LOG_2_PI_E = math.log(2 * math.pi * math.e)


@register_router("vb")
class VBRouting(Router):
    """A mixture of Gaussians with priors on all parameters.

    A parent with few votes keeps its variance.

        R_ij equal
        repeat:
            M:  r_ij = R_ij a_i
                N_j = sum_i r_ij
                alpha_j = 1 + N_j;  kappa_j = 1 + N_j;  nu_j = D + 1 + N_j
                mu_j = sum_i r_ij V_ij / N_j
                m_j = N_j mu_j / kappa_j
                Psi_j^-1 = I + sum_i r_ij (V_ij - mu_j)(V_ij - mu_j)^T
                           + (N_j / kappa_j) mu_j mu_j^T
            E, except after the last M:
                ln R_ij = E ln pi_j + (E ln |Lambda_j| - D ln 2 pi - Q_ij) / 2 + constant_i
                Q_ij = D / kappa_j + nu_j |V_ij - m_j|^2_Psi
        H_j = (D ln 2 pi e - E ln |Lambda_j|) / 2
        a_j = sigmoid(beta_j - exp(E ln pi_j) H_j)

    Args:
        iterations: from 1 to 100; the paper has 3. One is this router without routing, as the first
            couplings are equal.
        covariance: "diagonal" keeps the diagonal of Psi_j^-1 alone; "full" takes the time of D x D
            matrices.
        batch_norm: batch-normalize poses and the logits of activations, per parent and without
            parameters, as in the authors' code. The mean then takes the place of beta_j.
        weighted: multiply H_j by N_j, as a comment of that code has it.
        outlier: log density of one more parent, "none of the above"; None is without. ln 1e-11 =
            -25.33 has the effect of that code's lower bound of a sum of densities.

    Raises:
        ArgumentError: an unknown covariance, or iterations out of range.
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
        self.iterations = check_iterations(iterations)
        self.covariance = covariance
        self.batch_norm = batch_norm
        self.weighted = weighted
        self.outlier = outlier
        self.leaky = outlier is not None

    def build_parameters(self, sizes: LayerSizes) -> None:
        if self.batch_norm:
            self.norms = nn.ModuleList(_Norm(sizes.parents, affine=False) for _ in range(2))
        else:
            self.beta = nn.Parameter(torch.zeros(sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Update parameters and couplings in turn.

        Parents come before children here, so that sums over children are matrix products.
        """
        V = votes.dense()
        if votes.bias is not None:
            V = V + full_precision(votes.bias)
        V = V.transpose(-3, -2)  # [..., j, i, h]
        D = votes.dim
        is_diagonal = self.covariance == "diagonal"
        fit = _fit_diagonal if is_diagonal else _fit_full
        distance = _distance_diagonal if is_diagonal else _distance_full
        if is_diagonal:
            V = torch.cat([V, V.square()], dim=-1)
        a = votes.activation.unsqueeze(-1)
        dims = torch.arange(D, device=V.device, dtype=V.dtype)

        R = votes.couple()
        for remaining in reversed(range(self.num_iterations)):
            # M: parameters of the posteriors, and expectations under them.
            r = (R * a).mT
            N = r.sum(dim=-1)
            alpha = 1 + N
            kappa = 1 + N
            nu = D + 1 + N
            m, scale, log_det_psi = fit(V, r, kappa)
            total = alpha.sum(dim=-1, keepdim=True)
            log_pi = torch.digamma(alpha) - torch.digamma(total)
            degrees = (nu.unsqueeze(-1) - dims) / 2
            log_det = torch.digamma(degrees).sum(dim=-1) + D * math.log(2) + log_det_psi

            # E: couplings.
            if remaining:
                q = nu.unsqueeze(-1) * distance(V, m, scale)
                Q = (D / kappa).unsqueeze(-1) + q
                log_scale = log_pi + 0.5 * (log_det - D * LOG_2_PI)
                log_density = log_scale.unsqueeze(-1) - 0.5 * Q
                R = self._couple(votes, log_density.mT)

        H = 0.5 * (D * LOG_2_PI_E - log_det)
        if self.weighted:
            H = H * N
        logit = -log_pi.exp() * H
        if not self.batch_norm:
            return Routed(m, torch.sigmoid(full_precision(self.beta) + logit), R)
        pose_norm, logit_norm = self.norms
        pose = _normalize(pose_norm, m, num_axes=2)
        logit = _normalize(logit_norm, logit, num_axes=1)
        return Routed(pose, torch.sigmoid(logit), R)

    def _couple(self, votes: Votes, log_density: Tensor) -> Tensor:
        """Couplings of these log densities, beside that of an outlier."""
        if self.outlier is None:
            return votes.couple(log_density)
        return votes.couple(log_density - self.outlier, leaky=True)


def _fit_diagonal(X: Tensor, r: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m_j, the diagonal of Psi_j^-1 and ln |Psi_j|, from votes and squares `[..., j, i, 2 D]`.

    With m_0 = 0 and kappa_0 = 1 both sums of Psi_j^-1 are one:
    sum_i r_ij V_ij V_ij^T - kappa_j m_j m_j^T.
    """
    sums, sums_of_squares = (r.unsqueeze(-2) @ X).squeeze(-2).chunk(2, dim=-1)
    m = sums / kappa.unsqueeze(-1)
    inverse_psi = 1 + (sums_of_squares - sums * m).clamp(min=0)
    return m, inverse_psi, -inverse_psi.log().sum(dim=-1)


def _distance_diagonal(X: Tensor, m: Tensor, inverse_psi: Tensor) -> Tensor:
    """`|V_ij - m_j|^2` in the metric of Psi_j, `[..., j, i]`, in one product."""
    psi_m = m / inverse_psi
    factors = torch.cat([-2 * psi_m, 1 / inverse_psi], dim=-1)
    product = (X @ factors.unsqueeze(-1)).squeeze(-1)
    constant = (m * psi_m).sum(dim=-1, keepdim=True)
    return product + constant


def _fit_full(V: Tensor, r: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m_j, the lower Cholesky factor of Psi_j^-1, and ln |Psi_j|."""
    m = (r.unsqueeze(-2) @ V).squeeze(-2) / kappa.unsqueeze(-1)
    moments = (r.unsqueeze(-1) * V).mT @ V
    # Rounding may leave a matrix of large votes with an eigenvalue below zero, by so much of their
    # squares.
    trace = moments.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    slack = 4 * V.shape[-1] * torch.finfo(V.dtype).eps * trace
    scatter = moments - kappa[..., None, None] * m.unsqueeze(-1) * m.unsqueeze(-2)
    eye = torch.eye(V.shape[-1], device=V.device, dtype=V.dtype)
    ridge = (1 + slack)[..., None, None] * eye
    factor = torch.linalg.cholesky(0.5 * (scatter + scatter.mT) + ridge)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    return m, factor, -2 * diagonal.log().sum(dim=-1)


def _distance_full(V: Tensor, m: Tensor, factor: Tensor) -> Tensor:
    """`|V_ij - m_j|^2` in the metric of Psi_j, `[..., j, i]`."""
    differences = (V - m.unsqueeze(-2)).mT  # [..., j, h, i]
    whitened = torch.linalg.solve_triangular(factor, differences, upper=False)
    return whitened.square().sum(dim=-2)


class _Norm(nn.BatchNorm1d):
    """Batch norm in which a single value, which has no variance, takes the running statistics."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.numel() == input.shape[1]:
            return F.batch_norm(input, self.running_mean, self.running_var)
        return super().forward(input)


def _normalize(norm: nn.Module, x: Tensor, num_axes: int) -> Tensor:
    """Normalize over all axes but that of the parents, the first of the last `num_axes`."""
    flat = x.flatten(0, -num_axes - 1).to(next(norm.buffers()).dtype)
    return norm(flat).to(x).view_as(x)
