"""Routing by agreement: procedure 1 of arXiv 1710.09829 against NumPy written from the page."""

import numpy as np
import pytest
import torch

from torchcaps.functional import dynamic_routing, squash, uniform_routing
from torchcaps.testing import random_votes


def numpy_routing(u, iterations, bias=0.0, leaky=False):
    """One sample after the other, one child after the other."""
    poses, couplings = [], []
    for votes in u:
        children, parents, _ = votes.shape
        b = np.zeros((children, parents))
        for step in range(iterations):
            c = np.exp(b) / (np.exp(b).sum(1, keepdims=True) + (1.0 if leaky else 0.0))
            s = (c[:, :, None] * votes).sum(0) + bias
            n2 = (s**2).sum(1, keepdims=True)
            v = n2 / (1 + n2) * s / np.sqrt(n2)
            if step < iterations - 1:
                for i in range(children):
                    for j in range(parents):
                        b[i, j] += votes[i, j] @ v[j]
        poses.append(v)
        couplings.append(c)
    return np.stack(poses), np.stack(couplings)


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_numpy(iterations, leaky, biased):
    votes = random_votes(3, 7, 4, 5, dtype=torch.float64)
    bias = torch.full((4, 5), 0.1, dtype=torch.float64) if biased else None
    routed = dynamic_routing(votes, iterations, bias=bias, leaky=leaky)
    pose, coupling = numpy_routing(votes.numpy(), iterations, 0.1 if biased else 0.0, leaky)
    np.testing.assert_allclose(routed.pose.numpy(), pose, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(routed.coupling.numpy(), coupling, rtol=1e-6)
    np.testing.assert_allclose(
        routed.activation.numpy(), np.linalg.norm(pose, axis=-1), rtol=1e-6, atol=2e-8
    )


def test_softmax_runs_over_parents():
    routed = dynamic_routing(random_votes(2, 9, 3, 4), 3)
    torch.testing.assert_close(routed.coupling.sum(dim=-1), torch.ones(2, 9))
    assert (routed.coupling.sum(dim=-2) - 1).abs().min() > 0.1  # not over children


def test_one_iteration_is_uniform_coupling():
    votes = random_votes(2, 8, 5, 3)
    routed = dynamic_routing(votes, 1)
    assert (routed.coupling == 1 / 5).all()
    torch.testing.assert_close(routed.pose, squash(votes.sum(dim=1) / 5))
    uniform = uniform_routing(votes)
    torch.testing.assert_close(uniform.pose, routed.pose)
    torch.testing.assert_close(uniform.activation, routed.activation)
    torch.testing.assert_close(uniform.coupling, routed.coupling)


def test_leaky_drops_a_share_and_its_logit_stays_zero():
    routed = dynamic_routing(random_votes(2, 8, 5, 3), 1, leaky=True)
    torch.testing.assert_close(routed.coupling, torch.full((2, 8, 5), 1 / 6))
    assert (dynamic_routing(random_votes(2, 8, 5, 3), 3, leaky=True).coupling.sum(-1) < 1).all()


def test_logits_belong_to_a_sample():
    votes = random_votes(4, 6, 3, 2)
    alone = dynamic_routing(votes[2:3])
    torch.testing.assert_close(dynamic_routing(votes).pose[2:3], alone.pose)
    torch.testing.assert_close(
        dynamic_routing(votes).pose, dynamic_routing(votes).pose
    )  # nothing is kept


@pytest.mark.parametrize("space", [(), (2, 3)])
def test_space(space):
    votes = random_votes(2, 6, 3, 4, space=space)
    routed = dynamic_routing(votes)
    assert routed.pose.shape == (2, *space, 3, 4)
    assert routed.activation.shape == (2, *space, 3)
    assert routed.coupling.shape == (2, *space, 6, 3)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_full_gradient(iterations):
    votes = random_votes(2, 4, 3, 2, dtype=torch.float64).requires_grad_()
    bias = torch.full((3, 2), 0.1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda u, b: dynamic_routing(u, iterations, bias=b), (votes, bias)
    )


def test_detached_gradient_treats_the_coupling_as_constant():
    votes = random_votes(2, 6, 3, 4, dtype=torch.float64).requires_grad_()
    detached, full = dynamic_routing(votes, 3, detach=True), dynamic_routing(votes, 3)
    torch.testing.assert_close(detached.pose, full.pose)
    (gradient,) = torch.autograd.grad(detached.pose.square().sum(), votes)
    s = torch.einsum("bij,bijd->bjd", full.coupling.detach(), votes)
    (expected,) = torch.autograd.grad(squash(s).square().sum(), votes)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
    (other,) = torch.autograd.grad(full.pose.square().sum(), votes)
    assert (gradient - other).abs().max() > 1e-4


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"votes: expected \[\*batch, children, parents, dim\]"):
        dynamic_routing(torch.rand(3, 4, 5))
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        dynamic_routing(torch.rand(1, 3, 4, 5), 0)
