"""Routing of linear votes without storing them, by products and by loops, against the reference."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from checks import assert_finite
from torchcaps import ops
from torchcaps.errors import ArgumentError
from torchcaps.functional import ConvField, DenseField
from torchcaps.kernels.lanes import LANES
from torchcaps.kernels.support import HAS_NUMBA

from .makers import Layer, compare, run_layer
from .operator_checks import check_operator
from .test_extremes import LARGEST, uniform_leaf

needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
pytestmark = pytest.mark.parametrize("impl", ["bmm", pytest.param("numba", marks=needs_numba)])
# Loops are compiled for each size of a capsule, type of number and number of terms of a gradient,
# which takes seconds. Tests share these: small ones in float64, those of the paper in float32.
SMALL = (1, 2, 3)
PAPER = (1, 8, 16)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    field=st.sampled_from([DenseField(), DenseField(2, 3), ConvField(4, 5, 3, convention="type")]),
    batch=st.sampled_from([0, 1, 3, LANES, LANES + 1, 2 * LANES + 5]),
    types=st.sampled_from([1, 3, 64, 65, 130]),
    parents=st.integers(1, 6),
    bias=st.booleans(),
    seed=st.integers(0, 999),
    leaky=st.booleans(),
    detach=st.booleans(),
    iterations=st.integers(1, 3),
)
def test_layers_drawn_at_random(impl, field, batch, types, parents, bias, seed, **options):
    if not isinstance(field, DenseField):
        types = min(types, 3)
    layer = Layer(field, batch, types, parents, SMALL, bias=bias, seed=seed)
    assert compare(layer, impls=[impl], **options) == [impl]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Layer(matrices=(2, 2, 2)), "poses are matrices of 2 rows"),
        (Layer(matrices=SMALL, shift=(1, 1)), "the votes are shifted"),
        (Layer(ConvField(4, 4, 3), matrices=SMALL), "parents at different positions compete"),
    ],
)
def test_votes_that_are_refused(impl, layer, reason):
    with pytest.raises(ArgumentError, match=f"'{impl}' cannot run .*{reason}"):
        run_layer(layer, "dynamic", impl)


def test_the_layer_of_the_paper_in_float32(impl):
    layer = Layer(DenseField(), 33, 1152, 10, PAPER, dtype=torch.float32, scale=0.1)
    assert compare(layer, impls=[impl], tolerance=1e-5) == [impl]


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8])
def test_zero_vectors_and_sizes(impl, scale):
    layer = Layer(matrices=PAPER, dtype=torch.float32, scale=scale)
    assert_finite(run_layer(layer, "dynamic", impl))
    assert compare(layer, impls=[impl], tolerance=1e-5) == [impl]


@pytest.mark.parametrize("scale", [1e7, 1e19, LARGEST])
def test_numbers_of_any_size(impl, scale):
    layer = Layer(matrices=PAPER, dtype=torch.float32)
    tensors = layer.tensors()
    for name in ("pose", "weight"):
        tensors[name] = uniform_leaf(*tensors[name].shape, scale=scale, seed=0)
        assert_finite(run_layer(layer, "dynamic", impl, tensors))


@pytest.mark.parametrize("needs_coupling", [False, True])
def test_schema_fake_and_autograd(impl, needs_coupling):
    layer = Layer(bias=True, matrices=PAPER, dtype=torch.float32)
    check_operator("dynamic", impl, layer, needs_coupling)


def test_second_derivatives(impl):
    layer = Layer(batch=2, types=3, parents=2, matrices=SMALL)
    tensors = layer.tensors()

    def route_votes(pose, weight):
        votes = layer.votes(tensors | {"pose": pose, "weight": weight})
        return ops.dynamic_routing(votes, impl=impl).pose

    operands = (tensors["pose"], tensors["weight"])
    assert torch.autograd.gradgradcheck(route_votes, operands, fast_mode=True)
