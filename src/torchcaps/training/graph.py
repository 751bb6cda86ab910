"""The step of a training as one CUDA graph: the host sends numbers from one place, and launches once.

The first steps run as without a graph. In each, a `Tape` records what the host computes and sends to
the device: random numbers, rows of the data set, and what becomes of them. Then a step is captured.
From there on a step is: the operations of the tape, by the seed of the step; one copy from pinned
memory; one launch. It computes the same, bit for bit.

Words:
    item: of a step, what `DatasetBatches.epoch` gives: tensors on the CPU.
    numbers: of a step: the share of the training that is done, that of the new weights in their
        average, and the learning rate of each group of parameters.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchcaps.errors import ArgumentError
from torchcaps.training.tape import Tape
from torchcaps.transfer import to_device

if TYPE_CHECKING:
    from torchcaps.training.loop import Trainer

NUM_WARM_UP = 3  # steps, in which kernels are chosen and loaded, and the optimizer makes its state
ALIGNMENT = 16  # bytes, of each tensor that is sent


class StepGraph:
    """Takes the steps of a training: the first ones as without a graph, later ones as replays.

    Args:
        trainer: of the training.

    Raises:
        ArgumentError: the setting `graph` is "yes", and there can be none.

    Attributes:
        reason: why there is no graph, the rest of a sentence; empty where there may be one.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer = trainer
        self.device = trainer.updater.device
        self.reason = ""
        self.reset()
        if reason := find_obstacle(trainer):
            self._give_up(reason)

    def reset(self) -> None:
        """Begin anew, where the optimizer is another one."""
        self.num_steps = 0
        self.form: list[Any] = []
        self.graph: Any = None

    @contextmanager
    def stream(self) -> Iterator[None]:
        """While open, the GPU works on a stream of its own: the default one cannot be captured."""
        outer = torch.cuda.current_stream(self.device)
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)

    def step(self, item: Any, numbers: Sequence[float]) -> Tensor:
        """Take a step.

        Args:
            item: of the step.
            numbers: of the step.

        Returns:
            The means of its losses, `[losses]` on the device.
        """
        tensors = [torch.tensor(numbers, dtype=torch.float64), *tree_leaves(item)]
        form = [(tensor.shape, tensor.dtype) for tensor in tensors]
        if self.graph is None and form != self.form:
            self.form = form
            self.num_steps = 0
        if form != self.form:  # a last batch of fewer images
            return self._take(item, numbers)
        self.num_steps += 1
        if self.num_steps <= NUM_WARM_UP:
            self.tape = Tape(tensors)
            with self.tape.used():
                to_device(tensors[0], self.device)
                return self._take(item, numbers)
        values = self.tape.play(tensors)
        if self.graph is None and not self._capture(item, values):
            return self._take(item, numbers)
        self._send(values)
        self.graph.replay()
        self.trainer.losses = self.losses  # not those of a last batch that was taken without it
        return self.means.clone()

    def _send(self, values: Sequence[Tensor]) -> None:
        """Copy the values of a step to the device."""
        self.copied.synchronize()  # of the step before
        for part, value in zip(self.parts, values, strict=True):
            part.copy_(value)
        self.memory.copy_(self.pinned, non_blocking=True)
        self.copied.record()

    def _take(self, item: Any, numbers: Sequence[float | Tensor]) -> Tensor:
        """Take a step without a graph, or for one."""
        fraction_trained, share, *rates = numbers
        means = self.trainer.compute_gradients(item, fraction_trained)
        self.trainer.updater.update(rates, share)
        return means

    def _capture(self, item: Any, values: Sequence[Tensor]) -> bool:
        """Capture a step, which does not take it; whether that was possible.

        Args:
            item: of the step.
            values: what is to be sent in it.
        """
        updater = self.trainer.updater
        sizes = [-(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in values]
        self.memory = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        self.pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
        self.copied = torch.cuda.Event()
        self.parts = divide(self.pinned, sizes, self.tape.copies)
        received = divide(self.memory, sizes, self.tape.copies)
        self._send(values)  # what looks at them in a capture finds what a step may have
        self.trainer.seed()
        graph = torch.cuda.CUDAGraph()
        if updater.dropout:
            graph.register_generator_state(updater.dropout)
        expected = zip(values, received, strict=True)
        reason = ""
        try:
            with (
                Tape((), expected).used(),
                torch.cuda.graph(
                    graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
                ),
            ):
                try:
                    numbers = to_device(values[0], self.device)
                    self.means = self._take(item, numbers.unbind())
                    self.losses = self.trainer.losses
                except Exception as error:  # the end of such a capture raises another one
                    reason = str(error)
                    raise
        except Exception as error:
            updater.recover()
            self.trainer.seed()
            self._give_up((reason or str(error)).splitlines()[0])
            return False
        self.graph = graph
        return True

    def _give_up(self, reason: str) -> None:
        """Take no step by a graph; ArgumentError where the setting asks for it."""
        setting = self.trainer.config.training.graph
        if setting == "yes":
            raise ArgumentError("graph", f"expected auto or no, got yes; {reason}")
        self.reason = reason
        if setting == "auto" and self.device.type == "cuda":
            self.trainer.messages.append(f"the steps are taken without a CUDA graph: {reason}")


def find_obstacle(trainer: "Trainer") -> str:
    """Why the steps of a training cannot be replayed, the rest of a sentence; empty if they can."""
    updater = trainer.updater
    if trainer.config.training.graph == "no":
        return "the setting graph is no"
    if updater.device.type != "cuda":
        return f"the device is {updater.device}"
    if trainer.reads_each_step:
        return "a callback or another process takes the losses of each step"
    if "size" in trainer.batches.images.targets:
        return "images have several sizes"
    if trainer.config.optimizer.accumulate > 1:
        return "gradients of several batches are summed"
    for group in updater.optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            return f"{type(updater.optimizer).__name__} takes the learning rate as a number"
    return ""


def divide(memory: Tensor, sizes: Sequence[int], like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors in memory, one behind the other.

    Args:
        memory: `[bytes]`.
        sizes: bytes of each tensor, at least its own.
        like: have types, shapes and strides of the tensors.
    """
    parts = []
    for part, tensor in zip(memory.split(sizes), like, strict=True):
        part = part[: tensor.nbytes].view(tensor.dtype)
        parts.append(part.as_strided(tensor.shape, tensor.stride()))
    return parts
