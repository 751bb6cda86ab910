"""Fused operators: one factory makes each from a function and its gradient.

PyTorch sees what it makes as one operation: `torch.compile` and fake tensors take its shapes from a function of their
own, autograd its gradient, and a caller's autocast does not reach inside. The gradient of a gradient is that of the
reference, a function of torch's own operations.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.fields import Convention

Operands = TypeVar("Operands", bound=tuple[Any, ...])
Grads = Sequence[Tensor | None]

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


class Parts(NamedTuple, Generic[Operands]):
    """What an operator is made from.

    The backward function takes operands, what was kept, gradients of the outcomes that have one, and which of the
    tensors among the operands want a gradient. It gives each of these one, or None, or one of a larger shape that sums
    to it.
    """

    forward: Callable[[Operands], tuple[Tensor, ...]]  # the outcomes, in memory of their own
    backward: Callable[[Operands, Sequence[Tensor], Sequence[Tensor], Sequence[bool]], Grads]
    shapes: Callable[[Operands], tuple[Tensor, ...]]  # empty outcomes
    reference: Callable[[Operands], tuple[Tensor, ...]]  # the outcomes that have a gradient
    kept: int = (
        0  # how many of the last outcomes are kept for the backward function, and have no gradient
    )
    memory_format: torch.memory_format = torch.contiguous_format  # of the gradients


def operator(
    name: str, operands: Callable[..., Operands], outcomes: int, parts: Parts[Operands]
) -> Callable[[Operands], tuple[Tensor, ...]]:
    """The operator `torchcaps::NAME`, and its gradient `torchcaps::NAME_backward`; so many tensors come out.

    Operands are a NamedTuple of tensors, then numbers, names and lists of numbers.
    """
    fields = {field: _SCHEMA[kind] for field, kind in get_type_hints(operands).items()}
    tensors = [field for field, kind in fields.items() if kind.startswith("Tensor")]
    shown = ", ".join(f"{kind} {field}" for field, kind in fields.items())
    graded = outcomes - parts.kept

    def run(*flat: Any) -> Any:
        with without_autocast(flat[0]):
            return _one(parts.forward(operands(*flat)))

    def run_backward(*flat: Any) -> tuple[Tensor, ...]:
        *given, kept, grads, wanted = flat
        with without_autocast(flat[0]):
            found = parts.backward(operands(*given), kept, grads, wanted)
        return tuple(
            _like(x, grad, parts.memory_format)
            if grad is not None and want
            else flat[0].new_empty(0)
            for x, grad, want in zip(given, found, wanted, strict=False)
        )

    def fake_backward(*flat: Any) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty_like(x, memory_format=_format(x, parts.memory_format))
            if want
            else flat[0].new_empty(0)
            for x, want in zip(flat, flat[-1], strict=False)
        )

    out, back = (", ".join(["Tensor"] * count) for count in (outcomes, len(tensors)))
    define: Any = partial(torch.library.custom_op, mutates_args=())
    forward = define(f"torchcaps::{name}", run, schema=f"({shown}) -> ({out})")
    schema = f"({shown}, Tensor[] kept, Tensor[] grads, bool[] wanted) -> ({back})"
    backward = define(f"torchcaps::{name}_backward", run_backward, schema=schema)
    forward.register_fake(lambda *flat: _one(parts.shapes(operands(*flat))))
    backward.register_fake(fake_backward)

    def reference(*flat: Any) -> tuple[Tensor, ...]:
        with without_autocast(flat[0]):
            return parts.reference(operands(*flat))

    _differentiable(forward, backward, reference, len(tensors), graded)
    return lambda given: _several(forward(*given))


def _differentiable(forward: Any, backward: Any, reference: Any, tensors: int, graded: int) -> None:
    """Give autograd the gradient of an operator of so many tensors, by so many of its outcomes.

    Where that gradient is to be differentiated (`create_graph=True`), it is the reference's.
    """

    def remember(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:tensors], *_several(output)[graded:])
        ctx.settings = inputs[tensors:]

    def pass_on(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors  # read once: checkpointing makes them anew each time
        inputs, kept = saved[:tensors], list(saved[tensors:])
        wanted = list(ctx.needs_input_grad[:tensors])
        if torch.is_grad_enabled():
            outputs = reference(*inputs, *ctx.settings)
            gradients = _differentiable_gradients(outputs, inputs, grads[:graded], wanted)
        else:
            gradients = backward(*inputs, *ctx.settings, kept, list(grads[:graded]), wanted)
        masked = (g if want else None for g, want in zip(gradients, wanted, strict=True))
        return *masked, *(None for _ in ctx.settings)

    forward.register_autograd(pass_on, setup_context=remember)


def _differentiable_gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of the inputs that want one, with a graph of their own; None for the others."""
    pairs = [
        (output, grad) for output, grad in zip(outputs, grads, strict=True) if output.requires_grad
    ]
    leaves: list[Any] = [tensor for tensor, want in zip(inputs, wanted, strict=True) if want]
    gradients = torch.autograd.grad(
        [output for output, _ in pairs],
        leaves,
        [grad for _, grad in pairs],
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    rest = iter(gradients)
    return [next(rest) if want else None for want in wanted]


def _one(made: tuple[Tensor, ...]) -> Any:
    return made if len(made) > 1 else made[0]


def _several(made: Any) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def _like(x: Tensor, grad: Tensor, memory_format: torch.memory_format) -> Tensor:
    """A gradient in the shape and type of what it is for."""
    return grad.sum_to_size(x.shape).to(x.dtype).contiguous(memory_format=_format(x, memory_format))


def _format(x: Tensor, memory_format: torch.memory_format) -> torch.memory_format:
    """Of maps, which have four axes; other tensors are contiguous."""
    return memory_format if x.dim() == 4 else torch.contiguous_format
