"""Votes are immutable: what a call needs is bound to a copy, so that calls do not disturb one another."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import torchcaps as tc
from torchcaps.errors import AblationUnsupportedError, ArgumentError
from torchcaps.functional import DenseField, DenseVotes, ProductVotes, dynamic_routing, em_routing
from torchcaps.functional.votes import FixedCoupling, RoutingContext, as_votes
from torchcaps.nn import CapsuleLinear, Router, create_router, list_routers
from torchcaps.testing import random_capsules, random_votes
from torchcaps.types import LayerSizes, Routed

OWN = [
    name for name in list_routers() if type(create_router(name)).__module__.startswith("torchcaps.")
]


def product_votes(bias=None):
    return ProductVotes(random_capsules(2, 6, 4), DenseField(), torch.randn(6, 5, 4, 3), bias=bias)


@pytest.mark.parametrize("name", OWN)
def test_a_router_leaves_the_votes_as_they_were(name):
    router = create_router(name)
    router.build(LayerSizes(6, 4, 5, 3))
    votes = product_votes()
    before = dict(vars(votes))
    for other in (router, router.uniform(), router.random()):
        other(votes, context=RoutingContext(trace=[]))
    assert vars(votes) == before
    assert votes.context == RoutingContext()


def test_a_bound_copy_shares_the_tensors_and_computes_votes_once():
    votes = product_votes()
    bound = votes.bind(RoutingContext(clamp=True))
    assert bound.weight is votes.weight
    assert bound.dense() is bound.dense()
    assert votes.dense() is not votes.dense()
    assert bound.bind(RoutingContext()).dense() is not bound.dense()
    torch.testing.assert_close(bound.dense(), votes.dense())


def test_votes_are_seen_with_gradients_after_a_pass_without():
    votes = product_votes(bias=None)
    votes.weight.requires_grad_()
    router = create_router("dynamic", impl="reference")
    with torch.no_grad():
        router(votes)
    for _ in range(2):  # no graph is shared either
        router(votes).pose.sum().backward()
    assert votes.weight.grad.any()


def test_huge_votes_are_clamped_where_the_context_says_so():
    votes = as_votes(random_votes() * 1e30)
    assert votes.dense().abs().max() > 1e29
    assert votes.bind(RoutingContext(clamp=True)).dense().abs().max() < 1e10


def test_two_threads_route_the_same_votes_by_the_same_layer():
    """One thread routes as learned and records nothing, the other ablates, traces and leaves out the couplings."""
    layer = CapsuleLinear(6, 4, 5, 3, impl="reference")
    votes = layer.make_votes(random_capsules(2, 6, 4))
    router, uniform = layer.router, layer.router.uniform()
    traced = RoutingContext(trace=[])
    calls = {
        "routed": lambda: router(votes),
        "uniform": lambda: uniform(votes),
        "lean": lambda: router(votes, context=RoutingContext(needs_coupling=False)),
        "traced": lambda: router(votes, context=traced),
    }
    alone = {name: call() for name, call in calls.items()}
    traced.trace.clear()
    start = Barrier(len(calls))

    def repeat(call):
        start.wait()
        return [call() for _ in range(50)]

    with ThreadPoolExecutor(len(calls)) as pool:
        results = dict(zip(calls, pool.map(repeat, calls.values()), strict=True))
    for name, routings in results.items():
        for routed in routings:
            assert all(torch.equal(x, y) for x, y in zip(routed, alone[name], strict=True))
    assert len(traced.trace) == 50 * router.num_iterations


class Careless(Router):
    """Makes its couplings by itself."""

    def route(self, votes, parents):
        return dynamic_routing(votes.dense())


def test_a_router_that_ignores_fixed_couplings_is_caught_in_every_thread():
    careless = Careless().uniform()
    honest = create_router("dynamic").uniform()
    votes = as_votes(random_votes())

    def ablate(_):
        honest(votes)
        with pytest.raises(
            AblationUnsupportedError, match="Careless makes its couplings by itself"
        ):
            careless(votes)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ablate, range(40)))


def test_fixed_couplings_are_noted_for_one_call():
    first, second = (FixedCoupling(0, 1.0, uses=[]) for _ in range(2))
    votes = as_votes(random_votes())
    votes.bind(RoutingContext(fixed=first)).couple()
    assert first.uses
    assert not second.uses


def test_what_votes_bring_is_not_passed_beside_them():
    votes, bias = DenseVotes(random_votes()), torch.zeros(5, 4)
    for call in (dynamic_routing, tc.ops.dynamic_routing):
        with pytest.raises(ArgumentError) as error:
            call(votes, bias=bias)
        assert error.value.argument == "bias"
    with pytest.raises(ArgumentError) as error:
        em_routing(votes, torch.ones(2, 6), 0.0, 0.0)
    assert error.value.argument == "activation"


def test_extras_are_part_of_a_routing():
    routed = dynamic_routing(random_votes()).with_extras(logits=torch.ones(2, 5))
    pose, activation, coupling = routed
    assert isinstance(routed, Routed)
    replaced = routed._replace(pose=pose + 1)
    assert replaced.extras == routed.extras
    torch.testing.assert_close(replaced.pose, pose + 1)
    doubled = tree_map(lambda x: 2 * x, routed)
    torch.testing.assert_close(doubled.coupling, 2 * coupling)
    torch.testing.assert_close(doubled.extras["logits"], 2 * torch.ones(2, 5))
    leaves, spec = tree_flatten(routed)
    assert len(leaves) == 4
    assert tree_unflatten(leaves, spec).extras["logits"] is routed.extras["logits"]
    assert routed.with_extras(more=activation).extras.keys() == {"logits", "more"}
    assert dynamic_routing(random_votes()).extras == {}


def test_extras_pass_through_a_compiled_call():
    def route(votes):
        return dynamic_routing(votes).with_extras(total=votes.sum())

    votes = random_votes()
    compiled = torch.compile(route, fullgraph=True, backend="eager")(votes)
    assert torch.equal(compiled.extras["total"], votes.sum())
    torch.testing.assert_close(compiled.pose, route(votes).pose)
