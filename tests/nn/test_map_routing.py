"""3-D convolutional routing of DeepCaps (arXiv 1904.09546) against loops in NumPy."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps import record_routing, testing
from torchcaps.functional import dynamic_routing
from torchcaps.nn import MapRouting, RoutedLayer, use_generator
from torchcaps.nn.map_routing import KernelVotes, global_competition, per_position
from torchcaps.testing import random_votes, seeded
from torchcaps.types import Capsules, LayerSizes

ALL_SQUASHES = pytest.mark.parametrize("local", [False, True])


def make_layer(local=False, iterations=3):
    """Three types of two dimensions vote for four of five, over windows of 3 x 3 positions."""
    with use_generator(seeded()):
        votes = KernelVotes(LayerSizes(3, 2, 4, 5))
    torch.nn.init.normal_(votes.bias, generator=seeded(3))
    field = per_position if local else global_competition
    return RoutedLayer(votes, MapRouting(iterations, local=local), field)


def vote_by_loops(pose, weight):
    """Votes `[height, width, i, j, d]`, window after window; nothing lies beyond the border."""
    height, width, types, _ = pose.shape
    padded = np.pad(pose, [(1, 1), (1, 1), (0, 0), (0, 0)])
    votes = np.zeros((height, width, types, len(weight)))
    for y in range(height):
        for x in range(width):
            window = padded[y : y + 3, x : x + 3]
            votes[y, x] = np.einsum("yxia,kayx->ik", window, weight)
    return votes.reshape(height, width, types, 4, 5)


def route_by_loops(votes, bias, iterations, local):
    """Poses and couplings of one sample."""
    types, parents = votes.shape[2:4]
    b = np.zeros(votes.shape[:-1])
    for _ in range(iterations):
        k = np.zeros_like(b)
        for i in range(types):
            weight = np.exp(b[:, :, i])
            total = weight.sum()
            if local:
                total = weight.sum(axis=-1, keepdims=True)
            k[:, :, i] = weight / total
        S = (k[..., None] * votes).sum(axis=2) + bias
        v = np.zeros_like(S)
        for j in range(parents):
            squares = S[:, :, j] ** 2
            n2 = squares.sum()
            if local:
                n2 = squares.sum(axis=-1, keepdims=True)
            v[:, :, j] = S[:, :, j] * np.sqrt(n2) / (1 + n2)
        b = b + (votes * v[:, :, None]).sum(axis=-1)
    return v, k


@ALL_SQUASHES
@pytest.mark.parametrize("iterations", [1, 3])
def test_it_equals_loops(local, iterations):
    layer = make_layer(local, iterations).double()
    pose = 3 * torch.randn(2, 3, 4, 3, 2, generator=seeded(), dtype=torch.float64)
    with record_routing(layer) as record:
        layer(pose)
    trace = record[""][0]
    weight = layer.weight.detach().numpy()
    bias = layer.bias.detach().numpy()
    for n in range(2):
        votes = vote_by_loops(pose[n].numpy(), weight)
        v, k = route_by_loops(votes, bias, iterations, local)
        np.testing.assert_allclose(trace.pose[n], v, rtol=1e-6, atol=1e-9)
        lengths = np.linalg.norm(v, axis=-1)
        np.testing.assert_allclose(
            trace.activation[n],
            lengths,
            rtol=1e-6,
            atol=1e-9,
        )
        np.testing.assert_allclose(
            trace.coupling[n],
            k,
            rtol=1e-6,
            atol=1e-12,
        )


@ALL_SQUASHES
def test_without_positions_it_is_dynamic_routing(local):
    votes = random_votes(2, 6, 3, 4)
    routed = MapRouting(local=local)(votes)
    assert_close(
        routed,
        dynamic_routing(votes),
        atol=1e-6,
        rtol=1e-5,
    )


@ALL_SQUASHES
def test_properties(local):
    pose = torch.randn(3, 3, 2, 3, 2, generator=seeded())
    activation = torch.rand(3, 3, 2, 3, generator=seeded(1))
    testing.check_module(make_layer(local), Capsules(pose, activation))
