"""Comparisons that say which tensor differs, and by how much."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from torchcaps.types import Routed


class PropertyError(AssertionError):
    """A promise that does not hold; its message names the tensor and the size of the error."""


def relative_rms(actual: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """Root mean square of `actual - expected` over that of `expected`, computed in float64.

    Args:
        actual: any shape.
        expected: the same shape.
        floor: the least value to divide by, for expectations that are all zero.

    Returns:
        0.0 for equal tensors, infinity where only `expected` is zero (and `floor` is 0), NaN where either holds a NaN.
    """
    error = (actual.detach().double() - expected.detach().double()).norm()
    if error == 0:
        return 0.0
    least = floor * expected.numel() ** 0.5
    return float(error / expected.detach().double().norm().clamp(min=least))


def assert_close(name: str, actual: Tensor, expected: Tensor, tolerance: float, floor: float = 0.0) -> None:
    """Raise PropertyError unless both have one shape and a relative RMS error of at most `tolerance`.

    Args:
        name: what the tensor is, for the message.
        actual: any shape.
        expected: the truth; its non-finite values count as errors too.
        tolerance: at least 0.
        floor: see `relative_rms`.
    """
    if actual.shape != expected.shape:
        raise PropertyError(f"{name}: expected shape {list(expected.shape)}, got {list(actual.shape)}")
    error = relative_rms(actual, expected, floor)
    if not error <= tolerance:
        raise PropertyError(f"{name}: relative RMS error {error:.2e}, tolerance {tolerance:.0e}")


def assert_finite(name: str, tensor: Tensor) -> None:
    """Raise PropertyError if the tensor holds a NaN or an infinity."""
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise PropertyError(f"{name}: {bad} of {tensor.numel()} values are not finite")


def assert_between(name: str, tensor: Tensor, low: float, high: float, slack: float = 0.0) -> None:
    """Raise PropertyError unless every value lies in [low - slack, high + slack]."""
    smallest, largest = tensor.detach().min().item(), tensor.detach().max().item()
    if not (smallest >= low - slack and largest <= high + slack):
        raise PropertyError(f"{name}: expected values in [{low:g}, {high:g}], got {smallest:g} to {largest:g}")


def assert_same_routing(actual: Routed, expected: Routed, tolerance: float, floor: float = 0.0) -> None:
    """Raise PropertyError unless two routings agree in pose, activation and, where both have one, coupling.

    `tolerance` is of the relative RMS error; for `floor` see there.
    """
    assert_close("pose", actual.pose, expected.pose, tolerance, floor)
    assert_close("activation", actual.activation, expected.activation, tolerance, floor)
    if actual.coupling is not None and expected.coupling is not None:
        assert_close("coupling", actual.coupling, expected.coupling, tolerance, floor)


def assert_gradients(
    module: nn.Module, inputs: Sequence[Tensor], given: Callable[..., Any], found: Callable[[Any], tuple[Tensor, ...]]
) -> None:
    """Raise PropertyError unless in float64 the gradients of inputs and parameters equal finite differences.

    The module, small, becomes float64; `given` makes its argument of the inputs, and `found` tensors of its outcome.
    """
    module, count = module.double(), len(inputs)
    names = [name for name, _ in module.named_parameters()]
    leaves = [x.detach().double().requires_grad_() for x in (*inputs, *module.parameters())]

    def outcome(*tensors: Tensor) -> tuple[Tensor, ...]:
        parameters = dict(zip(names, tensors[count:], strict=True))
        return found(torch.func.functional_call(module, parameters, (given(*tensors[:count]),)))

    try:
        torch.autograd.gradcheck(outcome, leaves, atol=1e-6)
    except GradcheckError as error:
        raise PropertyError(f"gradient against finite differences: {error}") from None
