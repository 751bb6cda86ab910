"""Routing by agreement: procedure 1 of arXiv 1710.09829 against NumPy written from the page."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.functional import dynamic_routing, squash, uniform_routing
from torchcaps.testing import random_votes


def route_by_loops(votes, iterations, bias=0.0, leaky=False):
    """Pose and coupling of one sample, child after child."""
    children, parents, _ = votes.shape
    b = np.zeros((children, parents))
    for _ in range(iterations):
        weight = np.exp(b)
        total = weight.sum(1, keepdims=True)
        if leaky:
            total += 1.0
        c = weight / total
        s = (c[:, :, None] * votes).sum(0) + bias
        n2 = (s**2).sum(1, keepdims=True)
        v = n2 / (1 + n2) * s / np.sqrt(n2)
        for i in range(children):
            for j in range(parents):
                b[i, j] += votes[i, j] @ v[j]
    return v, c


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("bias", [0.0, 0.1])
def test_it_equals_loops(iterations, leaky, bias):
    votes = random_votes(3, 7, 4, 5, dtype=torch.float64)
    biases = torch.full((4, 5), bias, dtype=torch.float64) if bias else None
    routed = dynamic_routing(votes, iterations, bias=biases, leaky=leaky)
    for n in range(3):
        pose, coupling = route_by_loops(votes[n].numpy(), iterations, bias, leaky)
        np.testing.assert_allclose(
            routed.pose[n],
            pose,
            rtol=1e-6,
            atol=1e-7,
        )
        np.testing.assert_allclose(routed.coupling[n], coupling, rtol=1e-6)
        lengths = np.linalg.norm(pose, axis=-1)
        np.testing.assert_allclose(
            routed.activation[n],
            lengths,
            rtol=1e-6,
            atol=2e-8,
        )


def test_one_iteration_is_uniform_coupling():
    votes = random_votes(2, 8, 5, 3)
    routed = dynamic_routing(votes, 1)
    assert (routed.coupling == 1 / 5).all()
    assert_close(routed.pose, squash(votes.sum(dim=1) / 5))
    assert_close(uniform_routing(votes), routed)


def test_a_detached_gradient_treats_the_coupling_as_constant():
    votes = random_votes(2, 6, 3, 4, dtype=torch.float64).requires_grad_()
    detached = dynamic_routing(votes, 3, detach=True)
    full = dynamic_routing(votes, 3)
    assert_close(detached.pose, full.pose)
    s = torch.einsum("bij,bijd->bjd", full.coupling.detach(), votes)
    gradients = [
        torch.autograd.grad(pose.square().sum(), votes)[0]
        for pose in (detached.pose, squash(s), full.pose)
    ]
    assert_close(
        gradients[0],
        gradients[1],
        rtol=1e-6,
        atol=1e-9,
    )
    assert (gradients[0] - gradients[2]).abs().max() > 1e-4


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=r"votes: expected \[\*batch, children, parents, dim\]"):
        dynamic_routing(torch.rand(3, 4, 5))
    with pytest.raises(ArgumentError, match="iterations: expected at least 1, got 0"):
        dynamic_routing(torch.rand(1, 3, 4, 5), 0)
