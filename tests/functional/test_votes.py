"""Votes are immutable: a call is bound to a copy, so that calls do not disturb one another."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from properties.variants import LIBRARY_ROUTERS
from torchcaps.errors import AblationUnsupportedError, ArgumentError
from torchcaps.functional import (
    ConvField,
    DenseField,
    DenseVotes,
    ProductVotes,
    dynamic_routing,
    em_routing,
    straightness,
)
from torchcaps.functional.votes import RoutingContext, as_votes, mask_votes
from torchcaps.nn import CapsuleLinear, ConvCaps, FactorizedVotes, Router, create_router
from torchcaps.testing import random_capsules, random_votes
from torchcaps.types import LayerSizes


def product_votes():
    return ProductVotes(
        random_capsules(2, 6, 4),
        DenseField(),
        torch.randn(6, 5, 4, 3),
    )


@pytest.mark.parametrize("name", LIBRARY_ROUTERS)
def test_a_router_leaves_the_votes_as_they_are(name):
    router = create_router(name)
    router.build(LayerSizes(6, 4, 5, 3))
    votes = product_votes()
    before = dict(vars(votes))
    for variant in (router, router.uniform(), router.random()):
        variant(votes, context=RoutingContext(trace=[]))
    assert vars(votes) == before
    assert votes.context == RoutingContext()


def test_a_bound_copy_shares_the_tensors_and_computes_votes_once():
    votes = product_votes()
    bound = votes.bind(RoutingContext(clamp=True))
    assert bound.weight is votes.weight
    assert bound.dense() is bound.dense()
    assert votes.dense() is not votes.dense()
    assert bound.bind(RoutingContext()).dense() is not bound.dense()
    assert_close(bound.dense(), votes.dense())


def test_votes_that_are_not_bound_yet_are_bound_for_the_call():
    votes = product_votes()
    bound = as_votes(votes)
    assert bound is not votes
    assert bound.dense() is bound.dense()
    assert as_votes(bound) is bound


def test_a_pass_without_gradients_does_not_disturb_those_with():
    votes = product_votes()
    votes.weight.requires_grad_()
    router = create_router("dynamic", impl="reference")
    with torch.no_grad():
        router(votes)
    for _ in range(2):  # no graph is shared either
        router(votes).pose.sum().backward()
    assert votes.weight.grad.any()


def test_huge_votes_are_clamped_if_the_context_says_so():
    votes = as_votes(random_votes() * 1e30)
    assert votes.dense().abs().max() > 1e29
    assert votes.bind(RoutingContext(clamp=True)).dense().abs().max() < 1e10


@pytest.mark.parametrize("name", ["dynamic", "em"])
def test_stored_votes_of_padded_windows_are_routed_as_those_of_the_layer(name):
    layer = ConvCaps(2, 3, 3, 2, padding=1, routing=name, pose_size=2)
    votes = layer.make_votes(random_capsules(2, 2, 4, space=(5, 4)))
    stored = DenseVotes(votes.dense(), votes.activation, votes.pose, field=votes.field)
    assert_close(layer.router(stored), layer.router(votes))


def test_a_sum_of_votes_leaves_out_padding():
    """Padding would vote by the offset, which is not zero."""
    module = FactorizedVotes(LayerSizes(18, 4, 5, 3))
    torch.nn.init.normal_(module.offset)
    votes = module(random_capsules(2, 2, 4, space=(3, 3)), ConvField(3, 3, 3, padding=1))
    # Of the window in the upper left corner, the lower right 2 x 2 positions are on the map.
    corner = votes.dense()[:, 0, 0].unflatten(1, (3, 3, 2))
    assert_close(votes.sum()[:, 0, 0], corner[:, 1:, 1:].sum(dim=(1, 2, 3)))


def test_padding_does_not_compete_with_children():
    field = ConvField(3, 3, 3, padding=1)
    children = random_capsules(2, 2, 4, space=(3, 3))
    votes = ProductVotes(children, field, torch.randn(18, 5, 4, 3))
    for logits in (None, torch.randn(2, 3, 3, 18, 5)):
        sums = votes.couple(logits, over="children").sum(dim=-2)
        assert_close(sums, torch.ones(2, 3, 3, 5))


def test_a_masked_child_does_not_count_whatever_its_votes_are():
    stored = random_votes(2, 6, 5, 3)
    stored[:, 0] = torch.nan
    is_present = torch.arange(6) > 0
    votes = mask_votes(DenseVotes(stored), is_present.expand(2, -1))
    pose = dynamic_routing(votes).pose
    assert_close(pose, dynamic_routing(stored[:, 1:]).pose)


def test_masks_of_children_add_up():
    without_first, without_last = torch.ones(2, 2, 6, dtype=torch.bool)
    without_first[:, 0] = False
    without_last[:, 5] = False
    votes = mask_votes(mask_votes(product_votes(), without_first), without_last)
    assert votes.mask.tolist() == 2 * [[0, 1, 1, 1, 1, 0]]


def test_threads_route_the_same_votes_by_the_same_layer():
    """One thread routes as learned; others ablate, trace and leave out the couplings."""
    layer = CapsuleLinear(6, 4, 5, 3, impl="reference")
    votes = layer.make_votes(random_capsules(2, 6, 4))
    router = layer.router
    uniform = router.uniform()
    traced = RoutingContext(trace=[])
    calls = [
        lambda: router(votes),
        lambda: uniform(votes),
        lambda: router(votes, context=RoutingContext(needs_coupling=False)),
        lambda: router(votes, context=traced),
    ]
    expected = [call() for call in calls]
    traced.trace.clear()
    start = Barrier(len(calls))

    def repeat(call):
        start.wait()
        return [call() for _ in range(50)]

    with ThreadPoolExecutor(len(calls)) as pool:
        routings = list(pool.map(repeat, calls))
    for actual, single in zip(routings, expected, strict=True):
        for routed in actual:
            assert all(map(torch.equal, routed, single))
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
        message = "Careless makes its couplings by itself"
        with pytest.raises(AblationUnsupportedError, match=message):
            careless(votes)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ablate, range(40)))


@pytest.mark.parametrize("route", [dynamic_routing, tc.ops.dynamic_routing])
def test_a_bias_beside_that_of_the_votes_is_refused(route):
    with pytest.raises(ArgumentError, match="^bias: "):
        route(DenseVotes(random_votes()), bias=torch.zeros(5, 4))


def test_an_activation_beside_that_of_the_votes_is_refused():
    with pytest.raises(ArgumentError, match="^activation: "):
        em_routing(DenseVotes(random_votes()), torch.ones(2, 6), 0.0, 0.0)


def test_straightness_is_one_for_equal_votes_and_falls_by_the_root_of_their_number():
    coupling = torch.full((1, 4, 1), 0.25)
    at_right_angles = torch.eye(4).view(1, 4, 1, 4)
    assert_close(straightness(coupling, at_right_angles), torch.tensor([[0.5]]))
    equal = at_right_angles[:, :1].expand(-1, 4, -1, -1)
    assert_close(straightness(coupling, equal), torch.tensor([[1.0]]))
    opposite = torch.tensor([1.0, -1.0, 2.0, -2.0]).view(1, 4, 1, 1)
    assert straightness(coupling, opposite).item() == 0


def test_straightness_weighs_votes_by_their_couplings_and_not_by_their_sum():
    votes = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).view(1, 2, 1, 2)
    coupling = torch.tensor([0.1, 0.4]).view(1, 2, 1)
    # Couplings make 0.3 and 0.4 of the lengths, at right angles.
    expected = torch.tensor([[0.5 / 0.7]])
    assert_close(straightness(coupling, votes), expected)
    assert_close(straightness(7 * coupling, votes), expected)


@pytest.mark.parametrize(("length", "share"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_straightness_is_finite_without_votes_or_couplings(length, share):
    votes = (length * torch.ones(2, 5, 3, 4)).requires_grad_()
    coupling = (share * torch.ones(2, 5, 3)).requires_grad_()
    ratio = straightness(coupling, votes)
    assert torch.equal(ratio, torch.zeros(2, 3))
    for gradient in torch.autograd.grad(ratio.sum(), (coupling, votes)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e18, 1e30])
def test_straightness_has_no_units(scale):
    votes = random_votes(2, 5, 3, 4)
    coupling = torch.rand(2, 5, 3)
    expected = straightness(coupling, votes)
    scaled = (scale * votes).requires_grad_()
    ratio = straightness(coupling, scaled)
    assert_close(ratio, expected)
    assert torch.autograd.grad(ratio.sum(), scaled)[0].isfinite().all()
    if scale < 1:  # of couplings too
        assert_close(straightness(scale * coupling, votes), expected)


def test_gradients_of_straightness():
    votes = random_votes(2, 3, 2, 4, dtype=torch.float64).requires_grad_()
    coupling = torch.rand(2, 3, 2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(straightness, (coupling, votes))


def test_couplings_of_other_sizes_have_no_straightness():
    with pytest.raises(ArgumentError, match="coupling: expected"):
        straightness(torch.ones(2, 3, 4), random_votes(2, 4, 3, 5))
