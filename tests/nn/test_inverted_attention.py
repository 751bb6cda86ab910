"""Inverted dot-product attention against loops over its equations, and its two schedules."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.functional import ProductVotes
from torchcaps.nn import MatrixVotes, RoutedLayer, create_router
from torchcaps.testing import random_votes, seeded
from torchcaps.types import Capsules, LayerSizes


def build_router(sizes, iterations=2):
    router = create_router("inverted_attention", iterations=iterations)
    router.build(sizes)
    return router


def make_layer(*sizes, iterations=2, **options):
    votes = MatrixVotes(LayerSizes(*sizes))
    return RoutedLayer(
        votes,
        "inverted_attention",
        iterations=iterations,
        **options,
    )


def random_children(*shape):
    pose = torch.randn(shape, generator=seeded())
    return Capsules(pose, torch.ones(shape[:-1]))


def route_by_loops(votes, iterations):
    """One sample's parents and couplings, from votes `[i, j, d]`."""
    children, parents, dim = votes.shape
    r = np.full((children, parents), 1 / parents)
    for t in range(iterations):
        v = np.einsum("ij,ijd->jd", r, votes)
        mean = v.mean(axis=1, keepdims=True)
        var = v.var(axis=1, keepdims=True)
        v = (v - mean) / np.sqrt(var + 1e-5)
        if t == iterations - 1:
            break
        for i in range(children):
            logits = (votes[i] * v).sum(axis=1) / dim**0.5
            weight = np.exp(logits - logits.max())
            r[i] = weight / weight.sum()
    return v, r


@pytest.mark.parametrize("iterations", [1, 3])
def test_it_equals_loops(iterations):
    votes = random_votes(2, 5, 3, 4).double()
    router = build_router(LayerSizes(5, 4, 3, 4), iterations)
    routed = router.double()(votes)
    for n in range(2):
        v, r = route_by_loops(votes[n].numpy(), iterations)
        np.testing.assert_allclose(routed.pose[n].detach(), v, atol=1e-10)
        np.testing.assert_allclose(routed.coupling[n].detach(), r, atol=1e-10)


def test_a_single_number_is_not_normalized():
    router = build_router(LayerSizes(3, 1, 2, 1), iterations=1)
    votes = random_votes(2, 3, 2, 1)
    assert_close(router(votes).pose, votes.sum(dim=1) / 2)
    assert not list(router.parameters())


def test_equal_couplings_store_no_votes(monkeypatch):
    layer = make_layer(6, 4, 3, 4, iterations=1)
    children = random_children(2, 6, 4)
    votes = layer.make_votes(children)
    assert_close(votes.sum(), votes.dense().sum(dim=-3))
    monkeypatch.setattr(ProductVotes, "_compute", lambda votes: pytest.fail("votes were stored"))
    layer.router(layer.make_votes(children))


def test_blocks_of_samples_equal_a_whole_batch(monkeypatch):
    monkeypatch.setattr("torchcaps.kernels.samples.BLOCK_BYTES", 1)
    layer = make_layer(6, 4, 3, 4, iterations=3)
    children = random_children(5, 6, 4)
    children.pose.requires_grad_()
    upstream = torch.randn(5, 3, 4, generator=seeded(1))
    with tc.record_routing(layer, iterations=True):  # stores the votes of the batch
        poses = layer(children).pose
    in_blocks = layer(children).pose
    assert_close(in_blocks, poses)
    (expected,) = torch.autograd.grad((poses * upstream).sum(), children.pose)
    (gradient,) = torch.autograd.grad((in_blocks * upstream).sum(), children.pose)
    assert_close(gradient, expected)
