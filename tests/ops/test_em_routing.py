"""EM routing: fast paths against the reference, in value and every gradient.

Compiled loops are made for each size of matrices and each type of number, which takes seconds: few of them are drawn.
"""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps import ops
from torchcaps.functional import ConvField, ConvTransposeField, DenseField, ProductVotes
from torchcaps.functional.votes import RoutingContext
from torchcaps.kernels import samples
from torchcaps.testing.compare import assert_close, relative_rms
from torchcaps.testing.random import random_votes
from torchcaps.types import Capsules

from . import makers
from .makers import Layer, compare, fields, outcome

FAST = makers.FAST["em"]
COMPILED = [impl for impl in FAST if impl == "numba"]
SHIFTS = st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1)])
# Compiled once each: for float64, and for float32.
MATRICES = (2, 2, 2)
PAPER_MATRICES = (4, 4, 4)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    where=fields(),
    batch=st.integers(0, 18),
    types=st.integers(1, 3),
    parents=st.integers(1, 4),
    shift=SHIFTS,
    bias=st.booleans(),
    iterations=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_any_field(where, batch, types, parents, shift, bias, iterations, seed):
    layer = Layer(where, batch, types, parents, MATRICES, shift, bias, seed=seed)
    assert compare(layer, "em", iterations=iterations) == FAST


@pytest.mark.slow
@pytest.mark.parametrize("matrices", [(1, 1, 1), (1, 8, 16), (4, 4, 4), (3, 2, 5), (5, 1, 1)])
@pytest.mark.parametrize("shift", [None, (1, 1)])
def test_any_matrices(matrices, shift):
    assert (
        compare(Layer(ConvField(5, 7, 3, 2), types=2, matrices=matrices, shift=shift), "em") == FAST
    )


def test_the_papers_matrices_in_float32():
    layer = Layer(
        ConvField(8, 8, 3, 2), 3, 4, 5, PAPER_MATRICES
    )  # no window reaches the last row and column
    tensors = layer.tensors()
    truth = outcome(layer, "em", "reference", tensors)
    single = {
        n: None if x is None else x.detach().float().requires_grad_() for n, x in tensors.items()
    }
    for impl in FAST:
        for name, found in outcome(layer, "em", impl, single).items():
            assert found.dtype == torch.float32
            assert_close(f"{impl}: {name}", found.double(), truth[name], 1e-5, floor=1e-6)


def test_children_of_no_activation_in_float32():
    """Sums of squares around the mean of all children lost half of the digits of their gradient."""
    layer = Layer(ConvField(4, 4, 3), 2, 2, 3, PAPER_MATRICES, (1, 1), seed=9)
    tensors = layer.tensors()
    few = torch.where(tensors["activation"] < 0.97, 0.0, tensors["activation"])
    tensors["activation"] = few.detach().requires_grad_()
    truth = outcome(layer, "em", "reference", tensors)["gradient of activation"]
    single = {
        n: None if x is None else x.detach().float().requires_grad_() for n, x in tensors.items()
    }
    for impl in FAST:
        found = outcome(layer, "em", impl, single)["gradient of activation"]
        assert_close(f"{impl}: gradient of activation", found.double(), truth, 1e-5)


@pytest.mark.parametrize("through", [0, 1, 2])
def test_gradient_through_each_output(through):
    compare(
        Layer(ConvField(7, 7, 3, 2), types=2, parents=3, matrices=MATRICES, shift=(1, 1)),
        "em",
        through=(through,),
    )


@pytest.mark.parametrize("impl", COMPILED)
def test_numerical_gradient(impl):
    layer = Layer(ConvField(3, 3, 2), 1, 1, 2, MATRICES, (1, 1))
    tensors = layer.tensors()
    given = [x for x in tensors.values() if x is not None]

    def routed(*_):
        return ops.em_routing(
            layer.votes(tensors), None, tensors["beta_u"], tensors["beta_a"], 3, 0.3, impl=impl
        )

    torch.autograd.gradcheck(routed, given, fast_mode=True)


def test_several_blocks(monkeypatch):
    monkeypatch.setattr(samples, "BLOCK_BYTES", 1)
    compare(Layer(ConvField(5, 5, 3), 5, 2, 3, MATRICES), "em", impls=["blocked"])


def test_betas_and_temperatures_of_any_form():
    layer = Layer(ConvField(4, 4, 3), types=2, matrices=MATRICES, shift=(1, 1))
    tensors = layer.tensors()
    heat = (0.5, 0.1)
    for beta in (0.3, torch.tensor(0.3, dtype=torch.float64, requires_grad=True)):
        found = [
            ops.em_routing(layer.votes(tensors), None, beta, beta, 2, heat, impl=impl)
            for impl in ("reference", *FAST)
        ]
        for other in found[1:]:
            torch.testing.assert_close(other, found[0])


def test_inputs_of_any_strides():
    layer = Layer(
        ConvField(5, 5, 3), types=2, matrices=MATRICES, shift=(1, 1)
    )  # as others have: compiled once
    tensors = layer.tensors()
    turned = {n: tensors[n].detach().transpose(1, 2) for n in ("pose", "activation")}
    turned["weight"] = tensors["weight"].detach().transpose(2, 3)
    assert not any(x.is_contiguous() for x in turned.values())
    compare(layer, "em", tensors=tensors | {n: x.requires_grad_() for n, x in turned.items()})


def test_matrices_that_several_children_share():
    layer = Layer(DenseField(2, 3), types=2, matrices=MATRICES, shift=(1, 0), bias=True)
    tensors = layer.tensors()
    tensors["weight"] = tensors["weight"].detach()[:2].requires_grad_()
    assert compare(layer, "em", tensors=tensors) == FAST


def test_votes_far_from_zero_that_hardly_differ():
    """Where sums of squares around zero lose their digits: those are made once more, around the mean."""
    layer = Layer(
        ConvField(3, 3, 3), types=6, parents=3, matrices=MATRICES, shift=(1, 1), scale=1e-3
    )
    tensors = layer.tensors()
    tensors["shift"] = (1e-3 * tensors["shift"].detach() + 1e4).requires_grad_()
    assert outcome(layer, "em", "reference", tensors)["activation"].std() > 0
    compare(layer, "em", 1e-6, tensors=tensors)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("level", [0.0, 1e-300, 1e-30, 1.0])
def test_zeros(level, impl):
    layer = Layer(ConvField(5, 5, 3), types=2, parents=3, matrices=MATRICES, shift=(1, 1))
    for zero, other in (("pose", "activation"), ("activation", "pose")):
        tensors = layer.tensors()
        tensors[zero] = torch.zeros_like(tensors[zero]).requires_grad_()
        tensors[other] = (level * tensors[other].detach()).requires_grad_()
        for name, tensor in outcome(layer, "em", impl, tensors).items():
            assert tensor.isfinite().all(), name


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_poses_of_any_size_in_float32(scale, impl):
    layer = Layer(ConvField(8, 8, 3, 2), 3, 4, 5, (4, 4, 4), dtype=torch.float32, scale=scale)
    for name, tensor in outcome(layer, "em", impl, inverse_temperature=0.01).items():
        assert tensor.isfinite().all(), name


@pytest.mark.parametrize("impl", FAST)
def test_half_precision_and_autocast_are_computed_in_float32(impl):
    layer = Layer(
        ConvField(5, 5, 3), types=2, matrices=PAPER_MATRICES, shift=(1, 1), dtype=torch.float32
    )
    tensors = layer.tensors()
    half = {
        n: x if x is None else x.detach().bfloat16().requires_grad_() for n, x in tensors.items()
    }
    found, truth = (outcome(layer, "em", name, half)["pose"] for name in (impl, "reference"))
    assert found.dtype == torch.float32
    assert relative_rms(found, truth) < 0.05
    plain = outcome(layer, "em", impl, tensors)
    with torch.autocast("cpu", torch.bfloat16):
        cast = outcome(layer, "em", impl, tensors)
    assert relative_rms(cast["pose"], plain["pose"]) < 0.05
    assert cast["pose"].dtype == torch.float32


@pytest.mark.parametrize("impl", COMPILED)
def test_samples_do_not_meet(impl):
    """Each has a lane of its own: the others neither change its outcome nor make it wait for another group."""
    layer = Layer(ConvField(5, 5, 3), 20, 2, 3, MATRICES, (1, 1))
    tensors = layer.tensors()
    together = outcome(layer, "em", impl, tensors)["pose"]
    for place in (0, 15, 16, 19):
        alone = tensors | {n: tensors[n][place : place + 1] for n in ("pose", "activation")}
        found = ops.em_routing(
            layer.votes(alone), None, tensors["beta_u"], tensors["beta_a"], 3, 0.3, impl=impl
        ).pose
        assert torch.equal(found[0], together[place])


@pytest.mark.parametrize("impl", COMPILED)
def test_the_number_of_threads_changes_nothing(impl):
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(outcome(Layer(ConvField(5, 5, 3), 50, 2, 3, MATRICES, (1, 1)), "em", impl))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[1][name], tensor) for name, tensor in found[0].items())


@pytest.mark.parametrize("impl", FAST)
def test_coupling_on_request(impl):
    layer = Layer(ConvTransposeField(3, 3, 3, 2), types=2, matrices=MATRICES)
    tensors = layer.tensors()
    votes = layer.votes(tensors).bind(RoutingContext(needs_coupling=False))
    assert ops.em_routing(votes, None, 0.0, 0.0, impl=impl).coupling is None
    found = ops.em_routing(layer.votes(tensors), None, 0.0, 0.0, impl=impl).coupling
    assert not found[(votes.mask == 0).expand(found.shape[:-1])].any()


def test_what_can_run_and_when_it_is_worth_it():
    small, large = (Layer(ConvField(3, 3, 3), 1, n, 16, (4, 4, 4)) for n in (0, 8))
    small, large = (layer.votes(layer.tensors()) for layer in (small, large))
    assert ops.choose("em_routing", small)[0] == "blocked"
    assert ops.choose("em_routing", large)[0] == FAST[-1]
    children = Capsules(torch.randn(2, 6, 6, 4, 16), torch.rand(2, 6, 6, 4))
    shared = ProductVotes(
        children, ConvField(6, 6, 6), torch.randn(4, 16, 4, 4)
    )  # 1,024 weights, used 36 times each
    assert ops.choose("em_routing", shared)[0] == FAST[-1]
    given = random_votes()
    assert ops.choose("em_routing", given)[0] == "reference"
    for impl in FAST:
        with pytest.raises(ValueError, match="the votes are given, not made of poses and matrices"):
            ops.em_routing(given, torch.ones(2, 6), 0.0, 0.0, impl=impl)
    with pytest.raises(
        ValueError, match="impl: 'triton' cannot run em_routing here .it has reference, "
    ):
        ops.em_routing(large, None, 0.0, 0.0, impl="triton")
    large = large.bind(RoutingContext(trace=[]))
    with pytest.raises(ValueError, match="the couplings of every iteration are asked for"):
        ops.em_routing(large, None, 0.0, 0.0, impl="blocked")


@pytest.mark.parametrize("impl", COMPILED)
def test_what_compiled_loops_cannot_take(impl):
    layer = Layer(matrices=(1, 32, 17))
    with pytest.raises(
        ValueError,
        match="'numba' cannot run .*a vote takes 544 products; the compiled loops take 512",
    ):
        ops.em_routing(layer.votes(layer.tensors()), None, 0.0, 0.0, impl=impl)


def test_wrong_arguments():
    votes, activation = random_votes(), torch.ones(2, 6)
    for arguments, message in (
        (
            (votes, activation[:1], 0.0, 0.0),
            r"activation: expected the votes' \[2, 6\], got \[1, 6\]",
        ),
        ((votes, activation, torch.ones(2), 0.0), r"beta_u: expected \[parents=5\]"),
        ((votes, activation, 0.0, 0.0, 0), "iterations: expected at least 1, got 0"),
        (
            (votes, activation, 0.0, 0.0, 3, (0.1,)),
            "inverse_temperature: expected a number or 3 of them, got 1",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            ops.em_routing(*arguments)
