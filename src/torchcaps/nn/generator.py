"""Random numbers from a generator that is passed in, where torch's layers take the global one.

`use_generator` is a dispatch mode of torch: within its block, every operation of torch passes
through `__torch_dispatch__`, which adds the generator to those that draw random numbers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class use_generator(TorchDispatchMode):
    """While the block runs, torch draws random numbers of this thread from a generator.

    Layers of torch and of others draw weights and dropout from torch's global generator, which all
    threads share. In the block they draw the same numbers from this one, in the same order. An
    operation that takes no generator is left as it is.

    Args:
        generator: on the device of the tensors that are drawn; None changes nothing.

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
        """Call an operation, with the generator where it draws random numbers and can take one.

        Args:
            func: overload of an operation, such as `aten.randn.default`.
            types: types of the tensors; not used.
            args: arguments of the operation.
            kwargs: named arguments of the operation.
        """
        options = dict(kwargs or {})
        if self.generator is not None and torch.Tag.nondeterministic_seeded in func.tags:
            if func is torch.ops.aten.native_dropout.default:
                return _dropout(self.generator, *args)
            if _takes_generator(func.overloadpacket):
                # The overload of randn with a generator is not the one that was called.
                func = func.overloadpacket
                options["generator"] = options.get("generator") or self.generator
        return func(*args, **options)


@contextmanager
def on_meta() -> Iterator[None]:
    """Build modules in the block on the device "meta", where they take no memory.

    Nothing is drawn: torch's fills of such tensors with random numbers import its compiler, which
    takes two seconds.
    """
    with _WithoutDraws(), torch.device("meta"):
        yield


class _WithoutDraws(TorchFunctionMode):
    """Leaves out what fills a tensor on the device "meta" with numbers."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        tensor = args[0] if args else options.get("tensor")
        is_draw = func.__name__ in ("normal_", "uniform_")
        is_init = getattr(func, "__module__", "") == "torch.nn.init"
        if (is_draw or is_init) and isinstance(tensor, Tensor) and tensor.is_meta:
            return tensor
        return func(*args, **options)


def _takes_generator(operation: Any) -> bool:
    """Whether any overload of an operation has an argument `generator`."""
    for name in operation.overloads():
        arguments = getattr(operation, name)._schema.arguments
        if any(argument.name == "generator" for argument in arguments):
            return True
    return False


def _dropout(
    generator: torch.Generator,
    x: Tensor,
    p: float,
    train: bool | None,
) -> tuple[Tensor, Tensor]:
    """`native_dropout` of a GPU, which takes no generator.

    Args:
        generator: source of the mask.
        x: activations.
        p: probability that one becomes 0, in [0, 1].
        train: False leaves all as they are.

    Returns:
        `x` after dropout, and the mask of those that stay.
    """
    mask = torch.ones_like(x, dtype=torch.bool)
    if train is False:
        return x * mask * 1.0, mask
    mask.bernoulli_(1 - p, generator=generator)
    scale = 1 / (1 - p) if p < 1 else 1.0
    return x * mask * scale, mask
