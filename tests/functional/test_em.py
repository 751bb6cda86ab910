"""EM routing: procedure 1 of "Matrix capsules with EM routing" (ICLR 2018) against NumPy."""

import numpy as np
import pytest
import torch

from torchcaps.functional import em_routing
from torchcaps.functional.routing.em import temperatures
from torchcaps.testing import assert_same_routing, random_votes, seeded

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


def test_one_iteration_is_one_weighted_gaussian_fit():
    votes = random_votes(2, 8, 3, 4, dtype=torch.float64)
    activation = random_activation(2, 8, dtype=torch.float64)
    routed = em_routing(votes, activation, 0.0, 0.0, 1, [0.5])
    for n in range(2):
        weights = activation[n].numpy()
        for j in range(3):
            points = votes[n, :, j].numpy()
            mean = np.average(points, axis=0, weights=weights)
            var = np.average((points - mean) ** 2, axis=0, weights=weights)
            np.testing.assert_allclose(routed.pose[n, j], mean, rtol=1e-6)
            cost = 0.5 * np.log(var + VAR_MIN).sum() * weights.sum() / 3
            assert routed.activation[n, j].item() == pytest.approx(sigmoid(-0.5 * cost), rel=1e-6)
    assert (routed.coupling == 1 / 3).all()


def test_couplings_sum_to_one_over_parents_and_not_over_children():
    coupling = em_routing(random_votes(2, 9, 3, 4), torch.full((2, 9), 0.5), 0.0, 0.0).coupling
    torch.testing.assert_close(coupling.sum(dim=-1), torch.ones(2, 9))
    assert (coupling.sum(dim=-2) - 1).abs().min() > 0.1


def test_a_child_of_activation_zero_has_no_influence():
    votes = random_votes(2, 9, 3, 4)
    activation = random_activation(2, 9)
    activation[:, 4] = 0.0
    active_children = [0, 1, 2, 3, 5, 6, 7, 8]
    routed = em_routing(votes, activation, 0.1, 0.2)
    expected = em_routing(
        votes[:, active_children],
        activation[:, active_children],
        0.1,
        0.2,
    )
    torch.testing.assert_close(routed.pose, expected.pose)
    torch.testing.assert_close(routed.activation, expected.activation)


def test_the_activation_of_children_does_not_cancel():
    """In public code that divides r by its sum over parents, activations cancel."""
    votes = random_votes(1, 6, 3, 4)
    activation = torch.linspace(0.1, 0.9, 6).unsqueeze(0)
    pose = em_routing(votes, activation, 0.0, 0.0).pose
    flipped = em_routing(votes, activation.flip(1), 0.0, 0.0).pose
    assert (pose - flipped).abs().max() > 0.1


def test_parents_that_agree_attract_and_are_active():
    """Children agree about parent 0 and contradict each other about parent 1."""
    votes = random_votes(1, 20, 2, 4)
    agreed = torch.tensor([1.0, -2.0, 0.5, 3.0])
    votes[:, :, 0] = agreed + 0.05 * votes[:, :, 0]
    routed = em_routing(votes, torch.ones(1, 20), 0.0, 0.0, 3, 0.5)
    assert routed.activation[0, 0] > 0.9 > routed.activation[0, 1]
    assert routed.coupling[0, :, 0].min() > 0.9
    torch.testing.assert_close(routed.pose[0, 0], agreed, atol=0.05, rtol=0)


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


def test_zero_votes_and_zero_activations_have_finite_gradients():
    shapes = ((2, 6, 3, 4), (2, 6), (3,), (3,))
    leaves = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    routed = em_routing(*leaves)
    loss = routed.pose.sum() + routed.activation.sum()
    for gradient in torch.autograd.grad(loss, leaves):
        assert gradient.isfinite().all()


def test_far_votes_underflow_to_no_nan():
    votes = random_votes(1, 6, 3, 16)
    votes[0, 0] = 1e4  # its density is exp(-1e10) everywhere
    routed = em_routing(votes, torch.ones(1, 6), 0.0, 0.0, 5, 1.0)
    for tensor in routed:
        assert tensor.isfinite().all()
    torch.testing.assert_close(routed.coupling.sum(dim=-1), torch.ones(1, 6))


def test_gradients():
    votes = random_votes(1, 4, 3, 4, dtype=torch.float64)
    activation = random_activation(1, 4, dtype=torch.float64)
    betas = torch.randn(2, 3, generator=seeded(2), dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (votes, activation, *betas)]
    assert torch.autograd.gradcheck(lambda *x: tuple(em_routing(*x, 3, 0.7)), leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    votes = random_votes(2, 9, 3, 4).to(dtype)
    activation = random_activation(2, 9).to(dtype)
    half = em_routing(votes, activation, 0.1, 0.2)
    expected = em_routing(votes.float(), activation.float(), 0.1, 0.2)
    for tensor in half:
        assert tensor.dtype == torch.float32
    assert_same_routing(half, expected, 1e-6)


def test_autocast_changes_nothing():
    votes = random_votes(2, 9, 3, 4)
    activation = random_activation(2, 9)
    with torch.autocast("cpu", torch.bfloat16):
        cast = em_routing(votes, activation, 0.1, 0.2)
    for tensor in cast:
        assert tensor.dtype == torch.float32
    assert_same_routing(cast, em_routing(votes, activation, 0.1, 0.2), 1e-6)


def test_temperatures():
    assert temperatures(3, 0.01) == pytest.approx([0.0005, 0.000975, 0.00142625])
    assert temperatures(2, [0.1, 0.2]) == [0.1, 0.2]
    message = "inverse_temperature: expected a number or 3 of them, got 2"
    with pytest.raises(ValueError, match=message):
        temperatures(3, [0.1, 0.2])
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        temperatures(0, 0.1)


def test_wrong_arguments():
    votes = random_votes(2, 9, 3, 4)
    activation = torch.rand(2, 9)
    with pytest.raises(ValueError, match=r"votes: expected \[\*batch, children, parents, dim\]"):
        em_routing(votes[0, 0], activation, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"activation: expected the votes' \[2, 9\], got \[2, 8\]"):
        em_routing(votes, activation[:, :8], 0.0, 0.0)
    with pytest.raises(ValueError, match=r"beta_u: expected \[parents=3\], got \[parents=4\]"):
        em_routing(votes, activation, torch.zeros(4), 0.0)
