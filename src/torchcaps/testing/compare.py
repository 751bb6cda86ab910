"""Comparisons that say which tensor differs, and by how much."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from torchcaps.testing.random import seeded

EXACT = 1e-5  # relative RMS error that is allowed in float32
FLOOR = 1e-6  # root mean square below which errors are absolute
SLACK = 1e-6  # by which rounding may leave a range
MANY_NUMBERS = 400  # of inputs and weights, in finite differences


class PropertyError(AssertionError):
    """A property that does not hold; its message names the tensor and the size of the error."""


def relative_rms(actual: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """Root mean square of `actual - expected` over that of `expected`, computed in float64.

    Args:
        actual: a tensor of any shape.
        expected: a tensor of the same shape.
        floor: smallest divisor.

    Returns:
        0 for equal tensors, infinity where only `expected` is zero and there is no floor, NaN where
        either has a NaN.
    """
    expected = expected.detach().cpu().double()
    error = (actual.detach().cpu().double() - expected).norm()
    if error == 0:
        return 0.0
    return float(error / expected.norm().clamp(min=floor * expected.numel() ** 0.5))


def assert_close(
    name: str,
    actual: Tensor,
    expected: Tensor,
    tolerance: float,
    floor: float = 0.0,
) -> None:
    """Check that two tensors have one shape and are close.

    Args:
        name: of the tensor, for the message.
        actual: a tensor of any shape.
        expected: the tensor to compare with.
        tolerance: largest `relative_rms`.
        floor: smallest divisor of the relative error.

    Raises:
        PropertyError: they differ.
    """
    if actual.shape != expected.shape:
        raise PropertyError(
            f"{name}: expected shape {list(expected.shape)}, got {list(actual.shape)}"
        )
    error = relative_rms(actual, expected, floor)
    if not error <= tolerance:
        raise PropertyError(f"{name}: relative RMS error {error:.2e}, tolerance {tolerance:.0e}")


def assert_finite(name: str, tensor: Tensor) -> None:
    """Check that no number is NaN or infinite.

    Args:
        name: of the tensor, in the message.
        tensor: of any shape.

    Raises:
        PropertyError: one that is.
    """
    num_wrong = int((~torch.isfinite(tensor)).sum())
    if num_wrong:
        raise PropertyError(f"{name}: {num_wrong} of {tensor.numel()} values are not finite")


def assert_between(name: str, tensor: Tensor, low: float, high: float, slack: float = 0.0) -> None:
    """Check that every number lies in [low - slack, high + slack].

    Args:
        name: of the tensor, in the message.
        tensor: of any shape, with one number at least.
        low: lower limit.
        high: upper limit.
        slack: distance beyond the limits that passes, at least 0.

    Raises:
        PropertyError: a number outside, or NaN.
    """
    smallest, largest = map(float, tensor.detach().aminmax())
    if not (smallest >= low - slack and largest <= high + slack):
        raise PropertyError(
            f"{name}: expected values in [{low:g}, {high:g}], got {smallest:g} to {largest:g}"
        )


def named_tensors(outcome: Any) -> dict[str, Tensor]:
    """Tensors of an input or outcome by name: fields of a NamedTuple, or one "activation"."""
    fields = {"activation": outcome} if isinstance(outcome, Tensor) else outcome._asdict()
    return {name: tensor for name, tensor in fields.items() if tensor is not None}


def map_tensors(change: Callable[[Tensor], Tensor], inputs: Any) -> Any:
    """A tensor changed, or a NamedTuple of tensors with each of them changed."""
    return change(inputs) if isinstance(inputs, Tensor) else type(inputs)(*map(change, inputs))


def assert_outcome(
    label: str,
    actual: Any,
    expected: Any,
    tolerance: float = EXACT,
    floor: float = FLOOR,
) -> None:
    """Check that two outcomes have close poses, activations and, where both have one, couplings.

    Args:
        label: beginning of the message.
        actual: routing, capsules or activations.
        expected: the outcome to compare with.
        tolerance: largest relative error that passes; see `assert_close`.
        floor: smallest divisor of the relative error.

    Raises:
        PropertyError: they differ.
    """
    actual_tensors = named_tensors(actual)
    for name, tensor in named_tensors(expected).items():
        if name in actual_tensors:
            assert_close(f"{label}: {name}", actual_tensors[name], tensor, tolerance, floor)


def assert_float32(outcome: Any, label: str = "") -> None:
    """Raise PropertyError unless every tensor of an outcome is in float32."""
    for name, tensor in named_tensors(outcome).items():
        if tensor.dtype != torch.float32:
            raise PropertyError(f"{name}{label}: expected torch.float32, got {tensor.dtype}")


def assert_moves_along(
    label: str,
    call: Callable[[Any], Any],
    inputs: Any,
    outcome: Any,
    change: Callable[[Tensor], Tensor],
) -> None:
    """Raise PropertyError unless a change of the inputs changes their outcome in the same way."""
    assert_outcome(label, call(map_tensors(change, inputs)), map_tensors(change, outcome))


def assert_pure(call: Callable[[Any], Any], inputs: Any, outcome: Any) -> None:
    """Raise PropertyError unless inputs keep their values, and a later call has the same outcome."""
    before = named_tensors(map_tensors(Tensor.clone, inputs))
    later = call(inputs)
    for name, tensor in named_tensors(inputs).items():
        assert_close(f"{name} after the call", tensor, before[name], 0.0)
    assert_outcome("second call", later, outcome)


def make_loss(outcome: Any) -> Tensor:
    """A number that depends on every element of an outcome."""
    loss = torch.zeros((), dtype=torch.float64)
    for tensor in named_tensors(outcome).values():
        # The sum of couplings alone is constant: each element has its own weight.
        weights = 0.5 + torch.rand(tensor.shape, generator=seeded(2))
        loss = loss + (tensor.cpu().double() * weights).sum()
    return loss


def assert_finite_pass(
    label: str,
    call: Callable[[Any], Any],
    inputs: Any,
    parameters: Iterable[Tensor] = (),
) -> Any:
    """Raise PropertyError unless an outcome and its gradients are finite; give the outcome."""
    leaves = map_tensors(lambda x: x.detach().clone().requires_grad_(), inputs)
    outcome = call(leaves)
    for name, tensor in named_tensors(outcome).items():
        assert_finite(f"{name} {label}", tensor)
    variables = [*named_tensors(leaves).values(), *parameters]
    for gradient in torch.autograd.grad(make_loss(outcome), variables, allow_unused=True):
        if gradient is not None:
            assert_finite(f"gradient {label}", gradient)
    return outcome


def assert_gradients(
    module: nn.Module, inputs: Sequence[Tensor], make_argument: Callable[..., Any]
) -> None:
    """Check the gradients of inputs and parameters against finite differences, in float64.

    Args:
        module: small; it becomes float64.
        inputs: tensors that its argument is made of.
        make_argument: makes it.

    Raises:
        PropertyError: they differ.
    """
    module = module.double()
    num_inputs = len(inputs)
    names = [name for name, _ in module.named_parameters()]
    leaves = [x.detach().double().requires_grad_() for x in (*inputs, *module.parameters())]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        parameters = dict(zip(names, tensors[num_inputs:], strict=True))
        argument = make_argument(*tensors[:num_inputs])
        outcome = torch.func.functional_call(module, parameters, (argument,))
        return tuple(x for x in named_tensors(outcome).values() if x.requires_grad)

    # Of many numbers, along random directions: each of them takes two calls.
    fast = sum(leaf.numel() for leaf in leaves) > MANY_NUMBERS
    try:
        torch.autograd.gradcheck(call, leaves, atol=1e-6, fast_mode=fast)
    except GradcheckError as error:
        raise PropertyError(f"gradient against finite differences: {error}") from None
