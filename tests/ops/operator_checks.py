"""Promises of every fused operator: a schema, fake tensors, second derivatives."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchcaps.functional import DenseField
from torchcaps.functional.votes import RoutingContext

from .makers import MATRICES, Layer, compute_gradients, route


class OperatorCalls(TorchDispatchMode):
    """Records the calls of this library's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "torchcaps":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def check_calls(forward, backward):
    """Hold a pair of calls against all that PyTorch can check."""
    operator, arguments, options = forward
    leaves = []
    for argument in arguments:
        is_tensor = isinstance(argument, Tensor)
        leaves.append(argument.detach().requires_grad_() if is_tensor else argument)
    torch.library.opcheck(operator, tuple(leaves), options)
    torch.library.opcheck(*backward, test_utils=("test_schema", "test_faketensor"))


def check_operator(routing, impl, layer, needs_coupling):
    """Check the forward and backward operator of a layer's routing."""
    tensors = layer.tensors()
    votes = layer.votes(tensors).bind(RoutingContext(needs_coupling=needs_coupling))
    with OperatorCalls() as operators:
        outputs = route(routing, votes, tensors, impl)
        compute_gradients([output for output in outputs if output is not None], tensors)
    check_calls(*operators.calls)


def check_second_derivatives(routing, impl, field, names):
    """Check second derivatives by named operands against differences of first derivatives."""
    types = 3 if isinstance(field, DenseField) else 1
    layer = Layer(field, 2, types, 2, MATRICES, bias="bias" in names)
    tensors = layer.tensors()

    def call(*operands):
        named = tensors | dict(zip(names, operands, strict=True))
        return tuple(route(routing, layer.votes(named), named, impl, iterations=2))

    operands = [tensors[name] for name in names]
    assert torch.autograd.gradgradcheck(call, operands, atol=1e-5, fast_mode=True)
