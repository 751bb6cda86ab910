"""Variational Bayes routing (arXiv 1905.11455) against NumPy loops written from the equations."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import digamma

from torchcaps import testing
from torchcaps.errors import ArgumentError
from torchcaps.functional import ConvField
from torchcaps.nn import CapsuleLinear, MatrixVotes, RoutedLayer, VBRouting
from torchcaps.testing import random_votes, seeded
from torchcaps.types import Capsules, LayerSizes

ALL_COVARIANCES = pytest.mark.parametrize("covariance", ["diagonal", "full"])


def build_router(children, parents, dim, **options):
    router = VBRouting(**options)
    router.build(LayerSizes(children, 0, parents, dim))
    return router.eval()


def random_activation(*shape):
    return torch.rand(shape, generator=seeded(1), dtype=torch.float64)


def fit_posteriors(votes, r, covariance):
    """Posteriors of one position, parent after parent: alpha, kappa, nu, m, Psi^-1."""
    children, parents, dim = votes.shape
    posteriors = []
    for j in range(parents):
        data = r[:, j].sum()
        mu = r[:, j] @ votes[:, j] / data
        m = data * mu / (1 + data)
        inverse = np.eye(dim) + data / (1 + data) * np.outer(mu, mu)
        for i in range(children):
            difference = votes[i, j] - mu
            inverse = inverse + r[i, j] * np.outer(difference, difference)
        if covariance == "diagonal":
            inverse = np.diag(np.diag(inverse))
        posteriors.append((1 + data, 1 + data, dim + 1 + data, m, inverse))
    return posteriors


def compute_expectations(posteriors, dim):
    """E ln pi_j and E ln |Lambda_j|."""
    alphas = []
    log_det = []
    for alpha, _, nu, _, inverse in posteriors:
        alphas.append(alpha)
        digammas = digamma((nu - np.arange(dim)) / 2).sum()
        log_det.append(digammas + dim * math.log(2) - math.log(np.linalg.det(inverse)))
    log_pi = digamma(alphas) - digamma(sum(alphas))
    return log_pi, log_det


def compute_log_density(votes, posteriors):
    """ln of the numbers that a child's couplings are proportional to."""
    children, parents, dim = votes.shape
    log_pi, log_det = compute_expectations(posteriors, dim)
    log_p = np.zeros((children, parents))
    for i in range(children):
        for j, (_, kappa, nu, m, inverse) in enumerate(posteriors):
            difference = votes[i, j] - m
            q = dim / kappa + nu * difference @ np.linalg.inv(inverse) @ difference
            log_p[i, j] = log_pi[j] + (log_det[j] - dim * math.log(2 * math.pi) - q) / 2
    return log_p


def route_by_loops(votes, activation, iterations, covariance, weighted=False, outlier=None):
    """One sample: pose, activation and coupling."""
    children, parents, dim = votes.shape
    coupling = np.full((children, parents), 1 / parents)
    for t in range(iterations):
        posteriors = fit_posteriors(votes, coupling * activation[:, None], covariance)
        if t < iterations - 1:
            p = np.exp(compute_log_density(votes, posteriors))
            outlier_density = 0 if outlier is None else math.exp(outlier)
            coupling = p / (p.sum(axis=1, keepdims=True) + outlier_density)
    log_pi, log_det = compute_expectations(posteriors, dim)

    pose = np.zeros((parents, dim))
    active = np.zeros(parents)
    for j, (alpha, _, _, m, _) in enumerate(posteriors):
        pose[j] = m
        entropy = (dim * math.log(2 * math.pi * math.e) - log_det[j]) / 2
        cost = math.exp(log_pi[j]) * entropy
        if weighted:
            cost *= alpha - 1
        active[j] = 1 / (1 + math.exp(cost))
    return pose, active, coupling


@ALL_COVARIANCES
@pytest.mark.parametrize(
    "options",
    [{"iterations": 1}, {}, {"weighted": True}, {"outlier": -25.33}, {"outlier": -4.0}],
)
def test_it_equals_loops(covariance, options):
    votes = random_votes(2, 7, 4, 3, dtype=torch.float64)
    activation = random_activation(2, 7)
    routed = build_router(7, 4, 3, covariance=covariance, **options)(votes, activation)
    options = {"iterations": 3, "covariance": covariance} | options
    for b in range(2):
        arrays = votes[b].numpy(), activation[b].numpy()
        pose, active, coupling = route_by_loops(*arrays, **options)
        for actual, expected in zip(routed, (pose, active, coupling), strict=True):
            np.testing.assert_allclose(actual[b].detach(), expected, rtol=1e-6, atol=1e-12)


@ALL_COVARIANCES
@pytest.mark.parametrize("present", [slice(None), slice(4, 5), slice(0)])
def test_a_parent_of_one_vote_keeps_its_variance(covariance, present):
    """Maximum likelihood has none: of many copies of one vote, and of one child alone."""
    votes = random_votes(1, 1, 3, 4).repeat(1, 9, 1, 1).requires_grad_()
    activation = torch.zeros(1, 9)
    activation[:, present] = 1.0
    routed = build_router(9, 3, 4, covariance=covariance)(votes, activation)
    loss = routed.pose.sum() + routed.activation.sum()
    (gradient,) = torch.autograd.grad(loss, votes)
    for tensor in (routed.pose, routed.activation, gradient):
        assert tensor.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        {"covariance": "full"},
        {"covariance": "full", "outlier": -25.33},
        {"outlier": -25.33},
        pytest.param({"covariance": "full", "weighted": True}, marks=pytest.mark.slow),
        pytest.param({"covariance": "full", "batch_norm": True}, marks=pytest.mark.slow),
    ],
)
def test_it_keeps_every_property(options):
    testing.check_router("vb", **options)


def test_batch_norm_normalizes_in_training_and_by_running_statistics_afterwards():
    votes = MatrixVotes(LayerSizes(18, 4, 3, 4))
    layer = RoutedLayer(votes, "vb", partial(ConvField, kernel=3), batch_norm=True)
    pose = torch.randn(8, 4, 5, 2, 4, generator=seeded())
    children = Capsules(pose, torch.rand(8, 4, 5, 2, generator=seeded(1)))
    for _ in range(60):
        trained = layer(children)
    axes = (0, 1, 2, 4)
    assert trained.pose.mean(dim=axes).abs().max() < 1e-5
    assert (trained.pose.var(dim=axes, correction=0) - 1).abs().max() < 1e-3
    assert trained.activation.logit().mean(dim=(0, 1, 2)).abs().max() < 1e-4
    evaluated = layer.eval()(children)
    torch.testing.assert_close(
        evaluated.pose,
        trained.pose,
        atol=0.05,
        rtol=0.05,
    )
    assert not list(layer.router.parameters())


def test_a_batch_of_one_is_normalized_by_running_statistics():
    layer = CapsuleLinear(6, 4, 5, 4, "vb", batch_norm=True)
    layer(torch.randn(8, 6, 4, generator=seeded()))
    assert layer(torch.randn(1, 6, 4, generator=seeded(1))).activation.std() > 0
    assert layer(torch.zeros(0, 6, 4)).pose.shape == (0, 5, 4)


def test_wrong_options():
    with pytest.raises(ArgumentError, match="unknown covariance 'diag'; did you mean 'diagonal'"):
        VBRouting(covariance="diag")
    with pytest.raises(ArgumentError, match="iterations: expected at least 1, got 0"):
        VBRouting(0)
