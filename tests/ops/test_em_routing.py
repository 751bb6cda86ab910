"""EM routing: fast paths against the reference in float64, in value and every gradient.

`test_extremes.py` tests float32: a file compiles the loops for one type of number.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

from checks import assert_finite
from torchcaps import ops
from torchcaps.errors import ArgumentError
from torchcaps.functional import ConvField, ConvTransposeField, DenseField, ProductVotes
from torchcaps.functional.votes import FixedCoupling, RoutingContext
from torchcaps.kernels import samples
from torchcaps.testing.random import random_votes
from torchcaps.types import Capsules

from . import makers
from .makers import (
    MATRICES,
    PAPER_MATRICES,
    Layer,
    check_threads,
    compare,
    fields,
    run_layer,
)
from .operator_checks import check_operator, check_second_derivatives

FAST = makers.FAST["em"]
COMPILED = [impl for impl in FAST if impl == "numba"]
LAYER = Layer(ConvField(5, 5, 3), types=2, parents=3, matrices=MATRICES, shift=(1, 1))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    field=fields(),
    batch=st.integers(0, 18),
    types=st.integers(1, 3),
    parents=st.integers(1, 4),
    shift=st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1)]),
    bias=st.booleans(),
    iterations=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_any_field(field, batch, types, parents, shift, bias, iterations, seed):
    layer = Layer(field, batch, types, parents, MATRICES, shift, bias, seed=seed)
    assert compare(layer, "em", iterations=iterations) == FAST


@pytest.mark.slow
@pytest.mark.parametrize("matrices", [(1, 1, 1), (1, 8, 16), (4, 4, 4), (3, 2, 5), (5, 1, 1)])
@pytest.mark.parametrize("shift", [None, (1, 1)])
def test_any_matrices(matrices, shift):
    layer = Layer(ConvField(5, 7, 3, 2), types=2, matrices=matrices, shift=shift)
    assert compare(layer, "em") == FAST


@pytest.mark.parametrize("impl", ["auto", *FAST])
@pytest.mark.parametrize("field", [DenseField(), ConvField(3, 3, 2, convention="type")])
def test_second_derivatives(impl, field):
    names = ("pose", "activation", "weight", "beta_u", "beta_a")
    check_second_derivatives("em", impl, field, names)


@pytest.mark.parametrize("impl", COMPILED)
@pytest.mark.parametrize("needs_coupling", [False, True])
def test_schema_fake_and_autograd(impl, needs_coupling):
    check_operator("em", impl, LAYER, needs_coupling)


def test_several_blocks(monkeypatch):
    monkeypatch.setattr(samples, "BLOCK_BYTES", 1)
    layer = replace(LAYER, batch=5)
    assert compare(layer, "em", impls=["blocked"]) == ["blocked"]


@pytest.mark.parametrize(
    "beta",
    [0.3, torch.tensor(0.3, dtype=torch.float64, requires_grad=True)],
    ids=["number", "leaf"],
)
def test_betas_without_an_axis_and_a_temperature_for_each_iteration(beta):
    votes = LAYER.votes(LAYER.tensors())
    expected = ops.em_routing(votes, None, beta, beta, 2, (0.5, 0.1), impl="reference")
    for impl in FAST:
        routed = ops.em_routing(votes, None, beta, beta, 2, (0.5, 0.1), impl=impl)
        assert_close(routed, expected)


@pytest.mark.parametrize("impl", ["reference", *FAST])
def test_equal_couplings_of_an_ablation_take_the_last_temperature(impl):
    votes = LAYER.votes(LAYER.tensors())
    expected = ops.em_routing(votes, None, 0.3, 0.2, 1, (0.1,), impl="reference")
    equal = votes.bind(RoutingContext(fixed=FixedCoupling(0, 0.0, uses=[])))
    routed = ops.em_routing(equal, None, 0.3, 0.2, 2, (0.5, 0.1), impl=impl)
    assert_close(routed, expected)


def test_inputs_of_any_strides():
    tensors = LAYER.tensors()
    for name, axes in (("pose", (1, 2)), ("activation", (1, 2)), ("weight", (2, 3))):
        tensors[name] = tensors[name].detach().transpose(*axes).requires_grad_()
        assert not tensors[name].is_contiguous(), name
    assert compare(LAYER, "em", tensors=tensors) == FAST


def test_matrices_that_several_children_share():
    layer = Layer(DenseField(2, 3), types=2, matrices=MATRICES, shift=(1, 0), bias=True)
    tensors = layer.tensors()
    tensors["weight"] = tensors["weight"].detach()[:2].requires_grad_()
    assert compare(layer, "em", tensors=tensors) == FAST


def test_votes_far_from_zero_that_hardly_differ():
    """Sums of squares around zero lose their digits there: they are repeated around the mean."""
    layer = replace(LAYER, field=ConvField(3, 3, 3), types=6, scale=1e-3)
    tensors = layer.tensors()
    tensors["shift"] = (1e-3 * tensors["shift"].detach() + 1e4).requires_grad_()
    assert run_layer(layer, "em", "reference", tensors)["activation"].std() > 0
    assert compare(layer, "em", 1e-6, tensors=tensors) == FAST


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("level", [0.0, 1e-300, 1e-30, 1.0])
@pytest.mark.parametrize(
    ("zero", "scaled"), [("pose", "activation"), ("activation", "pose")], ids=["poses", "absent"]
)
def test_zeros(zero, scaled, level, impl):
    tensors = LAYER.tensors()
    tensors[zero] = torch.zeros_like(tensors[zero]).requires_grad_()
    tensors[scaled] = (level * tensors[scaled].detach()).requires_grad_()
    assert_finite(run_layer(LAYER, "em", impl, tensors))


@pytest.mark.parametrize("impl", COMPILED)
def test_the_number_of_threads_changes_nothing(impl):
    layer = replace(LAYER, batch=50)
    check_threads(lambda: run_layer(layer, "em", impl))


@pytest.mark.parametrize("impl", FAST)
def test_coupling_on_request(impl):
    layer = Layer(ConvTransposeField(3, 3, 3, 2), types=2, matrices=MATRICES)
    votes = layer.votes(layer.tensors())
    without = votes.bind(RoutingContext(needs_coupling=False))
    assert ops.em_routing(without, None, 0.0, 0.0, impl=impl).coupling is None
    coupling = ops.em_routing(votes, None, 0.0, 0.0, impl=impl).coupling
    is_outside = (votes.mask == 0).expand(coupling.shape[:-1])
    assert not coupling[is_outside].any()


def make_votes(types):
    """Votes for 16 parents by one window of so many capsule types."""
    layer = Layer(ConvField(3, 3, 3), 1, types, 16, PAPER_MATRICES)
    return layer.votes(layer.tensors())


def test_compiled_loops_are_chosen_where_there_are_many_weights():
    assert ops.choose("em_routing", make_votes(0))[0] == "blocked"
    assert ops.choose("em_routing", make_votes(8))[0] == FAST[-1]


def test_weights_count_as_often_as_they_are_used():
    children = Capsules(torch.randn(2, 6, 6, 4, 16), torch.rand(2, 6, 6, 4))
    weight = torch.randn(4, 16, 4, 4)  # 1,024 weights, used 36 times each
    votes = ProductVotes(children, ConvField(6, 6, 6), weight)
    assert ops.choose("em_routing", votes)[0] == FAST[-1]


def test_given_votes_are_for_the_reference():
    votes = random_votes()
    assert ops.choose("em_routing", votes)[0] == "reference"
    for impl in FAST:
        with pytest.raises(
            ArgumentError, match="the votes are given, not made of poses and matrices"
        ):
            ops.em_routing(votes, torch.ones(2, 6), 0.0, 0.0, impl=impl)


def test_an_implementation_that_cannot_run_is_refused():
    votes = make_votes(8)
    with pytest.raises(
        ArgumentError, match="impl: 'triton' cannot run em_routing here .it has reference, "
    ):
        ops.em_routing(votes, None, 0.0, 0.0, impl="triton")
    traced = votes.bind(RoutingContext(trace=[]))
    with pytest.raises(ArgumentError, match="the couplings of every iteration are asked for"):
        ops.em_routing(traced, None, 0.0, 0.0, impl="blocked")


@pytest.mark.parametrize("impl", COMPILED)
def test_compiled_loops_refuse_large_matrices(impl):
    layer = Layer(matrices=(1, 32, 17))
    with pytest.raises(
        ArgumentError,
        match="'numba' cannot run .*a vote takes 544 products; the compiled loops take 512",
    ):
        ops.em_routing(layer.votes(layer.tensors()), None, 0.0, 0.0, impl=impl)
