"""Routing on maps of votes: compiled loops against the reference, in value and in every gradient."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps import create_model, ops, record_routing
from torchcaps.functional import DenseVotes, dynamic_routing
from torchcaps.functional.votes import DenseMapVotes, RoutingContext
from torchcaps.kernels.maps import numba as loops
from torchcaps.kernels.support import HAS_NUMBA
from torchcaps.nn import MapRouting, RoutedLayer, set_impl
from torchcaps.nn.map_routing import KernelCaps, KernelVotes, global_competition, per_position
from torchcaps.testing import random_votes, seeded
from torchcaps.testing.compare import assert_close
from torchcaps.types import Capsules, LayerSizes

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(loops, "MIN_NUMBERS", 0)


def maps_of(sizes, space, seed=0, dtype=torch.float64, scale=1.0):
    return scale * random_votes(*sizes, space=space, generator=seeded(seed), dtype=dtype).permute(
        0, 3, 4, 5, 1, 2
    )


def random_numbers(shape, seed):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def results(maps, biased, fast, through=(0, 1, 2), iterations=3):
    """Pose, activation, coupling, and the gradients of the maps and the bias."""
    maps = maps.detach().requires_grad_()
    bias = random_numbers(maps.shape[2:4], 9).to(maps).requires_grad_()
    added = bias if biased else None
    if fast:
        routed = loops.run(DenseMapVotes(maps, added), iterations=iterations)
    else:
        routed = dynamic_routing(DenseVotes(maps.permute(0, 4, 5, 1, 2, 3), bias=added), iterations)
    sum((routed[n] * random_numbers(routed[n].shape, n).to(maps)).sum() for n in through).backward()
    return [*routed[:3], maps.grad, bias.grad if biased else maps.grad]


def compare(maps, biased=True, tolerance=1e-9, **how):
    for found, expected in zip(
        results(maps, biased, True, **how), results(maps, biased, False, **how), strict=True
    ):
        assert_close("map routing", found, expected, tolerance, floor=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 7), st.integers(1, 17)),
    space=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    biased=st.booleans(),
    seed=st.integers(0, 999),
    iterations=st.integers(1, 4),
)
def test_equals_the_reference(sizes, space, biased, seed, iterations):
    compare(maps_of(sizes, space, seed), biased, iterations=iterations)


def test_float32():
    compare(maps_of((3, 8, 8, 16), (8, 9), dtype=torch.float32), tolerance=1e-5)


@pytest.mark.parametrize("through", [0, 1, 2])
def test_gradient_through_each_output(through):
    compare(maps_of((2, 3, 4, 5), (3, 4)), through=(through,))


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-8, 1e4])
def test_votes_of_any_size(scale):
    compare(maps_of((2, 3, 4, 5), (3, 4), scale=scale), tolerance=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e10, 1e38])
def test_nothing_is_infinite(scale):
    for x in results(maps_of((2, 3, 4, 5), (3, 4), dtype=torch.float32, scale=scale), True, True):
        assert x.isfinite().all()


def test_threads_change_no_bit():
    maps, before = maps_of((3, 4, 3, 5), (5, 6), dtype=torch.float32), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(results(maps, True, True))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_who_takes_them():
    layer = RoutedLayer(KernelVotes(LayerSizes(3, 2, 4, 5)), MapRouting(local=True), per_position)
    votes = layer.make_votes(torch.randn(2, 4, 4, 3, 2, generator=seeded()))
    assert ops.choose("map_routing", votes) == (
        "numba",
        "compiled loops: votes are read once for all iterations",
    )
    traced = votes.bind(RoutingContext(trace=[]))
    assert ops.choose("map_routing", traced) == (
        "reference",
        "numba: the couplings of every iteration are asked for",
    )
    assert ops.choose("map_routing", random_votes(2, 3, 4, 5)) == (
        "reference",
        "numba: the votes are no maps",
    )
    layer.field, x = global_competition, torch.randn(2, 4, 4, 3, 2, generator=seeded())
    assert (
        "parents at different positions compete"
        in ops.choose("map_routing", layer.make_votes(x))[1]
    )
    layer.field = per_position
    set_impl(layer, "numba")
    found = layer(x)
    set_impl(layer, "reference")
    torch.testing.assert_close(found.pose, layer(x).pose)
    with pytest.raises(
        ValueError, match="no layer of this RoutedLayer has an implementation 'numba'"
    ):
        set_impl(
            RoutedLayer(KernelVotes(LayerSizes(3, 2, 4, 5)), MapRouting(), global_competition),
            "numba",
        )


def test_couplings_are_made_only_where_somebody_asks(monkeypatch):
    layer, wanted, route = KernelCaps(3, 4, 2, 5, kernel_size=3), [], loops._map_routing
    monkeypatch.setattr(
        loops,
        "_map_routing",
        lambda problem: wanted.append(problem.want_coupling) or route(problem),
    )
    x = Capsules(torch.randn(2, 6, 5, 3, 4, generator=seeded()), torch.ones(2, 6, 5, 3))
    layer(x).pose.sum().backward()
    with record_routing(layer) as record:
        layer(x)
    assert wanted == [False, False, True]  # once more for the gradient
    torch.testing.assert_close(record[""][0].coupling.sum(dim=-1), torch.ones(2, 6, 5, 3))


def test_given_maps_of_other_axes_are_refused():
    with pytest.raises(ValueError, match="votes: expected"):
        DenseMapVotes(torch.zeros(2, 3, 4, 5))


def test_layers_under_autocast_and_compiled(monkeypatch):
    layer = KernelCaps(3, 4, 2, 5, kernel_size=3)
    x = Capsules(torch.randn(2, 6, 5, 3, 4, generator=seeded()), torch.ones(2, 6, 5, 3))
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    monkeypatch.setattr(loops, "MIN_NUMBERS", 1 << 62)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
    for one, two, other in zip(found, compiled, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(two, other, atol=1e-5, rtol=1e-4)


def test_a_network_learns_the_same(monkeypatch):
    torch.manual_seed(0)
    model = create_model("segcaps", num_classes=3, in_chans=1, img_size=(16, 16), dim=2)
    x, grads = torch.rand(2, 1, 16, 16, generator=seeded()), []
    for worth in (0, 1 << 62):
        monkeypatch.setattr(loops, "MIN_NUMBERS", worth)
        model.zero_grad()
        model(x).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        assert_close("gradient", one, other, 1e-4, floor=1e-7)
