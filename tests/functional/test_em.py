"""EM routing: procedure 1 of "Matrix capsules with EM routing" (ICLR 2018) against NumPy."""

import numpy as np
import pytest
import torch

from torchcaps.errors import ArgumentError
from torchcaps.functional import em_routing
from torchcaps.functional.routing.em import temperatures
from torchcaps.testing import random_votes, seeded

EPSILON = 1e-7
VAR_MIN = 5e-4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def m_step(votes, r, beta_u, beta_a, lambda_t):
    """One parent after the other: mean, variance and activation logit."""
    _, parents, dim = votes.shape
    mu = np.zeros((parents, dim))
    var = np.zeros((parents, dim))
    logit = np.zeros(parents)
    for j in range(parents):
        data = r[:, j].sum()
        for h in range(dim):
            mu[j, h] = r[:, j] @ votes[:, j, h] / (data + EPSILON)
            spread = r[:, j] @ (votes[:, j, h] - mu[j, h]) ** 2
            var[j, h] = spread / (data + EPSILON) + VAR_MIN
        cost = (beta_u[j] + 0.5 * np.log(var[j])) * data
        logit[j] = lambda_t * (beta_a[j] - cost.sum())
    return mu, var, logit


def e_step(votes, mu, var, logit):
    """One child after the other: activation times density of each parent, shared out."""
    children, parents, _ = votes.shape
    coupling = np.zeros((children, parents))
    for i in range(children):
        for j in range(parents):
            exponent = -((votes[i, j] - mu[j]) ** 2) / (2 * var[j])
            density = np.prod(np.exp(exponent) / np.sqrt(2 * np.pi * var[j]))
            coupling[i, j] = sigmoid(logit[j]) * density
        coupling[i] /= coupling[i].sum()
    return coupling


def route_by_loops(votes, activation, beta_u, beta_a, iterations, limit):
    """Procedure 1 for one sample."""
    children, parents, _ = votes.shape
    coupling = np.full((children, parents), 1 / parents)
    fit = None
    for t in range(iterations):
        if fit is not None:
            coupling = e_step(votes, *fit)
        r = coupling * activation[:, None]
        fit = m_step(votes, r, beta_u, beta_a, limit * (1 - 0.95 ** (t + 1)))
    mu, _, logit = fit
    return mu, sigmoid(logit), coupling


def random_activation(*shape, **options):
    return torch.rand(shape, generator=seeded(1), **options)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("limit", [0.01, 1.0])
def test_it_equals_loops(iterations, limit):
    votes = random_votes(2, 7, 4, 5, dtype=torch.float64)
    activation = random_activation(2, 7, dtype=torch.float64)
    betas = torch.randn(2, 4, generator=seeded(2), dtype=torch.float64)
    routed = em_routing(votes, activation, *betas, iterations, limit)
    for n in range(2):
        arrays = votes[n].numpy(), activation[n].numpy(), *betas.numpy()
        pose, active, coupling = route_by_loops(*arrays, iterations, limit)
        np.testing.assert_allclose(
            routed.pose[n],
            pose,
            rtol=1e-9,
            atol=1e-12,
        )
        np.testing.assert_allclose(routed.activation[n], active, rtol=1e-9)
        np.testing.assert_allclose(
            routed.coupling[n],
            coupling,
            rtol=1e-9,
            atol=1e-14,
        )


@pytest.mark.parametrize("children", [1, 8])
@pytest.mark.parametrize("level", [0.0, 1e-4, 1.0])
def test_identical_votes_have_finite_values_and_gradients(children, level):
    votes = torch.ones(2, children, 3, 4, requires_grad=True)
    activation = torch.full((2, children), level, requires_grad=True)
    routed = em_routing(votes, activation, 0.0, 0.0, 3, 1.0)
    loss = routed.pose.sum() + routed.activation.sum() + routed.coupling.square().sum()
    for tensor in (*routed, *torch.autograd.grad(loss, (votes, activation))):
        assert tensor.isfinite().all()
    torch.testing.assert_close(routed.coupling, torch.full_like(routed.coupling, 1 / 3))


def test_temperatures():
    assert temperatures(3, 0.01) == pytest.approx([0.0005, 0.000975, 0.00142625])
    assert temperatures(2, [0.1, 0.2]) == [0.1, 0.2]
    message = "inverse_temperature: expected a number or 3 of them, got 2"
    with pytest.raises(ArgumentError, match=message):
        temperatures(3, [0.1, 0.2])
    with pytest.raises(ArgumentError, match="iterations: expected at least 1, got 0"):
        temperatures(0, 0.1)


def test_wrong_arguments():
    votes = random_votes(2, 9, 3, 4)
    activation = torch.rand(2, 9)
    with pytest.raises(ArgumentError, match=r"votes: expected \[\*batch, children, parents, dim\]"):
        em_routing(votes[0, 0], activation, 0.0, 0.0)
    with pytest.raises(
        ArgumentError, match=r"activation: expected the votes' \[2, 9\], got \[2, 8\]"
    ):
        em_routing(votes, activation[:, :8], 0.0, 0.0)
    with pytest.raises(ArgumentError, match=r"beta_u: expected \[parents=3\], got \[parents=4\]"):
        em_routing(votes, activation, torch.zeros(4), 0.0)
