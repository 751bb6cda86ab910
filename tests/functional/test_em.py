"""EM routing: procedure 1 of "Matrix capsules with EM routing" (ICLR 2018) against NumPy written from the equations."""

import numpy as np
import pytest
import torch

from torchcaps.functional import em_routing
from torchcaps.functional.routing.em import temperatures
from torchcaps.testing import assert_close, random_votes, seeded

EPSILON, VAR_MIN = 1e-7, 5e-4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_m_step(votes, r, beta_u, beta_a, inverse):
    """One parent after the other: mean, variance and activation logit."""
    children, parents, dim = votes.shape
    mu, var, logit = np.zeros((parents, dim)), np.zeros((parents, dim)), np.zeros(parents)
    for j in range(parents):
        data = r[:, j].sum()
        for h in range(dim):
            mu[j, h] = sum(r[i, j] * votes[i, j, h] for i in range(children)) / (data + EPSILON)
            spread = sum(r[i, j] * (votes[i, j, h] - mu[j, h]) ** 2 for i in range(children))
            var[j, h] = spread / (data + EPSILON) + VAR_MIN
        cost = sum((beta_u[j] + 0.5 * np.log(var[j, h])) * data for h in range(dim))
        logit[j] = inverse * (beta_a[j] - cost)
    return mu, var, logit


def numpy_e_step(votes, mu, var, logit):
    """One child after the other: activation times density of each parent, shared out."""
    children, parents, _ = votes.shape
    coupling = np.zeros((children, parents))
    for i in range(children):
        for j in range(parents):
            density = np.prod(
                np.exp(-((votes[i, j] - mu[j]) ** 2) / (2 * var[j])) / np.sqrt(2 * np.pi * var[j])
            )
            coupling[i, j] = sigmoid(logit[j]) * density
        coupling[i] /= coupling[i].sum()
    return coupling


def numpy_em(votes, activation, beta_u, beta_a, iterations, final):
    """Procedure 1 for one sample."""
    children, parents, _ = votes.shape
    coupling = np.full((children, parents), 1 / parents)
    for t in range(iterations):
        fit = numpy_m_step(
            votes, coupling * activation[:, None], beta_u, beta_a, final * (1 - 0.95 ** (t + 1))
        )
        if t == iterations - 1:
            return fit[0], sigmoid(fit[2]), coupling
        coupling = numpy_e_step(votes, *fit)
    return None


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("final", [0.01, 1.0])
def test_equals_numpy(iterations, final):
    votes = random_votes(2, 7, 4, 5, dtype=torch.float64)
    activation = torch.rand(2, 7, generator=seeded(1), dtype=torch.float64)
    beta_u, beta_a = (torch.randn(4, generator=seeded(k), dtype=torch.float64) for k in (2, 3))
    routed = em_routing(votes, activation, beta_u, beta_a, iterations, final)
    for b in range(2):
        arrays = (x.numpy() for x in (votes[b], activation[b], beta_u, beta_a))
        pose, active, coupling = numpy_em(*arrays, iterations, final)
        np.testing.assert_allclose(routed.pose[b], pose, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(routed.activation[b], active, rtol=1e-9)
        np.testing.assert_allclose(routed.coupling[b], coupling, rtol=1e-9, atol=1e-14)


def test_one_iteration_is_one_weighted_gaussian_fit():
    votes = random_votes(2, 8, 3, 4, dtype=torch.float64)
    activation = torch.rand(2, 8, generator=seeded(1), dtype=torch.float64)
    routed = em_routing(votes, activation, 0.0, 0.0, 1, [0.5])
    for b in range(2):
        for j in range(3):
            mean = np.average(votes[b, :, j].numpy(), axis=0, weights=activation[b].numpy())
            var = np.average(
                (votes[b, :, j].numpy() - mean) ** 2, axis=0, weights=activation[b].numpy()
            )
            np.testing.assert_allclose(routed.pose[b, j], mean, rtol=1e-6)
            cost = 0.5 * np.log(var + VAR_MIN).sum() * activation[b].sum().item() / 3
            assert routed.activation[b, j].item() == pytest.approx(sigmoid(-0.5 * cost), rel=1e-6)
    assert (routed.coupling == 1 / 3).all()


def test_couplings_sum_to_one_over_parents_and_not_over_children():
    routed = em_routing(random_votes(2, 9, 3, 4), torch.full((2, 9), 0.5), 0.0, 0.0)
    torch.testing.assert_close(routed.coupling.sum(dim=-1), torch.ones(2, 9))
    assert (routed.coupling.sum(dim=-2) - 1).abs().min() > 0.1


def test_the_order_of_children_does_not_matter():
    votes, activation = random_votes(2, 9, 3, 4), torch.rand(2, 9, generator=seeded(1))
    order = torch.randperm(9, generator=seeded(2))
    one, other = (
        em_routing(votes, activation, 0.1, 0.2),
        em_routing(votes[:, order], activation[:, order], 0.1, 0.2),
    )
    torch.testing.assert_close(other.pose, one.pose)
    torch.testing.assert_close(other.activation, one.activation)
    torch.testing.assert_close(other.coupling, one.coupling[:, order])


def test_a_child_of_activation_zero_has_no_influence():
    votes, activation = random_votes(2, 9, 3, 4), torch.rand(2, 9, generator=seeded(1))
    activation[:, 4] = 0.0
    without = [k for k in range(9) if k != 4]
    whole = em_routing(votes, activation, 0.1, 0.2)
    rest = em_routing(votes[:, without], activation[:, without], 0.1, 0.2)
    torch.testing.assert_close(whole.pose, rest.pose)
    torch.testing.assert_close(whole.activation, rest.activation)


def test_the_childrens_activation_does_not_cancel():
    """Where r is divided by its sum over parents once more, as some public code does, activations drop out."""
    votes = random_votes(1, 6, 3, 4)
    first = torch.linspace(0.1, 0.9, 6).unsqueeze(0)
    poses = [em_routing(votes, a, 0.0, 0.0).pose for a in (first, first.flip(1))]
    assert (poses[0] - poses[1]).abs().max() > 0.1


def test_parents_that_agree_attract_and_are_active():
    """Children agree about parent 0 and contradict each other about parent 1."""
    votes = random_votes(1, 20, 2, 4)
    votes[:, :, 0] = torch.tensor([1.0, -2.0, 0.5, 3.0]) + 0.05 * votes[:, :, 0]
    routed = em_routing(votes, torch.ones(1, 20), 0.0, 0.0, 3, 0.5)
    assert routed.activation[0, 0] > 0.9 > routed.activation[0, 1]
    assert routed.coupling[0, :, 0].min() > 0.9
    torch.testing.assert_close(
        routed.pose[0, 0], torch.tensor([1.0, -2.0, 0.5, 3.0]), atol=0.05, rtol=0
    )


@pytest.mark.parametrize("children", [1, 8])
@pytest.mark.parametrize("level", [0.0, 1e-4, 1.0])
def test_identical_votes(children, level):
    """No variance at all: finite values and gradients, whatever the activations."""
    votes = torch.ones(2, children, 3, 4, requires_grad=True)
    activation = torch.full((2, children), level, requires_grad=True)
    routed = em_routing(votes, activation, 0.0, 0.0, 3, 1.0)
    outcome = routed.pose.sum() + routed.activation.sum() + routed.coupling.square().sum()
    for tensor in (*routed, *torch.autograd.grad(outcome, (votes, activation))):
        assert tensor.isfinite().all()
    torch.testing.assert_close(routed.coupling, torch.full_like(routed.coupling, 1 / 3))


def test_zero_votes_and_zero_activations_have_finite_gradients():
    leaves = [
        x.requires_grad_()
        for x in (torch.zeros(2, 6, 3, 4), torch.zeros(2, 6), torch.zeros(3), torch.zeros(3))
    ]
    routed = em_routing(*leaves)
    for gradient in torch.autograd.grad(routed.pose.sum() + routed.activation.sum(), leaves):
        assert gradient.isfinite().all()


def test_far_off_children_underflow_to_no_nan():
    votes = random_votes(1, 6, 3, 16)
    votes[0, 0] = 1e4  # its density is exp(-1e10) everywhere
    routed = em_routing(votes, torch.ones(1, 6), 0.0, 0.0, 5, 1.0)
    assert all(tensor.isfinite().all() for tensor in routed)
    torch.testing.assert_close(routed.coupling.sum(dim=-1), torch.ones(1, 6))


def test_gradients():
    votes = random_votes(1, 4, 3, 4, dtype=torch.float64).requires_grad_()
    activation = torch.rand(1, 4, generator=seeded(1), dtype=torch.float64).requires_grad_()
    betas = [
        torch.randn(3, generator=seeded(k), dtype=torch.float64).requires_grad_() for k in (2, 3)
    ]
    assert torch.autograd.gradcheck(
        lambda *x: tuple(em_routing(*x, 3, 0.7)), (votes, activation, *betas)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_are_computed_in_float32(dtype):
    votes, activation = random_votes(2, 9, 3, 4), torch.rand(2, 9, generator=seeded(1))
    half = em_routing(votes.to(dtype), activation.to(dtype), 0.1, 0.2)
    expected = em_routing(votes.to(dtype).float(), activation.to(dtype).float(), 0.1, 0.2)
    with torch.autocast("cpu", torch.bfloat16):
        cast = em_routing(votes, activation, 0.1, 0.2)
    for found, truth in ((half, expected), (cast, em_routing(votes, activation, 0.1, 0.2))):
        for a, b in zip(found, truth, strict=True):
            assert a.dtype == torch.float32
            assert_close("half", a, b, 1e-6)


def test_temperatures():
    assert temperatures(3, 0.01) == pytest.approx([0.0005, 0.000975, 0.00142625])
    assert temperatures(2, [0.1, 0.2]) == [0.1, 0.2]
    with pytest.raises(
        ValueError, match="inverse_temperature: expected a number or 3 of them, got 2"
    ):
        temperatures(3, [0.1, 0.2])
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        temperatures(0, 0.1)


def test_wrong_arguments():
    votes, activation = random_votes(2, 9, 3, 4), torch.rand(2, 9)
    with pytest.raises(ValueError, match=r"votes: expected \[\*batch, children, parents, dim\]"):
        em_routing(votes[0, 0], activation, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"activation: expected the votes' \[2, 9\], got \[2, 8\]"):
        em_routing(votes, activation[:, :8], 0.0, 0.0)
    with pytest.raises(ValueError, match=r"beta_u: expected \[parents=3\], got \[parents=4\]"):
        em_routing(votes, activation, torch.zeros(4), 0.0)
