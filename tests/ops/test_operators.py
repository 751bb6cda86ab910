"""The fast paths as PyTorch operators: schema, fake version, autograd, compilation; found by watching what runs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchcaps import ops
from torchcaps.nn import CapsuleLinear
from torchcaps.testing import random_capsules, random_votes

from .test_routed_dynamic import FAST


class Watch(TorchDispatchMode):
    """Keeps the calls of this library's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "torchcaps":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def run(op, impl, bias, **options):
    bias = torch.full((5, 3), 0.1, requires_grad=True) if bias else None
    if op == "dynamic_routing":
        return ops.dynamic_routing(random_votes(2, 6, 5, 3).requires_grad_(), bias=bias, impl=impl, **options)
    pose, weight = random_capsules(2, 6, 4).pose.requires_grad_(), torch.randn(6, 5, 3, 4, requires_grad=True)
    return ops.routed_dynamic(pose, weight, bias, impl=impl, **options)


CASES = [("dynamic_routing", "cpu"), *(("routed_dynamic", impl) for impl in FAST)]


@pytest.mark.parametrize(("op", "impl"), CASES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [{}, {"want_coupling": True, "leaky": True}, {"detach": True, "iterations": 1}])
def test_schema_fake_and_autograd(op, impl, bias, options):
    with Watch() as watch:
        routed = run(op, impl, bias, **options)
        loss = routed.pose.sum() + routed.activation.sum()
        loss = loss + (routed.coupling**2).sum() if options.get("want_coupling") else loss
        loss.backward()
    forward, backward = watch.calls
    torch.library.opcheck(*forward)
    torch.library.opcheck(*backward, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(("op", "impl"), CASES)
def test_no_second_derivative_is_said(op, impl):
    routed = run(op, impl, bias=True)
    bias = torch.rand(5, 3, requires_grad=True)
    votes = random_votes(2, 6, 5, 3).requires_grad_()
    pose, weight = random_capsules(2, 6, 4).pose.requires_grad_(), torch.randn(6, 5, 3, 4, requires_grad=True)
    routed = (
        ops.dynamic_routing(votes, bias=bias, impl=impl)
        if op == "dynamic_routing"
        else ops.routed_dynamic(pose, weight, bias, impl=impl)
    )
    (gradient,) = torch.autograd.grad(routed.pose.square().sum(), bias, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative; impl='reference' has one"):
        gradient.sum().backward()


def test_the_reference_has_a_second_derivative():
    pose = random_capsules(1, 3, 2, dtype=torch.float64).pose.requires_grad_()
    weight = torch.randn(3, 2, 2, 2, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda p: ops.routed_dynamic(p, weight, impl="reference").pose, (pose,))


@pytest.mark.parametrize("impl", FAST)
def test_a_batch_of_none(impl):
    pose, weight = torch.rand(0, 6, 4, requires_grad=True), torch.rand(6, 5, 3, 4, requires_grad=True)
    routed = ops.routed_dynamic(pose, weight, impl=impl, want_coupling=True)
    assert [tuple(t.shape) for t in routed] == [(0, 5, 3), (0, 5), (0, 6, 5)]
    gradients = torch.autograd.grad(routed.pose.sum(), (pose, weight))
    assert gradients[0].shape == pose.shape
    assert (gradients[1] == 0).all()


@pytest.mark.parametrize("impl", ["reference", *FAST])
def test_frozen_weights_and_frozen_inputs(impl):
    children = random_capsules(2, 6, 4).pose
    layer = CapsuleLinear(6, 4, 5, 3, impl=impl)
    layer(children).activation.sum().backward()
    expected = layer.weight.grad
    layer.weight.requires_grad_(False)
    children.requires_grad_()
    layer(children).activation.sum().backward()
    both = CapsuleLinear(6, 4, 5, 3, impl=impl)
    both.load_state_dict(layer.state_dict())
    given = children.detach().requires_grad_()
    both(given).activation.sum().backward()
    torch.testing.assert_close(given.grad, children.grad)
    torch.testing.assert_close(both.weight.grad, expected)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["reference", *FAST])
def test_compiles_whole_with_gradients(impl):
    layer, children = CapsuleLinear(6, 4, 5, 3, impl=impl, bias=True), random_capsules(3, 6, 4).pose
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for given in (children, children.repeat(2, 1, 1)):
        layer.zero_grad()
        expected = layer(given)
        expected.activation.sum().backward()
        gradient = layer.weight.grad.clone()
        layer.zero_grad()
        found = compiled(given)
        found.activation.sum().backward()
        torch.testing.assert_close(found.pose, expected.pose)
        torch.testing.assert_close(layer.weight.grad, gradient)
