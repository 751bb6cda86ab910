"""EM routing: each parent is a Gaussian that explains the votes of its children.

Geoffrey Hinton, Sara Sabour, Nicholas Frosst, "Matrix capsules with EM routing", ICLR 2018,
procedure 1. Letters: b batch, i children, j parents, h pose dimensions. Variances take the place of
the paper's standard deviations.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.functional.bounds import (
    clamp_finite,
    detach_extremes,
    factor_limit,
    full_precision,
    gradient_limit,
    without_autocast,
)
from torchcaps.functional.votes import AnyVotes, as_votes
from torchcaps.types import Routed

Beta = Float[Tensor, " parents"] | Tensor | float
EPSILON = 1e-7  # added to a parent's share of data
VAR_MIN = 5e-4  # added to variances: a parent with a single child has none


def em_routing(
    votes: AnyVotes,
    activation: Float[Tensor, "*batch children"] | None,
    beta_u: Beta,
    beta_a: Beta,
    iterations: int = 3,
    inverse_temperature: float | Sequence[float] = 0.01,
) -> Routed:
    """Fit one Gaussian per parent to the votes by expectation maximization.

        R_ij uniform
        repeat:
            M-step:  r_ij = R_ij a_i
                     S_j = sum_i r_ij
                     mu_jh = sum_i r_ij V_ijh / S_j
                     var_jh = sum_i r_ij (V_ijh - mu_jh)^2 / S_j + 5e-4
                     cost_jh = (beta_u + log(var_jh) / 2) S_j
                     a_j = sigmoid(lambda_t (beta_a - sum_h cost_jh))
            E-step, except after the last M-step:
                     R_i = softmax over parents of  log a_j + log N(V_ij; mu_j, var_j)

    beta_u, minus the cost of describing a dimension of a vote without a parent, stands inside the
    sum over h, as in the procedure. The gradient flows through all iterations.

    Args:
        votes: V, `[batch, *space, children, parents, dim]`, or the votes of a layer, whose field
            says which parents compete; its bias is added to them. Half precision is computed in
            float32. Numbers are clamped to 2^32 (2^256 in float64): squares must stay finite.
        activation: a_i, `[batch, *space, children]`, in [0, 1]; None for the votes of a layer,
            which have their own. A child of activation 0 has no influence.
        beta_u: a number, or one per parent `[parents]`.
        beta_a: likewise; the cost of describing a parent, which the gain of using it must exceed.
        iterations: T, at least 1; the paper has 3.
        inverse_temperature: lambda, one number per iteration, or its limit: then it is
            `lambda_t = limit (1 - 0.95^(t+1))`, t from 0, as in the authors' code.

    Returns:
        Routed: pose mu `[batch, *space, parents, dim]`, activation a_j `[batch, *space, parents]`
        in [0, 1], coupling R of the last M-step, which sums to one over the parents of a child.

    Raises:
        ArgumentError: shapes that do not fit, tensors that are not of floating point, or another
            number of temperatures than iterations.
    """
    votes = as_votes(votes, activation)
    check_costs(votes.parents, beta_u=beta_u, beta_a=beta_a)
    V = clamp_finite(votes.add_bias(votes.dense()), factor_limit)
    # The children of a parent next to each other, as products of matrices take them.
    V = V.transpose(-2, -3).contiguous().transpose(-2, -3)
    a_i = clamp_finite(votes.activation.to(V.dtype), gradient_limit).unsqueeze(-1)
    beta_u, beta_a = (
        full_precision(beta) if isinstance(beta, Tensor) else V.new_full((), beta)
        for beta in (beta_u, beta_a)
    )

    with without_autocast(V):
        R = votes.couple().to(V.dtype)
        for t, lambda_t in enumerate(temperatures(iterations, inverse_temperature), start=1):
            r = R * a_i
            S = r.sum(dim=-2)
            w = r / (S + EPSILON).unsqueeze(-2)
            mu = torch.einsum("...ij,...ijh->...jh", w, V)
            squares = (V - mu.unsqueeze(-3)).square()
            var = torch.einsum("...ij,...ijh->...jh", w, squares) + VAR_MIN
            log_var = var.log()
            if t == 1:
                # Most of a logarithm is common to all parents of an image. Their differences
                # decide the couplings, and lose fewer digits without it.
                common = log_var.detach().mean(dim=tuple(range(1, var.dim() - 1)), keepdim=True)
                fixed_cost = torch.add(common.sum(dim=-1), beta_u, alpha=2 * votes.dim)
            log_var = (log_var - common).sum(dim=-1)
            cost = (fixed_cost + log_var) * S  # twice the sum over h
            logit = torch.add(lambda_t * beta_a, cost, alpha=-0.5 * lambda_t)
            if t < iterations:
                # log a_j + log N(V_ij; mu_j, var_j), without the constant that softmax cancels
                log_peak = torch.add(F.logsigmoid(logit), log_var, alpha=-0.5)
                distance = (squares / var.unsqueeze(-3)).sum(dim=-1)
                log_p = torch.add(log_peak.unsqueeze(-2), distance, alpha=-0.5)
                R = votes.couple(detach_extremes(log_p))
    return Routed(mu, torch.sigmoid(logit), R)


def check_costs(parents: int, **costs: Beta) -> None:
    """Raise ArgumentError unless each of these costs is a number or has one for each parent."""
    for name, cost in costs.items():
        if isinstance(cost, Tensor) and cost.dim() > 0:
            check_shape(name, cost, ("parents",), parents=parents)


def temperatures(iterations: int, inverse_temperature: float | Sequence[float]) -> list[float]:
    """lambda of each iteration: the authors' schedule towards a number, or the numbers themselves.

    Raises:
        ArgumentError: another number of temperatures than iterations.
    """
    check_range("iterations", iterations, low=1)
    if isinstance(inverse_temperature, int | float):
        return [inverse_temperature * (1 - 0.95 ** (t + 1)) for t in range(iterations)]
    if len(inverse_temperature) != iterations:
        raise ArgumentError(
            "inverse_temperature",
            f"expected a number or {iterations} of them, got {len(inverse_temperature)}",
        )
    return list(inverse_temperature)
