"""Peak memory of a training step, predicted on fake tensors, which have sizes and no elements."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torchcaps.data import Batch
from torchcaps.errors import check_range
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.evaluation.forward import autocast
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.training.workspace import GAPS, LARGE, MIB, WORKSPACE, resident

NUM_MOMENTS = 2  # numbers that Adam keeps for each parameter


@dataclass(frozen=True)
class MemoryEstimate(EvaluationResult):
    """Bytes at the moment of a training step when most are taken.

    They are counted above those of a process with torch and without the model.

    Attributes:
        parameters: the weights.
        gradients: of the weights, those that exist at that moment.
        optimizer: the numbers that it keeps for each weight; of Adam two.
        activations: tensors kept for the backward pass that exist at that moment, and the images.
        workspace: tensors that are made and dropped on the way, and what kernels take inside.
        libraries: code and tables of torch, and of numba where its loops run.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    libraries: int

    derived = ("total",)

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(asdict(self).values())

    def __str__(self) -> str:
        parts = [f"{name} {num_bytes / MIB:.1f}" for name, num_bytes in asdict(self).items()]
        return f"{self.total / MIB:.1f} MiB ({', '.join(parts)})"


def estimate_memory(model: nn.Module, batch: int, precision: str = "fp32") -> MemoryEstimate:
    """Peak memory of a training step, without running one; the model stays as it is.

    The step is that of `torchcaps train`: the loss of the model's task, Adam, convolutions in
    channels-last memory. Its operators are run on fake tensors, which have sizes and no elements;
    what kernels take inside comes from a table for the CPU. Memory that the allocator keeps
    although it is free (`--keep-memory yes`) is not counted.

    Args:
        model: of `create_model()`.
        batch: number of images, at least 1.
        precision: "fp32", or "bf16" for autocast.

    Returns:
        The predicted peak in bytes and its parts; printed, it is a table. See `MemoryEstimate`.

    Raises:
        ArgumentError: for a batch below 1 or another precision.
        TypeError: for a module that is no model of this library.

    Example:
        >>> print(estimate_memory(create_model("capsnet"), 128))
    """
    shape = image_shape(model)
    if isinstance(batch, bool) or not isinstance(batch, int):
        raise TypeError(f"batch: expected a whole number of images, got {batch!r}")
    check_range("batch", batch, low=1)
    device = next(model.parameters()).device
    task = create_task(model, TrainConfig())
    images = torch.empty(batch, *shape, device="meta").contiguous(memory_format=torch.channels_last)
    pixels = shape[1:] if task.spec.is_dense else ()
    labels = torch.empty(batch, *pixels, dtype=torch.long, device="meta")
    return estimate_step(task, Batch(images, {task.targets[0]: labels}, labels), device, precision)


def image_shape(model: Any) -> tuple[int, int, int]:
    """(channels, height, width) of a model's images.

    Raises TypeError for a module that does not declare them, as the library's models do.
    """
    try:
        return model.in_chans, *model.img_size
    except AttributeError:
        kind = type(model).__name__
        raise TypeError(f"model: expected a model of create_model(), got {kind}") from None


def estimate_step(
    task: Task,
    batch: Any,
    device: torch.device,
    precision: str,
    num_moments: int = NUM_MOMENTS,
) -> MemoryEstimate:
    """Peak memory of a training step of a task, without running one; see `estimate_memory`.

    Args:
        task: its model may be on the device "meta", and stays as it is.
        batch: of `Task.augment`; only sizes and types of its tensors count.
        device: on which the step would run.
        precision: "fp32" or "bf16".
        num_moments: numbers that the optimizer keeps for each weight.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = _fake_tensors(task.model, device)
        fake_batch = tree_map_only(Tensor, lambda tensor: _fake(tensor, device), batch)
        inputs = [tensor for tensor in tree_leaves(fake_batch) if isinstance(tensor, Tensor)]
        tracker = StorageTracker([*tensors.values(), *inputs])
        step = BackwardStep(task, tracker, autocast(device, precision))
        names = {f"task.model.{name}": tensor for name, tensor in tensors.items()}
        with tracker:
            functional_call(step, names, (fake_batch,))
    num_bytes = sum(map(_num_bytes, inputs))
    return _estimate(tracker, tensors, num_bytes, num_moments, on_cpu=device.type == "cpu")


def estimate_features(model: Any, num_images: int, device: torch.device) -> int:
    """Peak bytes of the pass of a frozen backbone that computes features of images.

    Args:
        model: whose specification declares `features`; it may be on the device "meta".
        num_images: in a pass.
        device: on which the pass would run.
    """
    on_cpu = device.type == "cpu"
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        tensors = _fake_tensors(model, device)
        images = torch.empty(num_images, *model.image_shape, device=device)
        tracker = StorageTracker([*tensors.values(), images])
        names = {f"model.{name}": tensor for name, tensor in tensors.items()}
        with tracker:
            functional_call(FeaturePass(model), names, (images,))
    num_bytes = sum(map(_num_bytes, [*tensors.values(), images]))
    libraries = resident(tracker.operators) if on_cpu else 0
    return num_bytes + tracker.peak(on_cpu) + libraries


class FeaturePass(nn.Module):
    """The features that a model's backbone gives, as the forward pass of a module."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Compute the features of images."""
        return self.model.features(images)


class BackwardStep(nn.Module):
    """Forward and backward pass of a task as the forward pass of a module.

    Layers that are computed again in the backward pass then see the same weights.

    Args:
        task: of the model.
        tracker: is told of the tensors that autograd saves.
        cast: the context of the forward pass.
    """

    def __init__(
        self, task: Task, tracker: StorageTracker, cast: AbstractContextManager[Any]
    ) -> None:
        super().__init__()
        self.task = task
        self.tracker = tracker
        self.cast = cast

    def forward(self, batch: Any) -> None:
        """Compute gradients of the loss of a batch."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self.tracker.save, lambda tensor: tensor)
        with self.cast, hooks:
            loss = self.task.training_step(batch, 0.0)["loss"]
        loss.backward()


def _fake(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of this size, type and layout without elements; within a `FakeTensorMode`."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _fake_tensors(model: nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Parameters and buffers by name, without elements."""
    convolutions = [
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Conv2d)
    ]
    tensors: dict[str, Tensor] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        fake = _fake(tensor, device)
        if name in convolutions:
            fake = fake.contiguous(memory_format=torch.channels_last)
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, tensor.requires_grad)
        tensors[name] = fake
    return tensors


def _estimate(
    tracker: StorageTracker,
    tensors: Mapping[str, Tensor],
    num_input_bytes: int,
    num_moments: int,
    on_cpu: bool,
) -> MemoryEstimate:
    """The parts of the fullest moment."""
    weights = [tensor for tensor in tensors.values() if isinstance(tensor, nn.Parameter)]
    gradient_ids = {tracker.serial(weight.grad) for weight in weights if weight.grad is not None}
    gradients = tracker.bytes_at_peak(gradient_ids)
    saved = tracker.bytes_at_peak(tracker.saved - gradient_ids)
    return MemoryEstimate(
        parameters=sum(_num_bytes(tensor) for tensor in tensors.values()),
        gradients=gradients,
        optimizer=num_moments * sum(_num_bytes(w) for w in weights if w.requires_grad),
        activations=saved + num_input_bytes,
        workspace=tracker.peak(on_cpu) - gradients - saved,
        libraries=resident(tracker.operators) if on_cpu else 0,
    )


def _num_bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


class StorageTracker(TorchDispatchMode):
    """While open: the storages that operators make, and which exist when most bytes do.

    glibc maps large blocks and gives them back. The heap of the small ones stays as large as it
    once was, so memory is full when the large blocks are most.

    Args:
        ignored: tensors whose storages are not counted.

    Attributes:
        heap: most bytes of small blocks at once.
        at_peak: bytes of the storages of the fullest moment, by serial number.
        saved: serial numbers of the storages that autograd saves.
        operators: names of the operators that ran.
    """

    def __init__(self, ignored: Sequence[Tensor]) -> None:
        super().__init__()
        self.heap = 0
        self.at_peak: dict[int, int] = {}
        self.saved: set[int] = set()
        self.operators: set[str] = set()
        self._fullest = (0, 0)  # bytes of large and small blocks
        self._live: dict[int, int] = {}
        self._serials: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = (
            weakref.WeakKeyDictionary()
        )
        self._serials.update((tensor.untyped_storage(), 0) for tensor in ignored)
        self._num_storages = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator and count what it makes."""
        output = func(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        self.operators.add(name)
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self.serial(tensor)
        self._weigh(WORKSPACE[name](*args) if name in WORKSPACE else 0)
        return output

    def _weigh(self, inside: int) -> None:
        """Compare this moment, with so many bytes inside of a kernel, with the fullest so far."""
        small = inside + sum(size for size in self._live.values() if size < LARGE)
        large = inside + sum(self._live.values()) - small
        self.heap = max(self.heap, small)
        if (large, small) > self._fullest:
            self._fullest = (large, small)
            self.at_peak = dict(self._live)

    def serial(self, tensor: Tensor) -> int:
        """Number of a tensor's storage, which is counted from its first appearance to its end."""
        storage = tensor.untyped_storage()
        if storage not in self._serials:
            self._num_storages += 1
            self._serials[storage] = self._num_storages
            self._live[self._num_storages] = storage.nbytes()
            weakref.finalize(storage, self._live.pop, self._num_storages)
        return self._serials[storage]

    def save(self, tensor: Tensor) -> Tensor:
        """Note that autograd saves this tensor; a hook for `saved_tensors_hooks`."""
        self.saved.add(self.serial(tensor))
        return tensor

    def bytes_at_peak(self, serials: Collection[int]) -> int:
        """Bytes of those of these storages that exist at the fullest moment."""
        return sum(self.at_peak.get(serial, 0) for serial in serials)

    def peak(self, on_cpu: bool) -> int:
        """Bytes of the fullest moment; on a CPU with the gaps in the heap of small blocks."""
        large = sum(size for size in self.at_peak.values() if size >= LARGE)
        return large + round(self.heap * (GAPS if on_cpu else 1.0))
