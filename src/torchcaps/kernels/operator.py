"""A factory of fused operators: each is made from a class with a function and its gradient.

PyTorch sees an operator as one operation. `torch.compile` and fake tensors take its shapes from a
function, autograd takes its gradient, and a caller's autocast does not reach inside. The gradient
of the gradient is that of the reference, a function of torch's own operations.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, get_type_hints

import torch
from torch import Tensor

from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.fields import Convention

Grads = Sequence[Tensor | None]

_LIBRARY = torch.library.Library("torchcaps", "FRAGMENT")

# Types of operands, in the words of torch's schemas.
_SCHEMA = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    int: "SymInt",
    bool: "bool",
    float: "float",
    str: "str",
    list[int]: "SymInt[]",
    list[float]: "float[]",
    Convention: "str",
}


class Operation(Protocol):
    """What an operator computes: a NamedTuple of tensors, then numbers, names and lists of numbers.

    These fields are the operands.
    """

    def empty_outputs(self) -> tuple[Tensor, ...]:
        """Empty outputs."""

    def forward(self) -> tuple[Tensor, ...]:
        """The outputs, in memory of their own."""

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Tensor], needed: Any) -> Grads:
        """One gradient for each tensor among the operands.

        It is None, or a tensor that sums to the gradient over additional or expanded axes.

        Args:
            saved: the last outputs.
            grads: gradients of the other outputs.
            needed: whether each tensor among the operands needs a gradient.
        """

    def reference(self) -> tuple[Tensor, ...]:
        """The outputs that have a gradient, in torch operations."""


def define_operator(
    name: str,
    operation: Callable[..., Operation],
    *,
    num_saved: int = 0,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Callable[[Any], Sequence[Tensor]]:
    """Define the operators `torchcaps::NAME` and `torchcaps::NAME_backward`.

    Args:
        name: of the operator.
        operation: what it computes; see `Operation`.
        num_saved: how many of the last outputs are saved for `backward`; they have no gradient.
        memory_format: of the gradients of tensors with four axes, which are maps.

    Returns:
        A function of the operation with its operands.
    """
    types = {field: _SCHEMA[kind] for field, kind in get_type_hints(operation).items()}
    num_tensors = sum(kind.startswith("Tensor") for kind in types.values())
    arguments = ", ".join(f"{kind} {field}" for field, kind in types.items())

    def run(*flat: Any) -> tuple[Tensor, ...]:
        with without_autocast(flat[0]):
            return operation(*flat).forward()

    def run_backward(*flat: Any) -> tuple[Tensor, ...]:
        *inputs, saved, grads, needed = flat
        with without_autocast(flat[0]):
            computed = operation(*inputs).backward(saved, grads, needed)
        return _as_gradients(computed, inputs, needed, memory_format)

    def fake_backward(*flat: Any) -> tuple[Tensor, ...]:
        needed = flat[-1]
        empty = (
            torch.empty_like(x) if is_needed else None
            for x, is_needed in zip(flat, needed, strict=False)
        )
        return _as_gradients(empty, flat, needed, memory_format)

    def fake_run(*flat: Any) -> tuple[Tensor, ...]:
        return operation(*flat).empty_outputs()

    def run_reference(*flat: Any) -> tuple[Tensor, ...]:
        with without_autocast(flat[0]):
            return operation(*flat).reference()

    run_operator = _register(name, arguments, run, fake_run)
    arguments = f"{arguments}, Tensor[] kept, Tensor[] grads, bool[] wanted"
    run_gradient = _register(f"{name}_backward", arguments, run_backward, fake_backward)
    differentiable = _make_differentiable(
        run_operator, run_gradient, run_reference, num_tensors, num_saved
    )
    _LIBRARY.impl(name, differentiable, "Autograd")
    return lambda inputs: run_operator(*inputs)


def _register(
    name: str, arguments: str, run: Callable[..., Any], fake_run: Callable[..., Any]
) -> Any:
    """Make an operator `name(arguments)` of this library, which returns a list of tensors.

    Wrappers of `torch.library.custom_op` take longer than the rest of a small call.

    Args:
        name: of the operator.
        arguments: types and names, as in torch's schemas.
        run: computes the outputs, on every device.
        fake_run: makes empty outputs, for compilers.
    """
    _LIBRARY.define(f"{name}({arguments}) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_LIBRARY.ns}::{name}", fake_run, lib=_LIBRARY)
    return getattr(torch.ops.torchcaps, name).default


def _make_differentiable(
    forward: Any, backward: Any, reference: Any, num_tensors: int, num_saved: int
) -> Callable[..., Any]:
    """An operator with a gradient.

    Where the gradient is to be differentiated itself (`create_graph=True`), it is the reference's.

    Args:
        forward: the operator.
        backward: the operator of its gradient.
        reference: the same as `forward` in torch operations.
        num_tensors: how many operands are tensors; they come first.
        num_saved: how many outputs have no gradient; they come last.
    """

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            # Without the kernel for autograd, which calls this function.
            with torch._C._AutoDispatchBelowAutograd():
                outputs = tuple(forward(*inputs))
            saved_outputs = outputs[len(outputs) - num_saved :]
            ctx.save_for_backward(*inputs[:num_tensors], *saved_outputs)
            ctx.settings = inputs[num_tensors:]
            return outputs

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            saved = ctx.saved_tensors  # read once: checkpointing makes them anew each time
            inputs = saved[:num_tensors]
            saved_outputs = list(saved[num_tensors:])
            output_grads = list(grads[: len(grads) - num_saved])
            needed = list(ctx.needs_input_grad[:num_tensors])
            if torch.is_grad_enabled():
                outputs = reference(*inputs, *ctx.settings)
                gradients = _differentiable_gradients(outputs, inputs, output_grads, needed)
            else:
                gradients = backward(*inputs, *ctx.settings, saved_outputs, output_grads, needed)
            masked = (
                gradient if is_needed else None
                for gradient, is_needed in zip(gradients, needed, strict=True)
            )
            return *masked, *(None for _ in ctx.settings)

    return Differentiable.apply


def _differentiable_gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients with a graph of their own; None for inputs that need none."""
    pairs = zip(outputs, grads, strict=True)
    products = ((output * grad).sum() for output, grad in pairs if output.requires_grad)
    objective: Any = sum(products)
    leaves: list[Any] = [x for x, is_needed in zip(inputs, needed, strict=True) if is_needed]
    gradients = torch.autograd.grad(
        objective, leaves, create_graph=True, allow_unused=True, materialize_grads=True
    )
    remaining = iter(gradients)
    return [next(remaining) if is_needed else None for is_needed in needed]


def _as_gradients(
    computed: Iterable[Tensor | None],
    inputs: Sequence[Any],
    needed: Sequence[bool],
    memory_format: torch.memory_format,
) -> tuple[Tensor, ...]:
    """Gradients in the shapes and types of the inputs; empty ones where none is needed."""
    gradients = []
    for x, gradient, is_needed in zip(inputs, computed, needed, strict=False):
        if is_needed and gradient is not None:
            gradient = gradient.sum_to_size(x.shape).to(x.dtype)
            maps = memory_format if x.dim() == 4 else torch.contiguous_format
            gradients.append(gradient.contiguous(memory_format=maps))
        else:
            gradients.append(inputs[0].new_empty(0))
    return tuple(gradients)
