"""What every layer and model must keep: modules from images or capsules to capsules or activations.

Each check raises PropertyError, an AssertionError, that says what does not hold.
"""

import copy
import functools
import io
import pickle
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from torchcaps.testing.compare import (
    PropertyError,
    assert_between,
    assert_close,
    assert_finite,
    assert_gradients,
)
from torchcaps.types import Capsules

Inputs = Tensor | Capsules
Outputs = list[tuple[str, Tensor]]  # by name; the last is the activation
EXACT, ROUNDED = 1e-5, 0.05  # relative RMS error allowed in float32, and of products in bfloat16


def check_module(module: nn.Module, inputs: Inputs, *, unused: Collection[str] = ()) -> None:
    """Put a layer or model to every check of this file but `check_module_gradients`, which is for small ones.

    Args:
        module: takes `inputs` alone; it is copied, not changed, and put to eval mode.
        inputs: a tensor, or Capsules, with the batch first; at least two samples.
        unused: names of submodules that this call does not reach, such as a decoder.

    Raises PropertyError, which names the tensor and the size of the error.

    Example:
        >>> from torchcaps.nn import CapsuleLinear
        >>> from torchcaps.testing import check_module, random_capsules
        >>> check_module(CapsuleLinear(6, 4, 5, 3), random_capsules(3, 6, 4))
    """
    for check in (
        check_module_rows,
        check_module_copies,
        check_module_zeros,
        check_module_precision,
    ):
        check(module, inputs)
    check_module_parameters(module, inputs, unused=unused)


def check_module_rows(module: nn.Module, inputs: Inputs) -> None:
    """A sample's outcome does not depend on the batch around it, nor on its place there, nor on earlier calls."""
    module = copy.deepcopy(module).eval()
    before = _map(Tensor.clone, inputs)
    whole = _outputs(module, inputs)
    assert_between("activation", whole[-1][1], 0.0, 1.0, slack=1e-6)
    _same(
        "batch of one: ",
        _outputs(module, _map(lambda x: x[1:2], inputs)),
        [(n, t[1:2]) for n, t in whole],
    )
    _same(
        "reversed batch: ",
        _outputs(module, _map(lambda x: x.flip(0), inputs)),
        [(n, t.flip(0)) for n, t in whole],
    )
    _same("second call: ", _outputs(module, inputs), whole)
    for now, then in zip(_tensors(inputs), _tensors(before), strict=True):
        assert_close("inputs after the call", now, then, 0.0)


def check_module_copies(module: nn.Module, inputs: Inputs) -> None:
    """Deep copies, pickles, and saved parameters loaded into another instance give the same outcome."""
    module = copy.deepcopy(module).eval()
    expected = _outputs(module, inputs)
    _same("pickle: ", _outputs(pickle.loads(pickle.dumps(module)), inputs), expected)
    torch.save(module.state_dict(), file := io.BytesIO())
    file.seek(0)
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        parameter.data.fill_(0.5)
    other.load_state_dict(torch.load(file, weights_only=True))
    _same("loaded parameters: ", _outputs(other, inputs), expected)


def check_module_zeros(module: nn.Module, inputs: Inputs) -> None:
    """An input of zeros gives finite values, and finite gradients of inputs and parameters."""
    module = copy.deepcopy(module).eval()
    zeros = _map(lambda x: torch.zeros_like(x).requires_grad_(), inputs)
    outputs = _outputs(module, zeros)
    for name, tensor in outputs:
        assert_finite(f"{name} of an input of zeros", tensor)
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for gradient in torch.autograd.grad(
        _loss(outputs), [*_tensors(zeros), *learned], allow_unused=True
    ):
        if gradient is not None:
            assert_finite("gradient at an input of zeros", gradient)


def check_module_precision(module: nn.Module, inputs: Inputs) -> None:
    """float64 and bfloat16 weights, and bfloat16 autocast, give what float32 gives; autocast gives it in float32."""
    expected = _outputs(copy.deepcopy(module).eval(), inputs)
    for dtype, tolerance in ((torch.float64, EXACT), (torch.bfloat16, ROUNDED)):
        other, given = (
            copy.deepcopy(module).eval().to(dtype),
            _map(functools.partial(Tensor.to, dtype=dtype), inputs),
        )
        _same(f"{dtype}: ", _outputs(other, given), expected, tolerance)
    with torch.autocast("cpu", torch.bfloat16):
        cast = _outputs(copy.deepcopy(module).eval(), inputs)
    _same("under autocast: ", cast, expected, ROUNDED)
    for name, tensor in cast:
        if tensor.dtype != torch.float32:
            raise PropertyError(
                f"{name} under autocast: expected torch.float32, got {tensor.dtype}"
            )


def check_module_parameters(
    module: nn.Module, inputs: Inputs, *, unused: Collection[str] = ()
) -> None:
    """Every parameter that the call uses, and that is to learn, gets a finite gradient that is not zero."""
    module = copy.deepcopy(module).eval()
    _loss(_outputs(module, inputs)).backward()
    for name, parameter in module.named_parameters():
        if name.split(".")[0] in unused or not parameter.requires_grad:
            continue
        if parameter.grad is None or not parameter.grad.any():
            raise PropertyError(f"{name}: no gradient reaches this parameter")
        assert_finite(f"gradient of {name}", parameter.grad)


def check_module_gradients(module: nn.Module, inputs: Inputs) -> None:
    """In float64 the gradients of inputs and parameters equal finite differences: for modules of few numbers."""
    given = Capsules if isinstance(inputs, Capsules) else Tensor.clone
    assert_gradients(copy.deepcopy(module).eval(), _tensors(inputs), given, _tensors)


def _map(change: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    return Capsules(*map(change, inputs)) if isinstance(inputs, Capsules) else change(inputs)


def _tensors(value: Inputs) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, Capsules) else (value,)


def _outputs(module: nn.Module, inputs: Inputs) -> Outputs:
    value = module(inputs)
    return (
        list(zip(Capsules._fields, value, strict=True))
        if isinstance(value, Capsules)
        else [("activation", value)]
    )


def _loss(outputs: Outputs) -> Tensor:
    """A number that every outcome moves."""
    return torch.stack(
        [tensor.double().square().sum() + tensor.double().sum() for _, tensor in outputs]
    ).sum()


def _same(what: str, actual: Outputs, expected: Outputs, tolerance: float = EXACT) -> None:
    for (name, tensor), (_, truth) in zip(actual, expected, strict=True):
        assert_close(f"{what}{name}", tensor, truth, tolerance, floor=1e-6)
