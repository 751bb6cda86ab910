"""Variational Bayes routing (arXiv 1905.11455) against NumPy loops written from the equations."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from torchcaps import testing
from torchcaps.functional import ConvField
from torchcaps.nn import CapsuleLinear, ConvCaps, MatrixVotes, RoutedLayer, VBRouting
from torchcaps.testing import random_votes, seeded
from torchcaps.types import Capsules, LayerSizes

COVARIANCES = ["diagonal", "full"]


def built(children, parents, dim, **options):
    """A router for given votes."""
    router = VBRouting(**options)
    router.build(LayerSizes(children, 0, parents, dim))
    return router.eval()


def digamma(x):
    """By recurrence up to 10, and its asymptotic series there."""
    below = 0.0
    while x < 10:
        below, x = below - 1 / x, x + 1
    return (
        below
        + math.log(x)
        - 1 / (2 * x)
        - 1 / (12 * x**2)
        + 1 / (120 * x**4)
        - 1 / (252 * x**6)
        + 1 / (240 * x**8)
    )


def numpy_fit(votes, r, covariance):
    """Posteriors of one position, parent after parent: alpha, kappa, nu, m, Psi^-1."""
    children, parents, dim = votes.shape
    found = []
    for j in range(parents):
        data = sum(r[i, j] for i in range(children))
        mu = sum(r[i, j] * votes[i, j] for i in range(children)) / data
        m = data * mu / (1 + data)
        inverse = np.eye(dim) + data / (1 + data) * np.outer(mu, mu)
        for i in range(children):
            inverse = inverse + r[i, j] * np.outer(votes[i, j] - mu, votes[i, j] - mu)
        if covariance == "diagonal":
            inverse = np.diag(np.diag(inverse))
        found.append((1 + data, 1 + data, dim + 1 + data, m, inverse))
    return found


def expectations(fits, dim):
    """E ln pi_j and E ln |Lambda_j|."""
    total = digamma(sum(alpha for alpha, *_ in fits))
    log_pi = [digamma(alpha) - total for alpha, *_ in fits]
    log_det = [
        sum(digamma((nu - d) / 2) for d in range(dim))
        + dim * math.log(2)
        - math.log(np.linalg.det(inverse))
        for _, _, nu, _, inverse in fits
    ]
    return log_pi, log_det


def numpy_log_density(votes, fits):
    """ln of what a child's coupling is proportional to, and the expectations."""
    children, parents, dim = votes.shape
    log_pi, log_det = expectations(fits, dim)
    log_p = np.zeros((children, parents))
    for i in range(children):
        for j, (_, kappa, nu, m, inverse) in enumerate(fits):
            apart = votes[i, j] - m
            far = dim / kappa + nu * apart @ np.linalg.inv(inverse) @ apart
            log_p[i, j] = log_pi[j] + (log_det[j] - dim * math.log(2 * math.pi) - far) / 2
    return log_p


def numpy_vb(votes, activation, iterations, covariance, weighted=False, outlier=None):
    """One sample: pose, activation, coupling, and the bound after each fit."""
    children, parents, dim = votes.shape
    coupling, bounds = np.full((children, parents), 1 / parents), []
    for t in range(iterations):
        fits = numpy_fit(votes, coupling * activation[:, None], covariance)
        log_p = numpy_log_density(votes, fits)
        bounds.append(numpy_bound(coupling, activation, log_p, fits, dim))
        if t < iterations - 1:
            p = np.exp(log_p)
            coupling = p / (
                p.sum(axis=1, keepdims=True) + (0 if outlier is None else math.exp(outlier))
            )
    log_pi, log_det = expectations(fits, dim)
    active = []
    for j, (alpha, *_) in enumerate(fits):
        cost = math.exp(log_pi[j]) * (dim * math.log(2 * math.pi * math.e) - log_det[j]) / 2
        active.append(1 / (1 + math.exp(cost * (alpha - 1 if weighted else 1))))
    return np.array([m for _, _, _, m, _ in fits]), np.array(active), coupling, bounds


def log_wishart(log_psi, nu, dim):
    """ln B(Psi, nu), the normalization of a Wishart distribution."""
    gammas = sum(math.lgamma((nu + 1 - d) / 2) for d in range(1, dim + 1))
    return (
        -nu / 2 * (log_psi + dim * math.log(2)) - dim * (dim - 1) / 4 * math.log(math.pi) - gammas
    )


def numpy_bound(coupling, activation, log_p, fits, dim):
    """What variational inference raises: the expected likelihood less what the posteriors tell beyond the priors."""
    alphas = [alpha for alpha, *_ in fits]
    log_pi, log_det = expectations(fits, dim)
    found = (activation[:, None] * coupling * (log_p - np.log(coupling))).sum()
    found -= math.lgamma(sum(alphas)) - sum(map(math.lgamma, alphas)) - math.lgamma(len(fits))
    found -= sum((alpha - 1) * x for alpha, x in zip(alphas, log_pi, strict=True))
    for (_, kappa, nu, m, inverse), x in zip(fits, log_det, strict=True):
        psi = np.linalg.inv(inverse)
        kl = 0.5 * (dim / kappa - dim + dim * math.log(kappa) + nu * m @ psi @ m)
        kl += log_wishart(math.log(np.linalg.det(psi)), nu, dim) - log_wishart(0.0, dim + 1, dim)
        kl += 0.5 * ((nu - dim - 1) * x - nu * dim + nu * np.trace(psi))
        found -= kl
    return found


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 1},
        {},
        {"iterations": 5},
        {"weighted": True},
        {"outlier": -25.33},
        {"outlier": -4.0},
    ],
)
def test_equals_numpy(covariance, options):
    votes = random_votes(2, 7, 4, 3, dtype=torch.float64)
    activation = torch.rand(2, 7, generator=seeded(1), dtype=torch.float64)
    routed = built(7, 4, 3, covariance=covariance, **options)(votes, activation)
    for b in range(2):
        arguments = {"iterations": 3, "covariance": covariance} | options
        pose, active, coupling, _ = numpy_vb(votes[b].numpy(), activation[b].numpy(), **arguments)
        np.testing.assert_allclose(routed.pose[b], pose, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(routed.activation[b].detach(), active, rtol=1e-7)
        np.testing.assert_allclose(routed.coupling[b], coupling, rtol=1e-6, atol=1e-12)


def test_a_map_equals_its_children_one_by_one():
    """A child's couplings sum to one over all parents of all windows with it; each window has its own posteriors."""
    layer = ConvCaps(2, 3, 3, 2, routing="vb", pose_size=2).double()
    pose = torch.randn(1, 7, 5, 2, 4, generator=seeded(), dtype=torch.float64)
    activation = torch.rand(1, 7, 5, 2, generator=seeded(1), dtype=torch.float64)
    windows = [(y, x) for y in range(3) for x in range(2)]
    index = np.arange(7 * 5 * 2).reshape(7, 5, 2)
    members = [index[2 * y : 2 * y + 3, 2 * x : 2 * x + 3].reshape(-1) for y, x in windows]
    poses, active = pose.reshape(-1, 2, 2).numpy(), activation.reshape(-1).numpy()
    weight = layer.weight.detach().numpy()
    votes = [np.einsum("ipr,ijrq->ijpq", poses[who], weight).reshape(-1, 3, 4) for who in members]
    count = np.zeros(len(poses))
    for who in members:
        count[who] += 3
    coupling = [np.repeat(1 / count[who], 3).reshape(-1, 3) for who in members]
    for t in range(3):
        shares = [c * active[who, None] for c, who in zip(coupling, members, strict=True)]
        fits = [numpy_fit(v, r, "diagonal") for v, r in zip(votes, shares, strict=True)]
        if t < 2:
            p = [np.exp(numpy_log_density(v, f)) for v, f in zip(votes, fits, strict=True)]
            total = np.zeros(len(poses))
            for one, who in zip(p, members, strict=True):
                total[who] += one.sum(axis=1)
            coupling = [one / total[who, None] for one, who in zip(p, members, strict=True)]
    parents = layer(Capsules(pose, activation))
    expected = np.array([[m for _, _, _, m, _ in fit] for fit in fits]).reshape(1, 3, 2, 3, 4)
    np.testing.assert_allclose(parents.pose.detach(), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("children", "parents", "dim"), [(40, 3, 2), (60, 5, 4)])
def test_the_bound_never_falls(covariance, children, parents, dim):
    """Of the loops above, which are what the router computes."""
    votes = 2 * random_votes(1, children, parents, dim, dtype=torch.float64)[0]
    activation = torch.rand(children, generator=seeded(1), dtype=torch.float64)
    *_, bounds = numpy_vb(votes.numpy(), activation.numpy(), 8, covariance)
    assert np.all(np.diff(bounds) > -1e-9)
    assert bounds[-1] > bounds[0]


@pytest.mark.parametrize(("data", "log_det"), [(0, 30.878014), (10, 46.166831), (100, 74.973766)])
def test_worked_values(data, log_det):
    """Sixteen dimensions; votes at m_0 leave Psi = I, and one parent has E ln pi = 0. Without data H is 7.264010."""
    activation = torch.ones(1, 100, dtype=torch.float64) * data / 100
    routed = built(100, 1, 16)(torch.zeros(1, 100, 1, 16, dtype=torch.float64), activation)
    entropy = 8 * math.log(2 * math.pi * math.e) - log_det / 2
    assert data or entropy == pytest.approx(7.264010, abs=1e-6)
    assert -routed.activation.logit().item() == pytest.approx(entropy, abs=2e-6)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_negative_votes_have_negative_poses_and_the_same_activation(covariance):
    router, votes = built(7, 4, 5, covariance=covariance), random_votes(2, 7, 4, 5)
    one, other = router(votes), router(-votes)
    torch.testing.assert_close(other.pose, -one.pose)
    torch.testing.assert_close(other.activation, one.activation)


def test_full_is_diagonal_where_dimensions_vary_alone():
    """Each vote lies on one axis, and comes with its mirror image."""
    axes = torch.eye(4, dtype=torch.float64) * torch.arange(1, 5)
    votes = torch.cat([axes, -axes])[None, :, None].expand(1, 8, 3, 4)
    one, other = (built(8, 3, 4, covariance=c, iterations=1)(votes) for c in COVARIANCES)
    torch.testing.assert_close(one.activation, other.activation)
    torch.testing.assert_close(one.pose, other.pose)


def test_a_parent_of_one_vote_keeps_its_variance():
    """Where maximum likelihood has none: of many copies of one vote, and of one child alone."""
    same = random_votes(1, 1, 3, 4).expand(1, 9, 3, 4)
    alone = torch.zeros(1, 9)
    alone[0, 4] = 1.0
    for activation in (torch.ones(1, 9), alone, torch.zeros(1, 9)):
        for covariance in COVARIANCES:
            leaf = same.clone().requires_grad_()
            routed = built(9, 3, 4, covariance=covariance)(leaf, activation)
            (gradient,) = torch.autograd.grad(routed.pose.sum() + routed.activation.sum(), leaf)
            for name, x in (
                ("pose", routed.pose),
                ("activation", routed.activation),
                ("gradient", gradient),
            ):
                testing.assert_finite(name, x)


@pytest.mark.parametrize(
    "options", [{}, {"outlier": -25.33}, {"weighted": True}, {"batch_norm": True}]
)
def test_full_keeps_every_property(options):
    testing.check_router("vb", covariance="full", **options)


def test_diagonal_keeps_every_property_with_an_outlier():
    testing.check_router("vb", outlier=-25.33)


def test_normalized_in_training_and_as_it_was_seen_afterwards():
    layer = RoutedLayer(
        MatrixVotes(LayerSizes(18, 4, 3, 4)), "vb", partial(ConvField, kernel=3), batch_norm=True
    )
    children = Capsules(
        torch.randn(8, 4, 5, 2, 4, generator=seeded()), torch.rand(8, 4, 5, 2, generator=seeded(1))
    )
    for _ in range(100):
        trained = layer(children)
    torch.testing.assert_close(
        trained.pose.mean(dim=(0, 1, 2, 4)), torch.zeros(3), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        trained.pose.var(dim=(0, 1, 2, 4), correction=0), torch.ones(3), atol=1e-3, rtol=0
    )
    logit = trained.activation.logit().flatten(0, 2)
    torch.testing.assert_close(logit.mean(dim=0), torch.zeros(3), atol=1e-4, rtol=0)
    seen = layer.eval()(children)
    torch.testing.assert_close(seen.pose, trained.pose, atol=0.05, rtol=0.05)
    assert not list(layer.router.parameters())


def test_a_batch_of_one_is_normalized_as_what_was_seen():
    layer = CapsuleLinear(6, 4, 5, 4, "vb", batch_norm=True)
    layer(torch.randn(8, 6, 4, generator=seeded()))
    alone = torch.randn(1, 6, 4, generator=seeded(1))
    assert layer(alone).activation.std() > 0
    assert layer(torch.zeros(0, 6, 4)).pose.shape == (0, 5, 4)


def test_wrong_options():
    with pytest.raises(ValueError, match="unknown covariance 'diag'; did you mean 'diagonal'"):
        VBRouting(covariance="diag")
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        VBRouting(0)
