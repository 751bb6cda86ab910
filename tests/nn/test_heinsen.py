"""Heinsen's routings against loops over their equations, and the head."""

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.functional import DenseVotes, Votes
from torchcaps.nn import FactorizedVotes, MatrixVotes, RoutedLayer, RoutingHead, create_router
from torchcaps.testing import random_votes, seeded
from torchcaps.types import Capsules, LayerSizes


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normalized(y):
    return (
        (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
        if y.shape[-1] > 1
        else y
    )


def stirred(layer):
    """In float64, with no parameter at zero."""
    torch.manual_seed(3)
    for parameter in layer.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape))
    return layer.double()


def by_loops_2022(x, p, iterations):
    """One sample's parents and shares, from `[i, d]` and parameters of one row, or one for each child."""
    n, (parents, h) = len(x), p["votes.offset"].shape
    of = lambda name, i: p[name][i if len(p[name]) > 1 else 0]  # noqa: E731
    xs, R, y = x / np.sqrt(n), np.full((n, parents), 1 / parents), None
    for t in range(iterations):
        if t:
            for i in range(n):
                S = np.zeros(parents)
                for j in range(parents):
                    guess = (y[j] @ p["router.W_G1"]) * p["router.W_G2"][j] + p["router.B_G2"][j]
                    S[j] = np.log(
                        sigmoid(x[i] @ guess * of("router.W_S", i)[j] + of("router.B_S", i)[j])
                    )
                R[i] = np.exp(S) / np.exp(S).sum()
        y = np.zeros((parents, h))
        for i in range(n):
            f = sigmoid(xs[i] @ of("router.W_A", i) + of("router.B_A", i))
            for j in range(parents):
                if "router.beta_use" in p:
                    use, ignore = p["router.beta_use"][i, j], p["router.beta_ignore"][i, j]
                else:
                    use, ignore = (
                        p[f"router.{name}.weight"][j] @ x[i] + p[f"router.{name}.bias"][j]
                        for name in ("beta_use", "beta_ignore")
                    )
                vote = (xs[i] * p["votes.factor"][j]) @ p["votes.mix"] + p["votes.offset"][j]
                y[j] += (use * f * R[i, j] - ignore * (f - f * R[i, j])) * vote
        y = normalized(y)
    return y, R


@pytest.mark.parametrize("length", [5, None])
@pytest.mark.parametrize(("iterations", "dim"), [(1, 3), (2, 3), (3, 3), (2, 1)])
def test_2022_equals_loops(length, iterations, dim):
    votes = FactorizedVotes(LayerSizes(length or 1, 4, 3, dim))
    layer = stirred(RoutedLayer(votes, "heinsen_2022", iterations=iterations))
    x = torch.randn(2, 5, 4, generator=seeded()).double()
    with tc.record_routing(layer) as record:
        found = layer(Capsules(x, torch.ones(2, 5).double())).pose
    learned = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    for n in range(2):
        y, R = by_loops_2022(x[n].numpy(), learned, iterations)
        np.testing.assert_allclose(found[n].detach(), y, atol=1e-9)
        np.testing.assert_allclose(record[""][0].coupling[n], R, atol=1e-9)


def test_no_vote_is_made(monkeypatch):
    layer = RoutedLayer(FactorizedVotes(LayerSizes(1, 4, 3, 4)), "heinsen_2022")
    votes = layer.make_votes(Capsules(torch.randn(2, 50, 4), torch.ones(2, 50)))
    monkeypatch.setattr(Votes, "dense", lambda votes: pytest.fail("votes were made"))
    layer.router(votes)


def test_the_authors_start():
    layer = RoutedLayer(FactorizedVotes(LayerSizes(64, 100, 32, 25)), "heinsen_2022")
    deviations = {name: p.std().item() for name, p in layer.named_parameters()}
    expected = {
        "W_A": 2 / 10,
        "W_G1": 1 / 5,
        "W_G2": 1,
        "W_S": 1 / 10,
        "beta_use": 1,
        "beta_ignore": 1,
        "B_A": 0,
        "B_S": 0,
        "B_G2": 0,
    }
    expected = {f"router.{name}": std for name, std in expected.items()}
    expected |= {"votes.factor": 1, "votes.mix": 2 / 10, "votes.offset": 0}
    assert deviations == pytest.approx(expected, rel=0.1)


def by_loops_2019(V, f, use, ignore, iterations):
    """One sample's means, logits and shares, from votes `[i, j, d]`."""
    children, parents, dim = V.shape
    R, a, mu, var = np.full((children, parents), 1 / parents), None, None, None
    for t in range(iterations):
        if t:
            for i in range(children):
                log = np.array(
                    [
                        np.log(sigmoid(a[j]))
                        - sum((V[i, j] - mu[j]) ** 2 / (2 * var[j]))
                        - sum(np.log(np.sqrt(var[j])))
                        for j in range(parents)
                    ]
                )
                R[i] = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
        a, mu, var = np.zeros(parents), np.zeros((parents, dim)), np.zeros((parents, dim))
        for j in range(parents):
            used = f * R[:, j]
            a[j] = sum(use[:, j] * used) - sum(ignore[:, j] * (f - used))
            weight = used / (used.sum() + 1e-5)
            mu[j] = sum(weight[i] * V[i, j] for i in range(children))
            var[j] = sum(weight[i] * (V[i, j] - mu[j]) ** 2 for i in range(children)) + 1e-5
    return mu, a, R


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_2019_equals_loops(shared, iterations):
    sizes = LayerSizes(1 if shared else 5, 4, 3, 4)
    layer = stirred(RoutedLayer(MatrixVotes(sizes), "heinsen_2019", iterations=iterations))
    pose, f = (
        torch.randn(2, 5, 4, generator=seeded()).double(),
        torch.rand(2, 5, generator=seeded(1)).double(),
    )
    with tc.record_routing(layer) as record:
        layer(Capsules(pose, f))
    found = record[""][0]
    each = {
        name: np.broadcast_to(p.detach().numpy(), (5, *p.shape[1:]))
        for name, p in layer.named_parameters()
    }
    for n in range(2):
        votes = np.zeros((5, 3, 4))
        for i in range(5):
            for j in range(3):
                product = pose[n, i].view(2, 2).numpy() @ each["votes.weight"][i, j]
                votes[i, j] = product.flatten() + each["router.B"][i, j]
        use, ignore = each["router.beta_use"], each["router.beta_ignore"]
        mu, a, R = by_loops_2019(votes, f[n].numpy(), use, ignore, iterations)
        np.testing.assert_allclose(found.pose[n], mu, atol=1e-8)
        np.testing.assert_allclose(found.extras["logits"][n], a, atol=1e-8)
        np.testing.assert_allclose(found.activation[n], sigmoid(a), atol=1e-8)
        np.testing.assert_allclose(found.coupling[n], R, atol=1e-8)


def test_credit_stands_beside_the_couplings():
    router = create_router("heinsen_2022")
    router.build(LayerSizes(6, 5, 3, 4))
    routed = router(DenseVotes(random_votes(2, 6, 3, 4), pose=torch.randn(2, 6, 5)))
    assert routed.extras["credit"].shape == routed.coupling.shape
    _, _, coupling = routed  # three, whatever stands beside them
    assert (coupling.sum(dim=-1) - 1).abs().max() < 1e-5
    layer = RoutedLayer(FactorizedVotes(LayerSizes(6, 5, 3, 4)), "heinsen_2022")
    with tc.record_routing(layer) as record:
        layer(torch.randn(2, 6, 5))
    assert record[""][0].extras["credit"].shape == (2, 6, 3)


def test_a_head_takes_any_sequence():
    head = RoutingHead(8, 3, hidden=(6, 5)).eval()
    for length in (1, 7, 30):
        logits = head(torch.randn(2, length, 8, generator=seeded()))
        assert logits.shape == (2, 3) and logits.isfinite().all()
    x = torch.randn(2, 7, 8, generator=seeded())
    torch.testing.assert_close(
        head(x.flip(1)), head(x)
    )  # a set: vectors that share parameters have no order
    fixed = RoutingHead(8, 3, hidden=(6,), length=7)
    assert not torch.allclose(fixed(x.flip(1)), fixed(x))
    with pytest.raises(ValueError, match=r"features: expected \[batch, n=7, dim=8\], got"):
        fixed(torch.randn(2, 6, 8))


def test_vectors_that_are_absent_change_nothing():
    head = RoutingHead(8, 3, hidden=(6,)).eval()
    x = torch.randn(2, 7, 8, generator=seeded())
    present = torch.arange(7).expand(2, 7) < 4
    other = torch.where(present.unsqueeze(-1), x, torch.randn(x.shape, generator=seeded(1)))
    torch.testing.assert_close(head(other, present), head(x, present))
    assert not torch.allclose(head(other), head(x))
