"""Heinsen's routings against loops over their equations, and the head."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.functional import DenseVotes, Votes
from torchcaps.functional.votes import RoutingContext
from torchcaps.nn import FactorizedVotes, RoutedLayer, RoutingHead, create_router
from torchcaps.testing import random_votes, seeded
from torchcaps.types import Capsules, LayerSizes


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    weight = np.exp(x - x.max())
    return weight / weight.sum()


def normalize(y):
    if y.shape[-1] == 1:
        return y
    return (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)


def repeat_rows(array, num_children):
    """A row for each child of a parameter that may have one row for all."""
    return np.broadcast_to(array, (num_children, *array.shape[1:]))


def make_layer(votes, name, iterations):
    """A layer in float64 with no parameter at zero, and its parameters in NumPy."""
    layer = RoutedLayer(votes, name, iterations=iterations)
    for parameter in layer.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape))
    layer = layer.double()
    return layer, {name: p.detach().numpy() for name, p in layer.named_parameters()}


def route_2022(x, p, iterations):
    """One sample's parents and couplings, from `[i, d]` and parameters of one row or of each child."""
    n = len(x)
    parents, dim = p["votes.offset"].shape
    W_A = repeat_rows(p["router.W_A"], n)
    B_A = repeat_rows(p["router.B_A"], n)
    W_S = repeat_rows(p["router.W_S"], n)
    B_S = repeat_rows(p["router.B_S"], n)
    use = p.get("router.beta_use")
    ignore = p.get("router.beta_ignore")
    if use is None:
        use = x @ p["router.beta_use.weight"].T + p["router.beta_use.bias"]
        ignore = x @ p["router.beta_ignore.weight"].T + p["router.beta_ignore.bias"]
    scaled = x / np.sqrt(n)
    R = np.full((n, parents), 1 / parents)
    for t in range(iterations):
        y = np.zeros((parents, dim))
        for i in range(n):
            f = sigmoid(scaled[i] @ W_A[i] + B_A[i])
            for j in range(parents):
                vote = (scaled[i] * p["votes.factor"][j]) @ p["votes.mix"] + p["votes.offset"][j]
                y[j] += (use[i, j] * f * R[i, j] - ignore[i, j] * (f - f * R[i, j])) * vote
        y = normalize(y)
        if t == iterations - 1:
            return y, R
        for i in range(n):
            S = np.zeros(parents)
            for j in range(parents):
                guess = (y[j] @ p["router.W_G1"]) * p["router.W_G2"][j] + p["router.B_G2"][j]
                S[j] = np.log(sigmoid(x[i] @ guess * W_S[i, j] + B_S[i, j]))
            R[i] = softmax(S)
    raise ValueError("no iterations")


@pytest.mark.parametrize("length", [5, None])
@pytest.mark.parametrize(("iterations", "dim"), [(1, 3), (3, 3), (2, 1)])
def test_2022_equals_loops(length, iterations, dim):
    votes = FactorizedVotes(LayerSizes(length or 1, 4, 3, dim))
    layer, parameters = make_layer(votes, "heinsen_2022", iterations)
    x = torch.randn(2, 5, 4, generator=seeded()).double()
    with tc.record_routing(layer) as record:
        parents = layer(Capsules(x, torch.ones(2, 5).double()))
    for n in range(2):
        y, R = route_2022(x[n].numpy(), parameters, iterations)
        np.testing.assert_allclose(parents.pose[n].detach(), y, atol=1e-9)
        np.testing.assert_allclose(record[""][0].coupling[n], R, atol=1e-9)


def test_factorized_votes_are_never_stored(monkeypatch):
    layer = RoutedLayer(FactorizedVotes(LayerSizes(1, 4, 3, 4)), "heinsen_2022")
    votes = layer.make_votes(Capsules(torch.randn(2, 50, 4), torch.ones(2, 50)))
    monkeypatch.setattr(Votes, "dense", lambda votes: pytest.fail("votes were stored"))
    layer.router(votes)


def test_initial_deviations_are_the_authors():
    layer = RoutedLayer(FactorizedVotes(LayerSizes(64, 100, 32, 25)), "heinsen_2022")
    deviations = {name: p.std().item() for name, p in layer.named_parameters()}
    expected = {"router.W_A": 2 / 10, "router.W_G1": 1 / 5, "router.W_G2": 1}
    expected |= {"router.W_S": 1 / 10, "router.beta_use": 1, "router.beta_ignore": 1}
    expected |= {"router.B_A": 0, "router.B_S": 0, "router.B_G2": 0}
    expected |= {"votes.factor": 1, "votes.mix": 2 / 10, "votes.offset": 0}
    assert deviations == pytest.approx(expected, rel=0.1)


def test_credit_is_an_extra_beside_the_couplings():
    sizes = LayerSizes(6, 5, 3, 4)
    router = create_router("heinsen_2022")
    router.build(sizes)
    votes = DenseVotes(random_votes(2, 6, 3, 4), pose=torch.randn(2, 6, 5))
    context = RoutingContext(extras={})
    _, _, coupling = router(votes, context=context)
    assert context.extras["credit"].shape == coupling.shape
    assert (coupling.sum(dim=-1) - 1).abs().max() < 1e-5
    layer = RoutedLayer(FactorizedVotes(sizes), "heinsen_2022")
    with tc.record_routing(layer) as record:
        layer(torch.randn(2, 6, 5))
    assert record[""][0].extras["credit"].shape == (2, 6, 3)


def test_vectors_that_share_parameters_have_no_order():
    x = torch.randn(2, 7, 8, generator=seeded())
    head = RoutingHead(8, 3, hidden=(6, 5)).eval()
    assert_close(head(x.flip(1)), head(x))
    fixed = RoutingHead(8, 3, hidden=(6,), length=7)
    assert not torch.allclose(fixed(x.flip(1)), fixed(x))
    with pytest.raises(ValueError, match=r"features: expected \[batch, n=7, dim=8\], got"):
        fixed(torch.randn(2, 6, 8))


def test_absent_vectors_change_nothing():
    head = RoutingHead(8, 3, hidden=(6,)).eval()
    x = torch.randn(2, 7, 8, generator=seeded())
    mask = torch.arange(7).expand(2, 7) < 4
    noisy = torch.where(
        mask.unsqueeze(-1),
        x,
        torch.randn(x.shape, generator=seeded(1)),
    )
    assert_close(head(noisy, mask), head(x, mask))
    assert not torch.allclose(head(noisy), head(x))
