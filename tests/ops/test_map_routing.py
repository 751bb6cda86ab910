"""Routing on maps of votes: compiled loops against the reference, in value and gradient.

Loops are compiled for each type of number, which takes ten seconds: gradients are in float64.
"""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from checks import assert_finite
from torchcaps import ops, record_routing
from torchcaps.functional import DenseVotes, dynamic_routing
from torchcaps.functional.votes import MapVotes, RoutingContext
from torchcaps.kernels.maps import numba as loops
from torchcaps.kernels.support import HAS_NUMBA
from torchcaps.nn import MapRouting, RoutedLayer, set_impl
from torchcaps.nn.map_routing import KernelCaps, KernelVotes, global_competition, per_position
from torchcaps.testing import random_votes, seeded
from torchcaps.testing.compare import assert_close
from torchcaps.types import Capsules, LayerSizes

from .makers import OUTPUTS, add_gradients, check_threads

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
NEVER = 1 << 62


@pytest.fixture(autouse=True)
def _loops_take_few_votes(monkeypatch):
    monkeypatch.setattr(loops, "MIN_NUMBERS", 0)


def make_maps(sizes, space, seed=0, dtype=torch.float64, scale=1.0):
    """Maps of votes `[batch, children, parents, dim, height, width]`."""
    votes = random_votes(*sizes, space=space, generator=seeded(seed), dtype=dtype)
    return scale * votes.permute(0, 3, 4, 5, 1, 2)


class StoredVotes(MapVotes):
    added = ("stored",)

    def __init__(self, votes, bias):
        batch, children, parents, dim, *positions = votes.shape
        ones = votes.new_ones(batch, *positions, children)
        field = per_position(*positions)
        super().__init__(Capsules(ones.unsqueeze(-1), ones), field, parents, dim, bias)
        self.stored = votes

    def maps(self):
        return self.stored


def run_routing(maps, has_bias=True, use_loops=True, loss_of=OUTPUTS, iterations=3):
    """Outputs, and the gradients of a loss of some of them, by name."""
    leaves = {"maps": maps.detach().requires_grad_()}
    bias = None
    if has_bias:
        numbers = torch.randn(maps.shape[2:4], generator=seeded(9), dtype=torch.float64)
        bias = leaves["bias"] = numbers.to(maps).requires_grad_()
    if use_loops:
        routed = loops.run(StoredVotes(leaves["maps"], bias), iterations=iterations)
    else:
        votes = leaves["maps"].permute(0, 4, 5, 1, 2, 3)
        routed = dynamic_routing(DenseVotes(votes, bias=bias), iterations)
    outputs = dict(zip(OUTPUTS, routed, strict=True))
    return add_gradients(outputs, leaves, loss_of)


def compare(maps, has_bias=True, tolerance=1e-9, **options):
    """Hold the compiled loops against the reference."""
    outputs = run_routing(maps, has_bias, use_loops=True, **options)
    expected = run_routing(maps, has_bias, use_loops=False, **options)
    for name, tensor in expected.items():
        assert_close(name, outputs[name], tensor, tolerance, floor=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 7), st.integers(1, 17)),
    space=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    has_bias=st.booleans(),
    seed=st.integers(0, 999),
    iterations=st.integers(1, 4),
)
def test_equals_the_reference(sizes, space, has_bias, seed, iterations):
    compare(make_maps(sizes, space, seed), has_bias, iterations=iterations)


def test_more_positions_than_a_group_has():
    compare(make_maps((2, 4, 5, 8), (8, 9)))


@pytest.mark.slow
def test_gradients_in_float32():
    compare(make_maps((2, 4, 5, 8), (8, 9), dtype=torch.float32), tolerance=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1.0, 1e10, 1e38])
def test_float32(scale):
    maps = make_maps((2, 4, 5, 8), (8, 9), dtype=torch.float32, scale=scale)
    bias = torch.randn(5, 8, generator=seeded(9))
    routed = loops.run(StoredVotes(maps, bias), iterations=3)
    assert_finite(dict(zip(OUTPUTS, routed, strict=True)))
    if scale <= 1:
        expected = dynamic_routing(DenseVotes(maps.permute(0, 4, 5, 1, 2, 3), bias=bias), 3)
        for name, tensor, expected_tensor in zip(OUTPUTS, routed, expected, strict=True):
            assert_close(name, tensor, expected_tensor, 1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-8, 1e4])
def test_votes_of_any_size(scale):
    compare(make_maps((2, 3, 4, 5), (3, 4), scale=scale), tolerance=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1e-308, 1e10, 1e307])
def test_nothing_is_infinite(scale):
    assert_finite(run_routing(make_maps((2, 3, 4, 5), (3, 4), scale=scale)))


def test_second_derivatives_equal_finite_differences():
    router = MapRouting(2, local=True, impl="numba")
    layer = RoutedLayer(KernelVotes(LayerSizes(2, 2, 2, 2)), router, per_position).double()
    pose = torch.randn(1, 2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x).pose, (pose,))


def test_threads_change_no_bit():
    maps = make_maps((3, 4, 3, 5), (5, 6))
    check_threads(lambda: run_routing(maps))


def make_layer(field=per_position):
    router = MapRouting(local=field is per_position)
    return RoutedLayer(KernelVotes(LayerSizes(3, 2, 4, 5)), router, field)


def random_poses():
    return torch.randn(2, 4, 4, 3, 2, generator=seeded())


def test_loops_are_chosen_for_parents_that_compete_at_one_position():
    layer = make_layer()
    votes = layer.make_votes(random_poses())
    assert ops.choose("map_routing", votes) == (
        "numba",
        "compiled loops: votes are read once for all iterations",
    )
    traced = votes.bind(RoutingContext(trace=[]))
    assert ops.choose("map_routing", traced) == (
        "reference",
        "numba: the couplings of every iteration are asked for",
    )
    layer.field = global_competition
    _, reason = ops.choose("map_routing", layer.make_votes(random_poses()))
    assert "parents at different positions compete" in reason


def test_votes_without_a_map_are_for_the_reference():
    assert ops.choose("map_routing", random_votes(2, 3, 4, 5)) == (
        "reference",
        "numba: the votes are no maps",
    )


def test_an_implementation_is_set_by_name():
    layer = make_layer()
    set_impl(layer, "numba")
    parents = layer(random_poses())
    set_impl(layer, "reference")
    torch.testing.assert_close(parents.pose, layer(random_poses()).pose)
    with pytest.raises(
        ValueError, match="no layer of this RoutedLayer has an implementation 'numba'"
    ):
        set_impl(make_layer(global_competition), "numba")


@pytest.fixture
def kernel_layer():
    """A layer that routes on a map, and capsules for it."""
    layer = KernelCaps(3, 4, 2, 5, kernel_size=3)
    pose = torch.randn(2, 6, 5, 3, 4, generator=seeded())
    return layer, Capsules(pose, torch.ones(2, 6, 5, 3))


def test_couplings_are_made_only_where_they_are_recorded(kernel_layer, monkeypatch):
    layer, children = kernel_layer
    requests = []
    route = loops._map_routing

    def record_request(problem):
        requests.append(problem.want_coupling)
        return route(problem)

    monkeypatch.setattr(loops, "_map_routing", record_request)
    layer = layer.double()
    children = Capsules(children.pose.double(), children.activation.double())
    layer(children).pose.sum().backward()
    with record_routing(layer) as record:
        layer(children)
    assert requests == [False, False, True]  # once more for the gradient
    totals = record[""][0].coupling.sum(dim=-1)
    torch.testing.assert_close(totals, torch.ones(2, 6, 5, 3, dtype=torch.float64))


def test_votes_are_not_stored_for_the_gradient():
    layer = KernelCaps(4, 8, 4, 8).double()
    x = torch.rand(4, 32, 32, 4, 8, dtype=torch.float64, requires_grad=True)
    stored = {}

    def store(tensor):
        stored[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
        layer(Capsules(x, torch.ones(4, 32, 32, 4, dtype=torch.float64)))
    num_votes = 4 * 32 * 32 * 4 * 4 * 8
    assert sum(stored.values()) < num_votes / 2


def test_layers_under_autocast_and_compiled(kernel_layer, monkeypatch):
    layer, children = kernel_layer
    with torch.autocast("cpu", torch.bfloat16):
        parents = layer(children)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(children)
        monkeypatch.setattr(loops, "MIN_NUMBERS", NEVER)
        expected = layer(children)
    torch.testing.assert_close(parents, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(compiled, expected, atol=1e-5, rtol=1e-4)
