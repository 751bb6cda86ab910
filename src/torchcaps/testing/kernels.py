"""Every fast path of a machine against the reference, in value and gradient."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import ops, set_impl
from torchcaps.errors import ArgumentError
from torchcaps.nn.layers import CapsuleLinear, ConvCaps
from torchcaps.nn.map_routing import KernelCaps
from torchcaps.nn.primary import LargeKernelConv2d
from torchcaps.testing.compare import make_loss, map_tensors, named_tensors, relative_rms
from torchcaps.testing.random import random_capsules, seeded

# Largest relative RMS error by the type of the products. The kernels' own errors are a tenth of it
# and less.
KERNEL_LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


class KernelCheck(NamedTuple):
    """An implementation beside the reference.

    Attributes:
        operator: its name, such as "em_routing".
        impl: name of the implementation.
        dtype: type of its products of matrices, "float32" or "bfloat16".
        tensor: the output or gradient whose error is closest to its limit, or beyond; where the
            implementation failed, how.
        error: relative RMS error of this tensor; infinity where the implementation failed.
        limit: largest error that is rounding.
    """

    operator: str
    impl: str
    dtype: str
    tensor: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it ran, and its errors are rounding."""
        return self.error <= self.limit  # nor is it NaN


def check_kernels(device: torch.device) -> Iterator[KernelCheck]:
    """Compare every implementation that can run on a device with the reference in float32.

    The reference under the same autocast says how much of an error is rounding.

    Args:
        device: where layers of published sizes run, in float32 and under autocast to bfloat16.

    Yields:
        A check for each operator, type and implementation.
    """
    for operator, (layer, inputs) in _make_cases(device).items():
        for dtype in (torch.float32, torch.bfloat16):
            rounding = kernel_errors(layer, inputs, "reference", dtype)
            limits = {
                name: max(KERNEL_LIMITS[dtype], 2 * error) for name, error in rounding.items()
            }
            for impl in ops.implementations(operator)[2:]:
                label = (operator, impl, str(dtype).removeprefix("torch."))
                try:
                    errors = kernel_errors(layer, inputs, impl, dtype)
                except ArgumentError:  # it cannot run here
                    continue
                except Exception as failure:  # a compiler may raise anything
                    message = f"{type(failure).__name__}: {failure}".splitlines()[0]
                    yield KernelCheck(*label, message, math.inf, KERNEL_LIMITS[dtype])
                else:
                    ratios = {name: errors[name] / limit for name, limit in limits.items()}
                    name = max(ratios, key=lambda name: (math.isnan(ratios[name]), ratios[name]))
                    yield KernelCheck(*label, name, errors[name], limits[name])


def survey(device: torch.device) -> dict[str, tuple[str, str]]:
    """What "auto" takes on a device for layers of published sizes.

    Args:
        device: where the layers are.

    Returns:
        Name of the implementation and reason, by operator.
    """
    choices = {}
    for operator, (layer, inputs) in _make_cases(device).items():
        operands = (inputs, layer.weight) if operator == "conv2d" else (layer.make_votes(inputs),)
        choices[operator] = ops.choose(operator, *operands)
    return choices


def kernel_errors(
    layer: nn.Module, inputs: Any, impl: str, dtype: torch.dtype = torch.float32
) -> dict[str, float]:
    """Relative RMS errors of an implementation against the reference in float32.

    Args:
        layer: in float32, with an operator that has implementations.
        inputs: a tensor or Capsules.
        impl: name of the implementation.
        dtype: type of its products: float32, or a type for autocast.

    Returns:
        The error of each output, and of the gradients of the inputs and parameters, by name.

    Raises:
        ArgumentError: the implementation cannot run here.
    """
    expected = _run(layer, inputs, "reference", torch.float32)
    actual = _run(layer, inputs, impl, dtype)
    return {name: relative_rms(actual[name], tensor) for name, tensor in expected.items()}


def _make_cases(device: torch.device) -> dict[str, tuple[Any, Any]]:
    """A layer and its inputs for each operator, on a device."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        images = torch.randn(8, 64, 20, 20, generator=seeded())
        cases: dict[str, tuple[nn.Module, Any]] = {
            "conv2d": (LargeKernelConv2d(64, 64, 9, stride=2), images),
            "dynamic_routing": (CapsuleLinear(1152, 8, 10, 16), random_capsules(32, 1152, 8)),
            "em_routing": (ConvCaps(32, 32, stride=2), random_capsules(2, 32, 16, space=(9, 9))),
            "map_routing": (KernelCaps(4, 16, 8, 16), random_capsules(2, 4, 16, space=(24, 24))),
        }
    move = partial(Tensor.to, device=device)
    return {op: (layer.to(device), map_tensors(move, x)) for op, (layer, x) in cases.items()}


def _run(layer: nn.Module, inputs: Any, impl: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs and gradients of a layer by name."""
    set_impl(layer, impl)
    leaves = map_tensors(lambda x: x.detach().clone().requires_grad_(), inputs)
    device_type = next(layer.parameters()).device.type
    with torch.autocast(device_type, dtype, enabled=dtype != torch.float32):
        outputs = layer(leaves)
    variables = named_tensors(leaves) | dict(layer.named_parameters())
    gradients = torch.autograd.grad(make_loss(outputs), list(variables.values()), allow_unused=True)
    tensors = {name: tensor.detach() for name, tensor in named_tensors(outputs).items()}
    for name, gradient in zip(variables, gradients, strict=True):
        if gradient is not None:
            tensors[f"gradient of {name}"] = gradient
    return tensors
