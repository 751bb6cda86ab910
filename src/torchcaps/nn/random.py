"""Random numbers from a generator that is passed in, where torch's layers take the global one."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class use_generator(TorchDispatchMode):
    """While the block runs, torch draws random numbers of this thread from a generator.

    Layers of torch and of others draw weights and dropout from torch's global generator, which all
    threads share. In the block they draw the same numbers from this one, on the device of the
    outcome, in the same order. An operation that takes no generator is left as it is.

    Args:
        generator: None changes nothing.

    Example:
        >>> with use_generator(torch.Generator().manual_seed(0)):
        ...     layer = CapsuleLinear(1152, 8, 10, 16)
    """

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if self.generator is None or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **options)
        if func is torch.ops.aten.native_dropout.default:
            return _dropout(self.generator, *args)
        # Of an operation such as randn, the overload with a generator is another one.
        operation = func.overloadpacket
        if not _takes_generator(operation):
            return func(*args, **options)
        options["generator"] = options.get("generator") or self.generator
        return operation(*args, **options)


def _takes_generator(operation: Any) -> bool:
    schemas = (getattr(operation, name)._schema for name in operation.overloads())
    return any(argument.name == "generator" for schema in schemas for argument in schema.arguments)


def _dropout(
    generator: torch.Generator, x: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    """`native_dropout` of a GPU, which takes no generator: the outcome and the mask."""
    mask = torch.ones_like(x, dtype=torch.bool)
    if train is False:
        return x * mask * 1.0, mask
    mask.bernoulli_(1 - p, generator=generator)
    return x * mask * (1 / (1 - p) if p < 1 else 1.0), mask
