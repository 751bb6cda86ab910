"""Routing by agreement: fast paths against the reference, in value and in every gradient."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from checks import assert_equal, assert_finite
from torchcaps import ops
from torchcaps.errors import ArgumentError
from torchcaps.functional import ConvField, DenseField, DenseVotes
from torchcaps.functional.votes import FixedCoupling, RoutingContext
from torchcaps.kernels import samples
from torchcaps.testing.compare import assert_close
from torchcaps.testing.random import random_votes, seeded

from .makers import (
    Layer,
    add_gradients,
    as_leaves,
    compare,
    fields,
    run_layer,
)

OPTIONS = st.fixed_dictionaries(
    {"iterations": st.integers(1, 4), "leaky": st.booleans(), "detach": st.booleans()}
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    field=fields(),
    batch=st.integers(0, 4),
    types=st.integers(1, 4),
    parents=st.integers(1, 6),
    inner=st.integers(1, 18),
    outer=st.integers(1, 7),
    bias=st.booleans(),
    seed=st.integers(0, 999),
    options=OPTIONS,
)
def test_linear_votes_of_any_field(field, batch, types, parents, inner, outer, bias, seed, options):
    layer = Layer(field, batch, types, parents, (1, inner, outer), bias=bias, seed=seed)
    assert compare(layer, **options) == ["blocked"]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    field=fields(),
    matrices=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    shift=st.sampled_from([None, (0, 0), (0, 1), (1, 0), (1, 1)]),
    seed=st.integers(0, 999),
    options=OPTIONS,
)
def test_matrix_votes_with_shifts(field, matrices, shift, seed, options):
    layer = Layer(field, 2, 2, 3, matrices, shift, bias=True, seed=seed)
    assert compare(layer, **options) == ["blocked"]


def run_votes(votes, has_bias, impl, **options):
    """Outputs of given votes, and their gradients, by name."""
    leaves = {"votes": votes.detach().requires_grad_()}
    if has_bias:
        numbers = torch.randn(votes.shape[-2:], generator=seeded(1), dtype=torch.float64)
        leaves["bias"] = numbers.to(votes).requires_grad_()
    routed = ops.dynamic_routing(**leaves, want_coupling=True, impl=impl, **options)
    return add_gradients(routed._asdict(), leaves)


def compare_votes(votes, has_bias=True, **options):
    """Hold the routing of given votes against the reference."""
    outputs = run_votes(votes, has_bias, "blocked", **options)
    for name, expected in run_votes(votes, has_bias, "reference", **options).items():
        assert_close(name, outputs[name], expected, 1e-9, floor=1e-7)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(0, 4), st.integers(1, 20), st.integers(1, 7), st.integers(1, 9)),
    space=st.sampled_from([(), (1, 1), (2, 3)]),
    has_bias=st.booleans(),
    seed=st.integers(0, 999),
    options=OPTIONS,
)
def test_given_votes(sizes, space, has_bias, seed, options):
    votes = random_votes(*sizes, space=space, generator=seeded(seed), dtype=torch.float64)
    compare_votes(votes, has_bias, **options)


@pytest.mark.parametrize("convention", ["all", "type", "space", "patch"])
@pytest.mark.parametrize("block_size", [1, 7 * 9 * 4 * 5, 40 * 9 * 4 * 5])
def test_votes_made_in_parts_of_a_sample_and_in_blocks_of_samples(
    monkeypatch, convention, block_size
):
    monkeypatch.setattr(samples, "BLOCK_BYTES", 8 * block_size)
    field = ConvField(7, 7, 3, 1, 1, convention)
    layer = Layer(field, 5, 1, 4)
    for options in ({}, {"detach": True, "leaky": True}, {"iterations": 1}):
        assert compare(layer, **options) == ["blocked"]
    assert compare(Layer(field, 5, 1, 4, (1, 3, 5), (1, 1))) == ["blocked"]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    "sizes",
    [(20, 1152, 10, (1, 8, 16)), (1, 63, 7, (1, 3, 17)), (3, 1, 1, (1, 1, 1))],
    ids=["paper", "odd sizes", "ones"],
)
def test_precision_and_several_blocks(sizes, dtype, tolerance):
    layer = Layer(DenseField(), *sizes, bias=True, dtype=dtype, scale=0.1)
    assert compare(layer, tolerance=tolerance) == ["blocked"]


@pytest.mark.parametrize("field", [DenseField(), ConvField(4, 4, 3)])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8])
def test_zero_vectors_and_sizes(field, scale):
    layer = Layer(field, types=4, dtype=torch.float32, scale=scale)
    assert_finite(run_layer(layer, "dynamic", "blocked"))
    assert compare(layer, tolerance=1e-5) == ["blocked"]


@pytest.mark.parametrize("repeats", [2, 9])
def test_matrices_that_several_children_share(repeats):
    layer = Layer(DenseField(3, 3), types=2)
    tensors = layer.tensors()
    tensors["weight"] = tensors["weight"].detach()[: 18 // repeats].requires_grad_()
    assert compare(layer, tensors=tensors) == ["blocked"]


@pytest.mark.parametrize(
    "field", [DenseField(), ConvField(5, 5, 3, convention="type"), ConvField(5, 5, 3)]
)
def test_layers_of_any_strides(field):
    layer = Layer(field, types=4)
    tensors = layer.tensors()
    for name in ("pose", "weight"):
        transposed = tensors[name].detach().transpose(-1, -2).contiguous()
        tensors[name] = transposed.transpose(-1, -2).requires_grad_()
        assert not tensors[name].is_contiguous(), name
    assert compare(layer, tensors=tensors) == ["blocked"]


def test_given_votes_of_any_strides():
    votes = random_votes(4, 6, 9, 5, dtype=torch.float64)
    compare_votes(votes.transpose(1, 2))
    compare_votes(votes.permute(3, 1, 2, 0))
    compare_votes(votes[:, ::2])
    compare_votes(votes[..., ::2])


def test_autocast_changes_no_bit():
    layer = Layer(dtype=torch.float32)
    expected = run_layer(layer, "dynamic", "blocked")
    with torch.autocast("cpu", torch.bfloat16):
        outputs = run_layer(layer, "dynamic", "blocked")
    assert_equal(outputs, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_poses_in_half_precision_are_routed_in_float32(dtype):
    layer = Layer(dtype=torch.float32)
    tensors = layer.tensors()
    half = tensors | as_leaves({"pose": tensors["pose"]}, dtype)
    single = tensors | as_leaves({"pose": half["pose"]}, torch.float32)
    outputs = run_layer(layer, "dynamic", "blocked", half)
    expected = run_layer(layer, "dynamic", "reference", single)
    assert outputs["pose"].dtype == torch.float32
    torch.testing.assert_close(outputs["pose"], expected["pose"])
    assert outputs["gradient of pose"].dtype == dtype


def test_coupling_of_a_layer_unless_it_is_not_needed():
    layer = Layer(ConvField(4, 4, 3, padding=1, convention="type"), types=2)
    votes = layer.votes(layer.tensors())
    assert ops.dynamic_routing(votes, impl="blocked").coupling.shape == (3, 4, 4, 18, 4)
    votes = votes.bind(RoutingContext(needs_coupling=False))
    assert ops.dynamic_routing(votes, impl="blocked").coupling is None


def test_coupling_of_given_votes_on_request():
    votes = random_votes(2, 4, 3, 2, space=(2, 2))
    assert ops.dynamic_routing(votes, impl="blocked").coupling is None
    routed = ops.dynamic_routing(votes, impl="blocked", want_coupling=True)
    assert routed.coupling.shape == votes.shape[:-1]


def test_equal_couplings_of_an_ablation_run_on_the_fast_paths():
    layer = Layer(ConvField(4, 4, 3, convention="type"), types=2, bias=True)
    tensors = layer.tensors()

    def route_with_equal_couplings(impl):
        fixed = FixedCoupling(0, 0.0, uses=[])
        votes = layer.votes(tensors).bind(RoutingContext(fixed=fixed))
        routed = ops.dynamic_routing(votes, impl=impl)
        assert fixed.uses
        return routed

    expected = route_with_equal_couplings("reference")
    torch.testing.assert_close(route_with_equal_couplings("blocked"), expected)


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ({"fixed": FixedCoupling(0, 1.0, [])}, "couplings are fixed for an ablation"),
        ({"trace": []}, "couplings of every iteration"),
    ],
)
def test_watched_couplings_are_for_the_reference(context, reason):
    layer = Layer()
    votes = layer.votes(layer.tensors()).bind(RoutingContext(**context))
    with pytest.raises(
        ArgumentError, match=f"impl: 'blocked' cannot run dynamic_routing here .*{reason}"
    ):
        ops.dynamic_routing(votes, impl="blocked")
    assert ops.choose("dynamic_routing", votes)[0] == "reference"


def test_a_misspelled_implementation_is_refused():
    with pytest.raises(ArgumentError, match="unknown impl 'refrence'; did you mean 'reference'"):
        ops.dynamic_routing(random_votes(), impl="refrence")


def test_an_implementation_by_name_works_or_says_why():
    layer = Layer()
    tensors = layer.tensors()
    operands = {"pose": tensors["pose"], "weight": tensors["weight"]}
    half = layer.votes(tensors | as_leaves(operands, torch.bfloat16))
    with pytest.raises(
        ArgumentError,
        match="impl: 'blocked' cannot run dynamic_routing here .*weight is torch.bfloat16",
    ):
        ops.dynamic_routing(half, impl="blocked")
    assert ops.choose("dynamic_routing", half)[0] == "reference"

    meta = random_votes(2, 4, 3, 2).to("meta")
    with pytest.raises(ArgumentError, match="tensors on meta hold no numbers"):
        ops.dynamic_routing(meta, impl="blocked")
    assert ops.choose("dynamic_routing", meta)[0] == "reference"
    assert ops.choose("dynamic_routing", random_votes(), impl="blocked")[0] == "blocked"


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=r"bias: expected \[parents=3, dim=2\], got \[2\]"):
        ops.dynamic_routing(torch.rand(1, 4, 3, 2), bias=torch.rand(2))
    with pytest.raises(ArgumentError, match="iterations: expected at least 1, got 0"):
        ops.dynamic_routing(DenseVotes(torch.rand(1, 4, 3, 2)), 0)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        (
            {"pose": torch.ones(3, 6, 2)},
            "pose: expected in_dim to be a multiple of 3, as in weight, got 2",
        ),
        ({"pose": torch.ones(1, 6, 3)}, r"activation: expected the poses' \[1, 6\], got \[3, 6\]"),
        ({"weight": torch.ones(4, 4, 3, 5)}, "weight: expected matrices for 6 children, got 4"),
        (
            {"pose": torch.ones(3, 6, 3, dtype=torch.int64)},
            "pose: expected floating point, got torch.int64",
        ),
    ],
)
def test_wrong_operands(operands, message):
    layer = Layer()
    with pytest.raises(ArgumentError, match=message):
        ops.dynamic_routing(layer.votes(layer.tensors() | operands))
