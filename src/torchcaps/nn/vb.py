"""Variational Bayes (VB) routing: every parent is a Gaussian that is fitted to its votes.

Fabio De Sousa Ribeiro, Georgios Leontidis, Stefanos Kollias, "Capsule Routing via Variational
Bayes", AAAI 2020, arXiv 1905.11455, and the authors' code where it says more.

What comes in: a vote V_ij, D numbers, of each child i for the pose of each parent j, and the
activation a_i of each child. What goes out: pose m_j and activation a_j of each parent, and the
couplings R_ij, the share of child i that belongs to parent j.

The parents of one position are a mixture of Gaussians with proportions pi, and each has a mean and
a precision matrix (inverse covariance) Lambda_j. The priors are constants: Dirichlet(1) of the
proportions, Wishart(I, D + 1) of the precision, Normal(0, Lambda_j^-1) of the mean. So the
posteriors are of the same kinds:

    pi ~ Dirichlet(alpha)              alpha_j: concentration
    Lambda_j ~ Wishart(Psi_j, nu_j)    Psi_j: scale matrix; nu_j: degrees of freedom
    mean ~ Normal(m_j, (kappa_j Lambda_j)^-1)    kappa_j: votes behind m_j, and 1 for the prior

Shapes: `...` is the batch and the positions of the parents on a map.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import check_known
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import IterativeRouter, register_router
from torchcaps.types import Capsules, LayerSizes, Routed

Covariance = Literal["diagonal", "full"]
LOG_2_PI = math.log(2 * math.pi)
LOG_2_PI_E = math.log(2 * math.pi * math.e)


@register_router("vb")
class VBRouting(IterativeRouter):
    """A mixture of Gaussians with priors on all parameters.

    The variance of a parent with few votes stays near that of its prior. The numbers in brackets
    are those of the comments in `route`:

        R_ij equal
        repeat `iterations` times:
            M-step, posteriors:
                r_ij = R_ij a_i;  N_j = sum_i r_ij                                         (1)
                alpha_j = 1 + N_j;  kappa_j = 1 + N_j;  nu_j = D + 1 + N_j                 (2)
                mu_j = sum_i r_ij V_ij / N_j;  m_j = N_j mu_j / kappa_j                    (3)
                Psi_j^-1 = I + sum_i r_ij (V_ij - mu_j)(V_ij - mu_j)^T
                           + (N_j / kappa_j) mu_j mu_j^T                                   (4)
                E ln pi_j = digamma(alpha_j) - digamma(sum_k alpha_k)                      (5)
                E ln |Lambda_j| = sum_d digamma((nu_j - d) / 2) + D ln 2 + ln |Psi_j|,
                                  d from 0 to D - 1                                        (6)
            E-step, couplings, except in the last iteration:
                Q_ij = D / kappa_j + nu_j (V_ij - m_j)^T Psi_j (V_ij - m_j)                (7)
                ln p_ij = E ln pi_j + (E ln |Lambda_j| - D ln 2 pi - Q_ij) / 2             (8)
                R_ij = p_ij / sum_k p_ik, over the parents k that compete for child i      (9)
        H_j = (D ln 2 pi e - E ln |Lambda_j|) / 2, the entropy of the Gaussian            (10)
        a_j = sigmoid(beta_j - exp(E ln pi_j) H_j)                                        (11)

    Args:
        iterations: from 1 to 100; the paper has 3. One is this router without routing, as the first
            couplings are equal.
        covariance: "diagonal" keeps the diagonal of Psi_j^-1 alone; "full" takes the time of D x D
            matrices.
        batch_norm: batch-normalize poses and the logits of activations, per parent and without
            parameters, as in the authors' code. The mean that the batch norm subtracts from the
            logit then takes the place of beta_j.
        weighted: multiply H_j by N_j in equation 11, as a comment of the authors' code has it.
        outlier: log density of one more parent, "none of the above", that competes for every child
            and is left out of the output; None for no such parent. It adds its density to the sum
            of equation 9. With ln 1e-11 = -25.33 it is near the authors' code, which takes the
            larger of the sum and 1e-11.
        local_start: start with R_ij = 1 / (number of parents at a position), as in the authors'
            code. Where windows of a convolution overlap, a child stands in several of them, and its
            first couplings then sum to their number. By default they sum to 1.

    Raises:
        ArgumentError: an unknown covariance, or iterations out of range.
    """

    activation = "probability"  # of a parent: a number of its own, not the length of its pose
    agreement = True  # H_j has the scatter of the votes in it; an ablation sets it to False
    adds_bias = True  # `route` adds the learned bias of the layer, `votes.bias`

    def __init__(
        self,
        iterations: int = 3,
        *,
        covariance: Covariance = "diagonal",
        batch_norm: bool = False,
        weighted: bool = False,
        outlier: float | None = None,
        local_start: bool = False,
    ) -> None:
        super().__init__(iterations)
        check_known("covariance", covariance, Covariance)
        self.covariance = covariance
        self.batch_norm = batch_norm
        self.weighted = weighted
        self.outlier = outlier
        self.leaky = outlier is not None  # a child's couplings then sum to less than one
        self.local_start = local_start

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Make what depends on the number of parents: batch norms (pose, logit), or beta.

        Args:
            sizes: numbers of children and parents, and the dimensions of their poses.
        """
        if self.batch_norm:
            self.norms = nn.ModuleList(_Norm(sizes.parents, affine=False) for _ in range(2))
        else:
            self.beta = nn.Parameter(torch.zeros(sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Update posteriors and couplings in turn.

        Args:
            votes: of a layer; `dense()` is V `[..., i, j, D]`, and `activation` a `[..., i]`.
            parents: not used; they are for routers that start from earlier poses.

        Returns:
            Pose m `[..., j, D]`, activation `[..., j]` and coupling R `[..., i, j]`.
        """
        V = votes.add_bias(votes.dense())  # float32, or float64 for float64 poses
        V = V.transpose(-3, -2)  # [..., j, i, D]: sums over children are then matrix products
        D = votes.dim
        d = torch.arange(D, device=V.device, dtype=V.dtype)
        a = votes.activation.unsqueeze(-1)  # [..., i, 1]
        is_diagonal = self.covariance == "diagonal"
        gaussians_class = _DiagonalGaussians if is_diagonal else _FullGaussians
        X = torch.cat([V, V.square()], dim=-1) if is_diagonal else V

        R = votes.couple()
        if self.local_start and votes.context.fixed is None:
            R = torch.where(R > 0, 1 / votes.parents, R)
        for remaining in reversed(range(self.num_iterations)):  # 1 in an ablation
            # M-step, equations 1 to 4.
            r = (R * a).mT  # [..., j, i]
            N = r.sum(dim=-1)  # [..., j], as are alpha, kappa and nu
            alpha = kappa = 1 + N
            nu = D + 1 + N
            gaussians = gaussians_class(X, r, kappa)

            # Equations 5 and 6.
            log_pi = torch.digamma(alpha) - torch.digamma(alpha.sum(dim=-1, keepdim=True))
            digammas = torch.digamma((nu.unsqueeze(-1) - d) / 2)  # [..., j, D]
            log_det_lambda = digammas.sum(dim=-1) + D * math.log(2) + gaussians.log_det_psi

            # E-step, equations 7 to 9, except in the last iteration.
            if remaining:
                scaled_distance = nu.unsqueeze(-1) * gaussians.squared_distance(X)
                Q = (D / kappa).unsqueeze(-1) + scaled_distance  # [..., j, i]
                log_scale = log_pi + 0.5 * (log_det_lambda - D * LOG_2_PI)
                log_density = (log_scale.unsqueeze(-1) - 0.5 * Q).mT
                if self.outlier is not None:
                    log_density = log_density - self.outlier
                # Equation 9; `leaky` lets one more parent compete, of logit 0: the outlier.
                R = votes.couple(log_density, leaky=self.leaky)

        # Equations 10 and 11. Without agreement, Psi_j = I as of votes without scatter.
        if not self.agreement:
            log_det_lambda = log_det_lambda - gaussians.log_det_psi
        H = 0.5 * (D * LOG_2_PI_E - log_det_lambda)
        if self.weighted:
            H = H * N
        logit = -log_pi.exp() * H
        if not self.batch_norm:
            logit = full_precision(self.beta) + logit
            return Routed(gaussians.m, torch.sigmoid(logit), R)
        pose_norm, logit_norm = self.norms
        pose = _normalize(pose_norm, gaussians.m, num_axes=2)
        logit = _normalize(logit_norm, logit, num_axes=1)
        return Routed(pose, torch.sigmoid(logit), R)


class _DiagonalGaussians:
    """Equations 3 and 4 for every parent, with the diagonal of Psi_j^-1 alone.

    As the prior mean is 0 and kappa_j = 1 + N_j, both sums of equation 4 are one:
    Psi_j^-1 = I + sum_i r_ij V_ij V_ij^T - kappa_j m_j m_j^T.

    Args:
        X: votes and their squares, `[..., j, i, 2 D]`, so that one product sums both.
        r: weights of the votes, `[..., j, i]`.
        kappa: `[..., j]`.

    Attributes:
        m: posterior mean, `[..., j, D]`.
        inverse_psi: diagonal of Psi_j^-1, `[..., j, D]`.
        log_det_psi: ln |Psi_j|, `[..., j]`.
    """

    def __init__(self, X: Tensor, r: Tensor, kappa: Tensor) -> None:
        sums, sums_of_squares = (r.unsqueeze(-2) @ X).squeeze(-2).chunk(2, dim=-1)
        self.m = sums / kappa.unsqueeze(-1)
        scatter = (sums_of_squares - sums * self.m).clamp(min=0)  # below 0 by rounding alone
        self.inverse_psi = 1 + scatter
        self.log_det_psi = -self.inverse_psi.log().sum(dim=-1)

    def squared_distance(self, X: Tensor) -> Tensor:
        """`(V_ij - m_j)^T Psi_j (V_ij - m_j)`, `[..., j, i]`, expanded to make one product."""
        psi_m = self.m / self.inverse_psi
        factors = torch.cat([-2 * psi_m, 1 / self.inverse_psi], dim=-1)
        product = (X @ factors.unsqueeze(-1)).squeeze(-1)
        return product + (self.m * psi_m).sum(dim=-1, keepdim=True)


class _FullGaussians:
    """Equations 3 and 4 for every parent, with the full matrix Psi_j^-1; see the class above.

    Args:
        V: votes, `[..., j, i, D]`.
        r: weights of the votes, `[..., j, i]`.
        kappa: `[..., j]`.

    Attributes:
        m: posterior mean, `[..., j, D]`.
        cholesky_factor: lower triangular L, `[..., j, D, D]`, where Psi_j^-1 = L L^T.
        log_det_psi: ln |Psi_j|, `[..., j]`.
    """

    def __init__(self, V: Tensor, r: Tensor, kappa: Tensor) -> None:
        self.m = (r.unsqueeze(-2) @ V).squeeze(-2) / kappa.unsqueeze(-1)
        moments = (r.unsqueeze(-1) * V).mT @ V  # sum_i r_ij V_ij V_ij^T

        # Of large votes, rounding may leave the scatter with an eigenvalue below zero, down to about
        # -slack. So slack I is added beside the prior I.
        trace = moments.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        slack = 4 * V.shape[-1] * torch.finfo(V.dtype).eps * trace
        scatter = moments - kappa[..., None, None] * self.m.unsqueeze(-1) * self.m.unsqueeze(-2)
        identity = torch.eye(V.shape[-1], device=V.device, dtype=V.dtype)
        prior = (1 + slack)[..., None, None] * identity
        self.cholesky_factor = torch.linalg.cholesky(0.5 * (scatter + scatter.mT) + prior)
        self.log_det_psi = -2 * self.cholesky_factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)

    def squared_distance(self, V: Tensor) -> Tensor:
        """`(V_ij - m_j)^T Psi_j (V_ij - m_j) = |L^-1 (V_ij - m_j)|^2`, `[..., j, i]`."""
        differences = (V - self.m.unsqueeze(-2)).mT  # [..., j, D, i]
        whitened = torch.linalg.solve_triangular(self.cholesky_factor, differences, upper=False)
        return whitened.square().sum(dim=-2)


class _Norm(nn.BatchNorm1d):
    """Batch norm of `[batch, parents]` or `[batch, parents, D]`, per parent.

    A single value of each parent has no variance: it takes the running statistics.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.numel() == input.shape[1]:
            return nn.functional.batch_norm(input, self.running_mean, self.running_var)
        return super().forward(input)


def _normalize(norm: nn.Module, x: Tensor, num_axes: int) -> Tensor:
    """Normalize per parent, over all other axes.

    Args:
        norm: `_Norm`, whose buffers say in which type to compute.
        x: `[..., j]` or `[..., j, D]`.
        num_axes: axes from that of the parents on, 1 or 2; those before become one batch.
    """
    flat = x.flatten(0, -num_axes - 1).to(next(norm.buffers()).dtype)
    return norm(flat).to(x).view_as(x)
