"""The factory of fused operators, by a small one; and what it promises of every fast path."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from torchcaps import ops, testing
from torchcaps.functional import ConvField, DenseField
from torchcaps.kernels.operator import define_operator
from torchcaps.kernels.support import HAS_NUMBA
from torchcaps.testing.random import random_votes

from .makers import FAST, MATRICES, Layer, compute_gradients, route
from .operator_checks import (
    OperatorCalls,
    check_calls,
    check_operator,
    check_second_derivatives,
)


class Scaled(NamedTuple):
    x: Tensor
    factor: Tensor
    missing: Tensor | None
    times: int
    powers: list[float]

    def forward(self):
        assert not torch.is_autocast_enabled("cpu")
        exponential, total = self.reference()
        return exponential, total, exponential.clone()

    def backward(self, saved, grads, needed):
        inner = grads[0] * saved[0]
        grad_x = inner @ self.factor.t() + grads[1]
        grad_factor = self.x.t() @ inner if needed[1] else None
        return grad_x.unsqueeze(0), grad_factor, None  # the factory sums to the shape of x

    def reference(self):
        return (self.x @ self.factor).exp() * self.times, self.x.sum(dim=0)

    def empty_outputs(self):
        y = self.x.new_empty(self.x.shape[0], self.factor.shape[1])
        return y, self.x.new_empty(self.x.shape[1]), torch.empty_like(y)


scaled = define_operator("test_scaled", Scaled, num_saved=1)


def loss_within_autocast(x, factor):
    with torch.autocast("cpu", torch.bfloat16):
        y, total, _ = scaled(Scaled(x, factor, None, 2, [1.0]))
    return y.square().sum() + total.sum()


def test_value_and_gradients_of_an_operator():
    x = torch.rand(4, 3, requires_grad=True)
    factor = torch.rand(3, 2, requires_grad=True)
    loss = loss_within_autocast(x, factor)
    expected = (2 * (x @ factor).exp()).square().sum() + x.sum()
    assert_close(loss, expected)

    expected_gradients = torch.autograd.grad(expected, (x, factor))
    gradients = torch.autograd.grad(loss, (x, factor))
    assert_close(gradients, expected_gradients)

    # The backward function leaves out what no one needs.
    (gradient,) = torch.autograd.grad(loss_within_autocast(x, factor.detach()), x)
    assert_close(gradient, expected_gradients[0])


def test_an_operator_as_pytorch_sees_it():
    x = torch.rand(4, 3, requires_grad=True)
    factor = torch.rand(3, 2, requires_grad=True)
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        torch.ops.torchcaps.test_scaled.default, (x, factor, None, 2, [1.0, 2.0]), test_utils=utils
    )
    schema = str(torch.ops.torchcaps.test_scaled_backward.default._schema)
    assert schema == (
        "torchcaps::test_scaled_backward(Tensor x, Tensor factor, Tensor? missing, SymInt times, "
        "float[] powers, Tensor[] kept, Tensor[] grads, bool[] wanted) -> Tensor[]"
    )


LINEAR = Layer(types=6, bias=True, dtype=torch.float32)
CONVOLUTION = Layer(ConvField(4, 4, 3, padding=1), types=2, bias=True, dtype=torch.float32)
MATRIX = Layer(ConvField(4, 4, 3), types=2, matrices=MATRICES, shift=(1, 1))


@pytest.mark.parametrize("layer", [LINEAR, CONVOLUTION], ids=["linear", "convolution"])
@pytest.mark.parametrize("needs_coupling", [False, True])
def test_schema_fake_and_autograd(layer, needs_coupling):
    check_operator("dynamic", "blocked", layer, needs_coupling)


def test_given_votes_as_an_operator():
    votes = random_votes(2, 6, 5, 3).requires_grad_()
    bias = torch.full((5, 3), 0.1, requires_grad=True)
    with OperatorCalls() as operators:
        ops.dynamic_routing(votes, bias=bias, impl="blocked", leaky=True).pose.sum().backward()
    check_calls(*operators.calls)


@pytest.mark.parametrize("impl", ["auto", "blocked"])
@pytest.mark.parametrize("field", [DenseField(), ConvField(3, 3, 2, convention="type")])
def test_second_derivatives(impl, field):
    check_second_derivatives("dynamic", impl, field, ("pose", "weight", "bias"))


@pytest.mark.parametrize("impl", ["auto", "blocked"])
def test_second_derivatives_of_a_convolution(impl):
    def leaf(*size):
        return torch.randn(size, dtype=torch.float64, requires_grad=True)

    def convolve(x, weight, bias):
        return ops.conv2d(x, weight, bias, impl=impl)

    operands = (leaf(1, 8, 5, 5), leaf(8, 8, 4, 4), leaf(8))
    assert torch.autograd.gradgradcheck(convolve, operands, fast_mode=True)


def linear_gradients(tensors, impl):
    return compute_gradients(route("dynamic", LINEAR.votes(tensors), tensors, impl), tensors)


@pytest.mark.parametrize("impl", ["reference", "blocked"])
@pytest.mark.parametrize("frozen", ["pose", "weight"])
def test_frozen_operands_leave_the_gradients_of_the_rest(impl, frozen):
    tensors = LINEAR.tensors()
    expected = linear_gradients(tensors, impl)
    tensors[frozen] = tensors[frozen].detach()
    gradients = linear_gradients(tensors, impl)
    assert frozen not in gradients
    for name, gradient in gradients.items():
        assert_close(gradient, expected[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("routing", "impl", "layer"),
    [
        ("dynamic", "auto", LINEAR),
        ("dynamic", "blocked", LINEAR),
        ("dynamic", "blocked", CONVOLUTION),
        ("em", "blocked", MATRIX),
        pytest.param(
            "em",
            "numba",
            MATRIX,
            marks=pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed"),
        ),
    ],
)
def test_compiles_without_a_break_with_gradients(routing, impl, layer):
    def call(*operands):
        named = dict(zip(tensors, operands, strict=True))
        return tuple(route(routing, layer.votes(named), named, impl))

    torch._dynamo.reset()  # all cases share the code of `call`
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for repeats in (1, 2):
        tensors = layer.tensors()
        for name in ("pose", "activation"):
            repeated = tensors[name].detach().repeat_interleave(repeats, dim=0)
            tensors[name] = repeated.requires_grad_()
        expected = call(*tensors.values())
        outputs = compiled(*tensors.values())
        assert_close(outputs, expected)
        assert_close(compute_gradients(outputs, tensors), compute_gradients(expected, tensors))


def test_explain_says_which_implementation_runs_and_why():
    votes = LINEAR.votes(LINEAR.tensors())
    name, reason = ops.choose("dynamic_routing", votes)
    assert name == "blocked"
    assert ops.explain("dynamic_routing", votes) == f"dynamic_routing runs as {name!r} ({reason})"
    assert "asked for by name" in ops.explain("dynamic_routing", votes, impl="reference")


def survey_names(device):
    """Name of the implementation of each operator."""
    return {name: impl for name, (impl, _) in testing.survey(torch.device(device)).items()}


def test_survey_names_an_implementation_of_each_operator():
    on_cpu = {
        "conv2d": "blocked",
        "dynamic_routing": "numba" if HAS_NUMBA else "blocked",
        "em_routing": FAST["em"][-1],
        "map_routing": "numba" if HAS_NUMBA else "reference",
    }
    assert survey_names("cpu") == on_cpu
    assert list(survey_names("cpu")) == list(on_cpu)
    assert survey_names("meta") == dict.fromkeys(on_cpu, "reference")


def test_implementations_are_listed():
    assert ops.implementations("conv2d") == ["auto", "reference", "blocked"]
    assert {"blocked", "numba"} < set(ops.implementations("em_routing"))
