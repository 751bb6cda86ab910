"""What the host computes for a step of a training, recorded and played again with other numbers.

Random numbers of a step are drawn on the CPU, changed there, and sent to a GPU by `to_device`. A tape
records these operations of torch, and nothing of the code that asked for them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from torchcaps.transfer import send, tape
from torchcaps.types import Json


class Place(int):
    """Number of a tensor of a tape, in place of the tensor."""


class Tape(TorchDispatchMode):
    """What the host computes in a step and sends to the device.

    Args:
        tensors: of the CPU, those of the step.
        expected: what is to be sent, and the tensors on the device that take its place; None copies
            each by itself.

    Attributes:
        tensors: those, and what was computed from them or drawn, in this order.
        operations: that computed them, with their arguments; a `Place` stands for one of them.
        sent: what was sent to the device: the place of one of them, or a tensor that stays.
        copies: of what was sent, on the device.
    """

    def __init__(
        self, tensors: Sequence[Tensor], expected: Iterator[tuple[Tensor, Tensor]] | None = None
    ) -> None:
        super().__init__()
        self.tensors = list(tensors)
        self.expected = expected
        self.operations: list[tuple[Any, Any, Json]] = []
        self.sent: list[Any] = []
        self.copies: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation; keep it if it draws on the CPU, or computes there from what is kept.

        Args:
            func: overload of an operation.
            types: types of the tensors; not used.
            args: arguments of the operation.
            kwargs: named arguments of the operation.
        """
        options = kwargs or {}
        outputs = func(*args, **options)
        places = tree_map(self._place, list(args))
        inputs = tree_leaves([places, options])
        is_kept = any(isinstance(value, Place | Generator) for value in inputs)
        for tensor in tree_leaves(outputs):
            # What is pinned is on its way to the device.
            is_kept &= isinstance(tensor, Tensor) and tensor.is_cpu and not tensor.is_pinned()
        if is_kept:
            self.operations.append((func, places, options))
            self.tensors += tree_leaves(outputs)
        return outputs

    def _place(self, value: Any) -> Any:
        """The place of a tensor of the tape; anything else as it is."""
        for place, tensor in enumerate(self.tensors):
            if tensor is value:
                return Place(place)
        return value

    def send(self, tensor: Tensor, device: torch.device) -> Tensor:
        """Send a tensor to a device, and remember it; RuntimeError for one that is not expected."""
        if self.expected:
            value, copy = next(self.expected)
            if not torch.equal(tensor, value):
                raise RuntimeError("what the host sends depends on more than the seed of the step")
            return copy
        self.sent.append(self._place(tensor))
        self.copies.append(send(tensor, device))
        return self.copies[-1]

    @contextmanager
    def used(self) -> Iterator[None]:
        """While open, `to_device` sends by this tape."""
        token = tape.set(self)
        try:
            yield
        finally:
            tape.reset(token)

    def play(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What is sent in another step.

        Args:
            tensors: of the step, as many as of the recorded one.
        """
        played = list(tensors)

        def find(value: Any) -> Any:
            if isinstance(value, list):
                return list(map(find, value))
            return played[value] if isinstance(value, Place) else value

        for func, places, options in self.operations:
            played += tree_leaves(func(*map(find, places), **options))
        return list(map(find, self.sent))
