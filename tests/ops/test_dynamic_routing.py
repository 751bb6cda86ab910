"""Routing by agreement: fast paths against the reference, in value and in every gradient, through the dispatcher."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps import ops
from torchcaps.functional import ConvField, ConvTransposeField, DenseField, DenseVotes
from torchcaps.functional.votes import FixedCoupling, RoutingContext
from torchcaps.kernels import samples
from torchcaps.testing.compare import assert_close
from torchcaps.testing.random import random_votes, seeded

from .makers import Layer, compare, fields, gradients, outcome

OPTIONS = {"iterations": st.integers(1, 4), "leaky": st.booleans(), "detach": st.booleans()}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    where=fields(),
    batch=st.integers(0, 4),
    types=st.integers(1, 4),
    parents=st.integers(1, 6),
    inner=st.integers(1, 18),
    outer=st.integers(1, 7),
    bias=st.booleans(),
    seed=st.integers(0, 999),
    options=st.fixed_dictionaries(OPTIONS),
)
def test_linear_votes_of_any_field(where, batch, types, parents, inner, outer, bias, seed, options):
    layer = Layer(where, batch, types, parents, (1, inner, outer), bias=bias, seed=seed)
    assert compare(layer, **options) == ["blocked"]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    where=fields(),
    matrices=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    shift=st.sampled_from([None, (0, 0), (0, 1), (1, 0), (1, 1)]),
    seed=st.integers(0, 999),
    options=st.fixed_dictionaries(OPTIONS),
)
def test_matrix_votes_with_shifts(where, matrices, shift, seed, options):
    layer = Layer(where, 2, 2, 3, matrices, shift, bias=True, seed=seed)
    assert compare(layer, **options) == ["blocked"]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(0, 4), st.integers(1, 20), st.integers(1, 7), st.integers(1, 9)),
    space=st.sampled_from([(), (1, 1), (2, 3)]),
    biased=st.booleans(),
    seed=st.integers(0, 999),
    options=st.fixed_dictionaries(OPTIONS),
)
def test_given_votes(sizes, space, biased, seed, options):
    compare_given(
        random_votes(*sizes, space=space, generator=seeded(seed), dtype=torch.float64),
        biased,
        **options,
    )


def compare_given(votes, biased=True, tolerance=1e-9, **options):
    bias = (
        torch.randn(votes.shape[-2:], generator=seeded(1), dtype=torch.float64).to(votes)
        if biased
        else None
    )
    found = []
    for impl in ("blocked", "reference"):
        tensors = {
            "votes": votes.detach().requires_grad_(),
            "bias": bias if bias is None else bias.requires_grad_(),
        }
        routed = ops.dynamic_routing(
            tensors["votes"], bias=tensors["bias"], want_coupling=True, impl=impl, **options
        )
        found.append([*routed, *gradients(routed, tensors).values()])
    for a, b in zip(*found, strict=True):
        assert_close("given votes", a, b, tolerance, floor=1e-7)


@pytest.mark.parametrize("convention", ["all", "type", "space", "patch"])
@pytest.mark.parametrize("numbers", [1, 7 * 9 * 4 * 5, 40 * 9 * 4 * 5])
def test_votes_made_in_parts_of_a_sample_and_in_blocks_of_samples(monkeypatch, convention, numbers):
    monkeypatch.setattr(samples, "BLOCK_BYTES", 8 * numbers)
    layer = Layer(ConvField(7, 7, 3, 1, 1, convention), 5, 1, 4)
    for options in ({}, {"detach": True, "leaky": True}, {"iterations": 1}):
        compare(layer, **options)
    compare(Layer(layer.field, 5, 1, 4, (1, 3, 5), (1, 1)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    "sizes", [(20, 1152, 10, (1, 8, 16)), (1, 63, 7, (1, 3, 17)), (3, 1, 1, (1, 1, 1))]
)
def test_precision_and_several_blocks(sizes, dtype, tolerance):
    assert compare(
        Layer(DenseField(), *sizes, bias=True, dtype=dtype, scale=0.1), tolerance=tolerance
    ) == ["blocked"]


@pytest.mark.parametrize(
    "where",
    [ConvField(8, 8, 3, 2), ConvField(8, 8, 3, 2, 1, "type"), ConvTransposeField(4, 4, 3, 2, 1)],
)
def test_convolutions_in_float32(where):
    compare(
        Layer(where, 3, 4, 6, (1, 8, 8), bias=True, dtype=torch.float32, scale=0.3), tolerance=2e-5
    )


@pytest.mark.parametrize("where", [DenseField(), ConvField(4, 4, 3)])
@pytest.mark.parametrize("through", [0, 1, 2])
def test_gradient_through_each_output(where, through):
    compare(Layer(where, types=3, bias=True), through=(through,))


@pytest.mark.parametrize("where", [DenseField(), ConvField(4, 4, 3)])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1e8, 1e18, 1e30])
def test_zero_vectors_and_sizes(where, scale):
    layer = Layer(where, types=4, dtype=torch.float32, scale=scale)
    for name, tensor in outcome(layer, "dynamic", "blocked").items():
        assert tensor.isfinite().all(), name
    if scale <= 1:  # beyond, the softmax is a hard choice and ties are decided by rounding
        compare(layer, tolerance=1e-5)


@pytest.mark.parametrize("repeats", [2, 9])
def test_matrices_that_several_children_share(repeats):
    layer = Layer(DenseField(3, 3), types=2)
    tensors = layer.tensors()
    tensors["weight"] = tensors["weight"].detach()[: 18 // repeats].requires_grad_()
    assert compare(layer, tensors=tensors) == ["blocked"]


@pytest.mark.parametrize(
    "where", [DenseField(), ConvField(5, 5, 3, convention="type"), ConvField(5, 5, 3)]
)
def test_inputs_of_any_strides(where):
    layer = Layer(where, types=4)
    tensors = layer.tensors()
    turned = {
        n: tensors[n].detach().transpose(-1, -2).contiguous().transpose(-1, -2)
        for n in ("pose", "weight")
    }
    assert not any(x.is_contiguous() for x in turned.values())
    compare(layer, tensors=tensors | {n: x.requires_grad_() for n, x in turned.items()})
    votes = random_votes(4, 6, 9, 5, dtype=torch.float64)
    for other in (votes.transpose(1, 2), votes.permute(3, 1, 2, 0), votes[:, ::2], votes[..., ::2]):
        compare_given(other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_are_computed_in_float32(dtype):
    layer = Layer(dtype=torch.float32)
    tensors = layer.tensors()
    plain = outcome(layer, "dynamic", "blocked", tensors)
    with torch.autocast("cpu", torch.bfloat16):
        cast = outcome(layer, "dynamic", "blocked", tensors)
    assert all(torch.equal(cast[name], tensor) for name, tensor in plain.items())
    half = tensors["pose"].detach().to(dtype)
    found = outcome(layer, "dynamic", "blocked", tensors | {"pose": half.requires_grad_()})
    expected = outcome(
        layer, "dynamic", "reference", tensors | {"pose": half.detach().float().requires_grad_()}
    )
    assert found["pose"].dtype == torch.float32
    torch.testing.assert_close(found["pose"], expected["pose"])
    assert found["gradient of pose"].dtype == dtype
    votes = random_votes(3, 9, 5, 4).to(dtype)
    bias = torch.full((5, 4), 0.1, dtype=dtype)
    given = ops.dynamic_routing(votes, bias=bias, impl="blocked")
    torch.testing.assert_close(
        given.pose, ops.dynamic_routing(votes.float(), bias=bias.float(), impl="reference").pose
    )


def test_a_sample_alone_and_repetition():
    layer = Layer(DenseField(), 20, 30, dtype=torch.float32)
    tensors = layer.tensors()
    whole = ops.dynamic_routing(layer.votes(tensors), impl="blocked").pose
    assert torch.equal(ops.dynamic_routing(layer.votes(tensors), impl="blocked").pose, whole)
    one = tensors | {"pose": tensors["pose"][2:3], "activation": tensors["activation"][2:3]}
    torch.testing.assert_close(
        ops.dynamic_routing(layer.votes(one), impl="blocked").pose, whole[2:3]
    )


def test_coupling_on_request():
    layer = Layer(ConvField(4, 4, 3, padding=1, convention="type"), types=2)
    votes = layer.votes(layer.tensors())
    assert ops.dynamic_routing(votes, impl="blocked").coupling.shape == (3, 4, 4, 18, 4)
    votes = votes.bind(RoutingContext(needs_coupling=False))
    assert ops.dynamic_routing(votes, impl="blocked").coupling is None
    votes = random_votes(2, 4, 3, 2, space=(2, 2))
    assert ops.dynamic_routing(votes, impl="blocked").coupling is None
    assert ops.dynamic_routing(votes, impl="blocked", want_coupling=True).coupling.shape == (
        2,
        2,
        2,
        4,
        3,
    )


def test_equal_couplings_of_an_ablation_run_on_the_fast_paths():
    layer = Layer(ConvField(4, 4, 3, convention="type"), types=2, bias=True)
    tensors = layer.tensors()
    truth = None
    for impl in ("reference", "blocked"):
        fixed = FixedCoupling(0, 0.0, uses=[])
        votes = layer.votes(tensors).bind(RoutingContext(fixed=fixed))
        found = ops.dynamic_routing(votes, impl=impl)
        assert fixed.uses
        truth = truth or found
        torch.testing.assert_close(found, truth)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fixed": FixedCoupling(0, 1.0, [])}, "couplings are fixed for an ablation"),
        ({"trace": []}, "couplings of every iteration"),
    ],
)
def test_watched_couplings_are_for_the_reference(change, reason):
    layer = Layer()
    votes = layer.votes(layer.tensors())
    votes = votes.bind(RoutingContext(**change))
    with pytest.raises(
        ValueError, match=f"impl: 'blocked' cannot run dynamic_routing here .*{reason}"
    ):
        ops.dynamic_routing(votes, impl="blocked")
    assert ops.choose("dynamic_routing", votes)[0] == "reference"


def test_asked_for_by_name_it_works_or_says_why():
    layer = Layer()
    tensors = layer.tensors()
    with pytest.raises(ValueError, match="unknown impl 'refrence'; did you mean 'reference'"):
        ops.dynamic_routing(layer.votes(tensors), impl="refrence")
    half = layer.votes(tensors | {n: tensors[n].detach().bfloat16() for n in ("pose", "weight")})
    with pytest.raises(
        ValueError,
        match="impl: 'blocked' cannot run dynamic_routing here .*weight is torch.bfloat16",
    ):
        ops.dynamic_routing(half, impl="blocked")
    assert ops.choose("dynamic_routing", half)[0] == "reference"
    meta = random_votes(2, 4, 3, 2).to("meta")
    with pytest.raises(ValueError, match="tensors on meta hold no numbers"):
        ops.dynamic_routing(meta, impl="blocked")
    assert ops.choose("dynamic_routing", meta)[0] == "reference"
    assert ops.choose("dynamic_routing", random_votes(), impl="blocked")[0] == "blocked"


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"votes: expected \[\*batch, children, parents, dim\]"):
        ops.dynamic_routing(torch.rand(4, 3, 2))
    with pytest.raises(ValueError, match=r"bias: expected \[parents=3, dim=2\], got \[2\]"):
        ops.dynamic_routing(torch.rand(1, 4, 3, 2), bias=torch.rand(2))
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        ops.dynamic_routing(DenseVotes(torch.rand(1, 4, 3, 2)), 0)
    layer = Layer()
    tensors = layer.tensors()
    for change, message in (
        (
            {"pose": tensors["pose"][..., :2]},
            "pose: expected in_dim to be a multiple of 3, as weight has it, got 2",
        ),
        ({"pose": tensors["pose"][:1]}, r"activation: expected the poses' \[1, 6\], got \[3, 6\]"),
        ({"weight": tensors["weight"][:4]}, "weight: expected matrices for 6 children, got 4"),
        (
            {"pose": torch.ones(3, 6, 3, dtype=torch.int64)},
            "pose: expected floating point, got torch.int64",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            ops.dynamic_routing(layer.votes(tensors | change))
