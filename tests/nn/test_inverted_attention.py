"""Inverted dot-product attention against loops over its equations, and its two schedules."""

from functools import partial

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.functional import ConvField, ProductVotes
from torchcaps.nn import MatrixVotes, RoutedLayer, RoutedStack, create_router
from torchcaps.testing import random_votes, seeded
from torchcaps.types import Capsules, LayerSizes


def by_loops(votes, iterations, v=None):
    """One sample's parents and couplings, from votes `[i, j, d]`."""
    children, parents, dim = votes.shape
    for _ in range(iterations):
        r = np.full((children, parents), 1 / parents)
        if v is not None:
            for i in range(children):
                logits = np.array([sum(votes[i, j] * v[j]) / dim**0.5 for j in range(parents)])
                r[i] = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        v = np.zeros((parents, dim))
        for j in range(parents):
            s = sum(r[i, j] * votes[i, j] for i in range(children))
            v[j] = (s - s.mean()) / np.sqrt(s.var() + 1e-5)
    return v, r


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_it_equals_loops(iterations):
    votes = random_votes(2, 5, 3, 4).double()
    router = create_router("inverted_attention", iterations=iterations)
    router.build(LayerSizes(5, 4, 3, 4))
    routed = router.double()(votes)
    for n in range(2):
        v, r = by_loops(votes[n].numpy(), iterations)
        np.testing.assert_allclose(routed.pose[n].detach(), v, atol=1e-10)
        np.testing.assert_allclose(routed.coupling[n].detach(), r, atol=1e-10)


def test_a_convolution_equals_loops_over_its_windows():
    layer = RoutedLayer(
        MatrixVotes(LayerSizes(9 * 2, 4, 3, 4)),
        "inverted_attention",
        partial(ConvField, kernel=3, stride=2, padding=1, convention="type"),
    ).double()
    pose = torch.randn(1, 4, 5, 2, 4, generator=seeded()).double()
    found = layer(Capsules(pose, torch.ones(1, 4, 5, 2).double()))
    padded = np.pad(pose[0].numpy(), [(1, 1), (1, 1), (0, 0), (0, 0)])
    weight = layer.weight.detach().numpy()
    for row in range(found.pose.shape[1]):
        for column in range(found.pose.shape[2]):
            window = padded[2 * row : 2 * row + 3, 2 * column : 2 * column + 3].reshape(18, 2, 2)
            votes = np.array(
                [[(window[i] @ weight[i, j]).flatten() for j in range(3)] for i in range(18)]
            )
            np.testing.assert_allclose(
                found.pose[0, row, column].detach(), by_loops(votes, 2)[0], atol=1e-9
            )


def test_the_softmax_runs_over_parents_and_needs_parents_before():
    """Two parents, votes of two numbers: LayerNorm leaves (1, -1), and the logits are differences / sqrt(2)."""
    votes = torch.tensor([[[[2.0, 0.0], [0.0, 1.0]]]])  # one child
    router = create_router("inverted_attention", iterations=2)
    router.build(LayerSizes(1, 2, 2, 2))
    expected = (torch.tensor([2.0, 1.0]) / 2**0.5).softmax(dim=0)
    torch.testing.assert_close(router(votes).coupling[0, 0], expected, atol=1e-4, rtol=1e-4)


def test_a_single_number_is_not_normalized():
    router = create_router("inverted_attention", iterations=1)
    router.build(LayerSizes(3, 1, 2, 1))
    votes = random_votes(2, 3, 2, 1)
    torch.testing.assert_close(router(votes).pose, votes.sum(dim=1) / 2)
    assert not list(router.parameters())


def test_equal_couplings_make_no_votes(monkeypatch):
    layer = RoutedLayer(MatrixVotes(LayerSizes(6, 4, 3, 4)), "inverted_attention", iterations=1)
    children = Capsules(torch.randn(2, 6, 4, generator=seeded()), torch.ones(2, 6))
    votes = layer.make_votes(children)
    torch.testing.assert_close(votes.sum(), votes.dense().sum(dim=-3))
    monkeypatch.setattr(ProductVotes, "_compute", lambda votes: pytest.fail("a vote was made"))
    layer.router(layer.make_votes(children))


def test_blocks_of_samples_give_what_a_whole_batch_gives(monkeypatch):
    monkeypatch.setattr("torchcaps.kernels.samples.BLOCK_BYTES", 1)
    layer = RoutedLayer(MatrixVotes(LayerSizes(6, 4, 3, 4)), "inverted_attention", iterations=3)
    pose = torch.randn(5, 6, 4, generator=seeded(), requires_grad=True)
    children = Capsules(pose, torch.ones(5, 6))
    upstream, found = torch.randn(5, 3, 4, generator=seeded(1)), []
    with tc.record_routing(layer, iterations=True):  # stores the votes of all
        found.append(layer(children).pose)
    found.append(layer(children).pose)
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*(torch.autograd.grad((x * upstream).sum(), pose)[0] for x in found))


def test_concurrent_routing_equals_its_definition():
    """Tsai et al., algorithm 1: in pass t every layer takes the poses that all had in pass t - 1."""
    sizes = [LayerSizes(6, 4, 5, 4), LayerSizes(5, 4, 3, 4)]
    layers = [RoutedLayer(MatrixVotes(size), "inverted_attention", iterations=1) for size in sizes]
    stack, iterations = RoutedStack(*layers, num_iterations=3), 3
    pose = torch.randn(2, 6, 4, generator=seeded())
    children = Capsules(pose, torch.ones(2, 6))

    def one_pass(layer, below, above):
        votes = (below.view(2, -1, 1, 2, 2) @ layer.weight).flatten(-2)
        r = torch.full_like(votes[..., 0], 1 / votes.shape[2])
        if above is not None:
            r = (torch.einsum("bijd,bjd->bij", votes, above) / 2).softmax(dim=-1)
        return layer.router.norm(torch.einsum("bij,bijd->bjd", r, votes))

    first = one_pass(layers[0], pose, None)
    second = one_pass(layers[1], first, None)
    for _ in range(1, iterations):
        first, second = one_pass(layers[0], pose, first), one_pass(layers[1], first, second)
    torch.testing.assert_close(stack(children).pose, second)
    one_after_another = layers[1](layers[0](children))
    torch.testing.assert_close(
        RoutedStack(*layers, num_iterations=1)(children).pose, one_after_another.pose
    )
