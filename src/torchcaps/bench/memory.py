"""Peak memory of a training step: predicted on fake tensors, or measured in a fresh process."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchcaps.bench.timing import MIB, Log, Row, in_fresh_process, peak_of, silent
from torchcaps.bench.workload import Workload, image_shape, task_of, training_step
from torchcaps.bench.workspace import GAPS, LARGE, WORKSPACE, resident
from torchcaps.data import ImageBatch
from torchcaps.errors import check_range
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.evaluation.forward import autocast
from torchcaps.training.update import TrainingStep

NUM_STEPS = 3  # the second is the first with the optimizer's state
NUM_MOMENTS = 2  # numbers that Adam keeps for each parameter


@dataclass(frozen=True)
class MemoryEstimate(EvaluationResult):
    """Bytes at the moment of a training step when most are taken.

    They are counted above those of a process with torch and without the model.

    Attributes:
        parameters: the weights.
        gradients: of the weights, those that exist at that moment.
        optimizer: Adam's two moments.
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
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensors = _fake_tensors(model, mode)
        images = torch.rand(batch, *shape, device=device)
        images = images.contiguous(memory_format=torch.channels_last)
        with StorageTracker([*tensors.values(), images]) as tracker, autocast(device, precision):
            loss = _loss(model, tensors, images, tracker)
        with tracker:
            loss.backward()
    return _estimate(tracker, tensors, images, on_cpu=device.type == "cpu")


def _fake_tensors(model: nn.Module, mode: FakeTensorMode) -> dict[str, Tensor]:
    """Parameters and buffers by name, without elements."""
    convolutions = [
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Conv2d)
    ]
    tensors: dict[str, Tensor] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        fake = mode.from_tensor(tensor).detach()
        if name in convolutions:
            fake = fake.contiguous(memory_format=torch.channels_last)
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, tensor.requires_grad)
        tensors[name] = fake
    return tensors


def _loss(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    images: Tensor,
    tracker: StorageTracker,
) -> Tensor:
    """The loss of a batch, with these tensors in place of the model's."""
    task = task_of(model)
    pixels = images.shape[2:] if task.spec.is_dense else ()
    labels = torch.zeros(len(images), *pixels, dtype=torch.long, device=images.device)
    batch = ImageBatch(images, labels, masks=labels)
    task_tensors = {f"task.model.{name}": tensor for name, tensor in tensors.items()}
    with torch.autograd.graph.saved_tensors_hooks(tracker.save, lambda tensor: tensor):
        loss: Tensor = functional_call(TrainingStep(task), task_tensors, (batch, 0.0))["loss"]
    return loss


def _estimate(
    tracker: StorageTracker,
    tensors: Mapping[str, Tensor],
    images: Tensor,
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
        optimizer=NUM_MOMENTS * sum(_num_bytes(w) for w in weights if w.requires_grad),
        activations=saved + _num_bytes(images),
        workspace=tracker.peak(on_cpu) - gradients - saved,
        libraries=resident(tracker.operators) if on_cpu else 0,
    )


def _num_bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def peak(workload: dict[str, Any], precision: str) -> dict[str, float]:
    """Resident memory in MiB before the model exists, and at most until it has made a few steps."""
    subject = Workload(**workload)

    def run() -> None:
        model = subject.build()
        step = training_step(model, *subject.data(model), precision)
        for _ in range(NUM_STEPS):
            step()

    return peak_of(run)


def benchmark_memory(
    workload: Workload,
    batches: Sequence[int],
    precisions: Sequence[str],
    log: Log = silent,
) -> list[Row]:
    """Predict the peak memory of training steps, and measure it in fresh processes.

    Args:
        workload: the model.
        batches: numbers of images.
        precisions: "fp32", "bf16" or both.
        log: called with a line about the work that begins.

    Returns:
        A row for each precision and batch size: both peaks over the process without a model, and
        the parts of the prediction.
    """
    rows = []
    for precision, batch in product(precisions, batches):
        log(f"{precision}, batch {batch}")
        subject = replace(workload, batch=batch)
        estimate = estimate_memory(subject.build(), batch, precision)
        marks = in_fresh_process("memory", workload=asdict(subject), precision=precision)
        predicted = estimate.total / MIB
        peak_mib = marks["peak_mib"] - marks["before_mib"]
        row: Row = {
            "batch": batch,
            "precision": precision,
            "predicted MiB": predicted,
            "measured MiB": peak_mib,
            "predicted / measured": predicted / peak_mib,
        }
        for name, num_bytes in asdict(estimate).items():
            row[f"{name} MiB"] = num_bytes / MIB
        rows.append(row)
    return rows


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
