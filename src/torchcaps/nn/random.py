"""Random numbers from a generator that is handed in, where torch's own layers would take the global one."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class use_generator(TorchDispatchMode):
    """While the block runs, what torch draws in this thread comes from this generator: weights, dropout.

    Layers of torch and of others draw from torch's global generator, which all threads share. In the block they draw
    the same numbers from this one, on the device of what is drawn, in the same order. An operation that takes no
    generator is left as it is. None changes nothing.

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
        given = dict(kwargs or {})
        if self.generator is None or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **given)
        if func is torch.ops.aten.native_dropout.default:
            return _dropout(self.generator, *args)
        family = (
            func.overloadpacket
        )  # such as randn, whose form with a generator is another than that without
        if _takes_generator(family):
            return family(*args, **given | {"generator": given.get("generator") or self.generator})
        return func(*args, **given)


def _takes_generator(family: Any) -> bool:
    forms = (getattr(family, name)._schema.arguments for name in family.overloads())
    return any(argument.name == "generator" for arguments in forms for argument in arguments)


def _dropout(
    generator: torch.Generator, x: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    """`native_dropout`, what a GPU runs, which takes no generator: the outcome and the mask."""
    mask = torch.ones_like(x, dtype=torch.bool)
    if train is not False:
        mask.bernoulli_(1 - p, generator=generator)
    return x * mask * (1 / (1 - p) if train is not False and p < 1 else 1.0), mask
