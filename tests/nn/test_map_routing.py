"""3-D convolutional routing of DeepCaps (arXiv 1904.09546) against NumPy loops written from the equations."""

import numpy as np
import pytest
import torch

from torchcaps import record_routing, testing
from torchcaps.functional import dynamic_routing
from torchcaps.nn import MapRouting, RoutedLayer
from torchcaps.nn.map_routing import KernelVotes, global_competition, per_position
from torchcaps.testing import random_votes, seeded
from torchcaps.types import Capsules, LayerSizes


def layer_of(local=False, iterations=3, dtype=torch.float64):
    """Three types of two dimensions vote for four of five, over windows of 3 x 3 positions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        votes = KernelVotes(LayerSizes(3, 2, 4, 5))
    torch.nn.init.normal_(votes.bias, generator=seeded(3))
    return RoutedLayer(
        votes, MapRouting(iterations, local=local), per_position if local else global_competition
    ).to(dtype)


def numpy_votes(pose, weight):
    """`[height, width, i, j, d]`, window after window; nothing lies beyond the border."""
    height, width, types, _ = pose.shape
    padded = np.pad(pose, [(1, 1), (1, 1), (0, 0), (0, 0)])
    votes = np.zeros((height, width, types, len(weight)))
    for y in range(height):
        for x in range(width):
            for i in range(types):
                for k, kernel in enumerate(weight):
                    window = padded[y : y + 3, x : x + 3, i]
                    votes[y, x, i, k] = np.einsum("yxa,ayx->", window, kernel)
    return votes.reshape(height, width, types, 4, 5)


def numpy_routing(votes, bias, iterations, local):
    """One sample: poses and couplings."""
    height, width, types, parents, _ = votes.shape
    b = np.zeros(votes.shape[:-1])
    for t in range(iterations):
        k = np.zeros_like(b)
        for i in range(types):
            if local:
                for y in range(height):
                    for x in range(width):
                        k[y, x, i] = np.exp(b[y, x, i]) / np.exp(b[y, x, i]).sum()
            else:
                k[:, :, i] = np.exp(b[:, :, i]) / np.exp(b[:, :, i]).sum()
        S = (k[..., None] * votes).sum(axis=2) + bias
        v = np.zeros_like(S)
        for j in range(parents):
            square = (
                (S[:, :, j] ** 2).sum(axis=-1, keepdims=True) if local else (S[:, :, j] ** 2).sum()
            )
            v[:, :, j] = S[:, :, j] * np.sqrt(square) / (1 + square)
        if t < iterations - 1:
            b = b + (votes * v[:, :, None]).sum(axis=-1)
    return v, k


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("iterations", [1, 3])
def test_equals_numpy(local, iterations):
    layer = layer_of(local, iterations)
    pose = 3 * torch.randn(2, 3, 4, 3, 2, generator=seeded(), dtype=torch.float64)
    with record_routing(layer) as record:
        parents = layer(pose)
    for b in range(2):
        votes = numpy_votes(pose[b].numpy(), layer.weight.detach().numpy())
        v, k = numpy_routing(votes, layer.bias.detach().numpy(), iterations, local)
        np.testing.assert_allclose(parents.pose[b].detach(), v, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(
            parents.activation[b].detach(), np.linalg.norm(v, axis=-1), rtol=1e-6, atol=1e-9
        )
        np.testing.assert_allclose(record[""][0].coupling[b], k, rtol=1e-6, atol=1e-12)


def test_couplings_of_a_type_sum_to_one_over_the_whole_map():
    """Of 32 parent types on a map of 4 x 4 the first coupling is 1 / 512."""
    layer = RoutedLayer(KernelVotes(LayerSizes(2, 3, 32, 3)), MapRouting(), global_competition)
    with record_routing(layer, iterations=True) as record:
        layer(torch.randn(2, 4, 4, 2, 3, generator=seeded()))
    first, *_, last = record[""][0].iterations
    torch.testing.assert_close(first, torch.full_like(first, 1 / 512))
    torch.testing.assert_close(last.sum(dim=(1, 2, 4)), torch.ones(2, 2))
    assert not torch.allclose(first, last)


def test_fully_connected_it_is_dynamic_routing():
    votes = random_votes(2, 6, 3, 4)
    for local in (False, True):
        for found, expected in zip(
            MapRouting(local=local)(votes), dynamic_routing(votes), strict=True
        ):
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("local", [False, True])
def test_the_layer_keeps_every_property(local):
    children = Capsules(
        torch.randn(3, 3, 2, 3, 2, generator=seeded()), torch.rand(3, 3, 2, 3, generator=seeded(1))
    )
    layer = layer_of(local, dtype=torch.float32)
    for check in (
        testing.check_module_rows,
        testing.check_module_copies,
        testing.check_module_zeros,
        testing.check_module_precision,
        testing.check_module_parameters,
    ):
        check(layer, children)


def test_wrong_options():
    with pytest.raises(ValueError, match="kernel_size: expected an odd number, got 2"):
        KernelVotes(LayerSizes(3, 2, 4, 5), kernel_size=2)
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        MapRouting(0)
