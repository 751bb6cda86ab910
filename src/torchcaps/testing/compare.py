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
    """Root mean square of `actual - expected` over that of `expected` (at least `floor`), computed in float64.

    0 for equal tensors, infinity where only `expected` is zero and there is no floor, NaN where either holds a NaN.
    """
    truth = expected.detach().double()
    error = (actual.detach().double() - truth).norm()
    return (
        0.0 if error == 0 else float(error / truth.norm().clamp(min=floor * truth.numel() ** 0.5))
    )


def assert_close(
    name: str, actual: Tensor, expected: Tensor, tolerance: float, floor: float = 0.0
) -> None:
    """Raise PropertyError unless both have one shape and a `relative_rms` of at most `tolerance`."""
    if actual.shape != expected.shape:
        raise PropertyError(
            f"{name}: expected shape {list(expected.shape)}, got {list(actual.shape)}"
        )
    error = relative_rms(actual, expected, floor)
    if not error <= tolerance:
        raise PropertyError(f"{name}: relative RMS error {error:.2e}, tolerance {tolerance:.0e}")


def assert_finite(name: str, tensor: Tensor) -> None:
    """Raise PropertyError if the tensor holds a NaN or an infinity."""
    if bad := int((~torch.isfinite(tensor)).sum()):
        raise PropertyError(f"{name}: {bad} of {tensor.numel()} values are not finite")


def assert_between(name: str, tensor: Tensor, low: float, high: float, slack: float = 0.0) -> None:
    """Raise PropertyError unless every value lies in [low - slack, high + slack]."""
    smallest, largest = tensor.detach().min().item(), tensor.detach().max().item()
    if not (smallest >= low - slack and largest <= high + slack):
        raise PropertyError(
            f"{name}: expected values in [{low:g}, {high:g}], got {smallest:g} to {largest:g}"
        )


def assert_same_routing(
    actual: Routed, expected: Routed, tolerance: float, floor: float = 0.0
) -> None:
    """Raise PropertyError unless two routings are close in pose, activation and, where both have one, coupling."""
    for name, tensor, truth in zip(Routed._fields, actual, expected, strict=True):
        if tensor is not None and truth is not None:
            assert_close(name, tensor, truth, tolerance, floor)


def assert_gradients(
    module: nn.Module,
    inputs: Sequence[Tensor],
    given: Callable[..., Any],
    found: Callable[[Any], tuple[Tensor, ...]],
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
