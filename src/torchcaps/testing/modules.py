"""Properties of every layer and model: modules from images or capsules to capsules or activations.

Each check raises PropertyError, an AssertionError, that says what does not hold.
"""

import copy
import io
import pickle
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from unittest.mock import patch

import torch
from torch import Tensor, nn

from torchcaps.testing.compare import (
    EXACT,
    SLACK,
    PropertyError,
    assert_between,
    assert_finite,
    assert_finite_pass,
    assert_float32,
    assert_gradients,
    assert_moves_along,
    assert_outcome,
    assert_pure,
    make_loss,
    map_tensors,
    named_tensors,
)
from torchcaps.types import Capsules

Inputs = Tensor | Capsules
ROUNDED = 0.05  # relative RMS error that is allowed for products in bfloat16


def check_module(module: nn.Module, inputs: Inputs, *, unused: Collection[str] = ()) -> None:
    """Run every check of this file but `check_module_gradients`, which is for small modules.

    Args:
        module: a layer or model that takes `inputs` alone; it is copied and put to eval mode.
        inputs: a tensor, or Capsules, with the batch first; at least two samples.
        unused: names of submodules that this call does not reach, such as a decoder.

    Raises:
        PropertyError: names the tensor and the size of the error.

    Example:
        >>> from torchcaps.nn import CapsuleLinear
        >>> from torchcaps.testing import check_module, random_capsules
        >>> check_module(CapsuleLinear(6, 4, 5, 3), random_capsules(3, 6, 4))
    """
    for check in OUTCOME_CHECKS:
        check(module, inputs)
    check_module_parameters(module, inputs, unused=unused)


def check_module_rows(module: nn.Module, inputs: Inputs) -> None:
    """A sample's outcome depends on neither the batch around it nor its place nor earlier calls.

    Args:
        module: takes the inputs alone.
        inputs: a tensor or Capsules, with the batch first.

    Raises:
        PropertyError: for a module without this property.
    """
    module = copy.deepcopy(module).eval()
    outcome = module(inputs)
    assert_between("activation", named_tensors(outcome)["activation"], 0.0, 1.0, SLACK)
    assert_moves_along("batch of one", module, inputs, outcome, lambda x: x[1:2])
    assert_moves_along("reversed batch", module, inputs, outcome, lambda x: x.flip(0))
    assert_pure(module, inputs, outcome)


def check_module_copies(module: nn.Module, inputs: Inputs) -> None:
    """Deep copies, pickles, and saved parameters that another instance loads, act the same.

    Args:
        module: takes the inputs alone.
        inputs: a tensor or Capsules, with the batch first.

    Raises:
        PropertyError: for a module without this property.
    """
    module = copy.deepcopy(module).eval()
    expected = module(inputs)
    assert_outcome("pickle", pickle.loads(pickle.dumps(module))(inputs), expected)

    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    loaded = copy.deepcopy(module)
    for parameter in loaded.parameters():
        parameter.data.fill_(0.5)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert_outcome("loaded parameters", loaded(inputs), expected)


def check_module_zeros(module: nn.Module, inputs: Inputs) -> None:
    """An input of zeros gives finite values, and finite gradients of inputs and parameters.

    Args:
        module: takes the inputs alone.
        inputs: a tensor or Capsules, with the batch first.

    Raises:
        PropertyError: for a module without this property.
    """
    module = copy.deepcopy(module).eval()
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    zeros = map_tensors(torch.zeros_like, inputs)
    assert_finite_pass("at an input of zeros", module, zeros, learned)


def check_module_precision(module: nn.Module, inputs: Inputs) -> None:
    """float64 and bfloat16 weights, and bfloat16 autocast, act as float32; autocast gives float32.

    Args:
        module: takes the inputs alone.
        inputs: a tensor or Capsules, with the batch first.

    Raises:
        PropertyError: for a module without this property.
    """
    module = copy.deepcopy(module).eval()
    expected = module(inputs)
    for dtype, tolerance in ((torch.float64, EXACT), (torch.bfloat16, ROUNDED)):
        converted = copy.deepcopy(module).to(dtype)
        with _floor_of_float32():
            outcome = converted(map_tensors(partial(Tensor.to, dtype=dtype), inputs))
        assert_outcome(f"{dtype}", outcome, expected, tolerance)
    with torch.autocast("cpu", torch.bfloat16):
        outcome = module(inputs)
    assert_outcome("under autocast", outcome, expected, ROUNDED)
    assert_float32(outcome, " under autocast")


@contextmanager
def _floor_of_float32() -> Iterator[None]:
    """Give norms in float64 the floor of float32, by which those of short vectors differ."""
    squash = import_module("torchcaps.functional.squash")
    with patch.object(squash, "DOUBLE_EPSILON", squash.EPSILON):
        yield


def check_module_parameters(
    module: nn.Module, inputs: Inputs, *, unused: Collection[str] = ()
) -> None:
    """Every trainable parameter that the call uses gets a finite gradient that is not zero.

    Args:
        module: takes the inputs alone.
        inputs: a tensor or Capsules, with the batch first.
        unused: names of submodules that this call does not reach, such as a decoder.

    Raises:
        PropertyError: for a module without this property.
    """
    module = copy.deepcopy(module).eval()
    make_loss(module(inputs)).backward()
    for name, parameter in module.named_parameters():
        if name.split(".")[0] in unused or not parameter.requires_grad:
            continue
        if parameter.grad is None or not parameter.grad.any():
            raise PropertyError(f"{name}: no gradient reaches this parameter")
        assert_finite(f"gradient of {name}", parameter.grad)


def check_module_gradients(module: nn.Module, inputs: Inputs) -> None:
    """In float64 the gradients of inputs and parameters equal finite differences.

    It is for small modules. Those of more than 400 numbers are compared along random directions.

    Args:
        module: takes the inputs alone.
        inputs: a tensor or Capsules, with the batch first.

    Raises:
        PropertyError: for a module without this property.
    """
    make_argument = Capsules if isinstance(inputs, Capsules) else Tensor.clone
    tensors = tuple(named_tensors(inputs).values())
    assert_gradients(copy.deepcopy(module).eval(), tensors, make_argument)


# Of the outcome of a call; the others are of its gradients.
OUTCOME_CHECKS = (
    check_module_rows,
    check_module_copies,
    check_module_zeros,
    check_module_precision,
)
MODULE_CHECKS = (*OUTCOME_CHECKS, check_module_parameters, check_module_gradients)
