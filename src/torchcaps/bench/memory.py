"""Peak memory of a training step: predicted on fake tensors, whose sizes are counted; measured in a fresh process."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
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

STEPS = 3  # the second is the first with the optimizer's state
_MOMENTS = 2  # numbers that Adam keeps for each parameter


@dataclass(frozen=True)
class MemoryEstimate(EvaluationResult):
    """Bytes at the moment of a step when most are taken, above those of a process with torch and without the model."""

    parameters: int  # the weights
    gradients: int  # those of the weights that exist at that moment
    optimizer: int  # Adam's two moments
    activations: (
        int  # tensors kept for the backward pass that exist at that moment; the images among them
    )
    workspace: int  # tensors that are made and dropped on the way, and what kernels take inside
    libraries: int  # code and tables of torch, and of numba where its loops run, resident from their first use

    derived = ("total",)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {value / MIB:.1f}" for name, value in asdict(self).items())
        return f"{self.total / MIB:.1f} MiB ({parts})"


def estimate_memory(model: nn.Module, batch: int, precision: str = "fp32") -> MemoryEstimate:
    """Peak memory of a training step of a model of `create_model()`, without running one; the model stays as it is.

    The step is that of `torchcaps train`: the loss of the model's task, Adam, convolutions in channels-last memory.
    Its operators are run on fake tensors, which have sizes and no values; what kernels take inside comes from a table
    for the CPU. Memory that the allocator keeps although it is free (`--keep-memory yes`) is not counted. The precision
    is "fp32", or "bf16" for autocast.

    Raises:
        ValueError: for a batch below 1 or another precision. TypeError: for a module that is no model of this library.

    Example:
        >>> print(estimate_memory(create_model("capsnet"), 128))
    """
    shape = image_shape(model)
    if isinstance(batch, bool) or not isinstance(batch, int):
        raise TypeError(f"batch: expected a whole number of images, got {batch!r}")
    check_range("batch", batch, low=1)
    device = next(model.parameters()).device
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensors = _fake(model, mode)
        images = torch.rand(batch, *shape, device=device).contiguous(
            memory_format=torch.channels_last
        )
        with StorageTracker([*tensors.values(), images]) as tracker, autocast(device, precision):
            loss = _loss(model, tensors, images, tracker)
        with tracker:
            loss.backward()
    return _parts(tracker, tensors, images, on_cpu=device.type == "cpu")


def _fake(model: nn.Module, mode: FakeTensorMode) -> dict[str, Tensor]:
    """Parameters and buffers by name, without values."""
    convolutions = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Conv2d)
    }
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
    model: nn.Module, tensors: Mapping[str, Tensor], images: Tensor, tracker: StorageTracker
) -> Tensor:
    task = task_of(model)
    places = images.shape[2:] if task.spec.is_dense else ()
    labels = torch.zeros(len(images), *places, dtype=torch.long, device=images.device)
    with torch.autograd.graph.saved_tensors_hooks(tracker.save, lambda tensor: tensor):
        named = {f"model.{name}": tensor for name, tensor in tensors.items()}
        loss: Tensor = functional_call(
            task, named, (ImageBatch(images, labels, masks=labels), 0.0)
        )["loss"]
    return loss


def _parts(
    tracker: StorageTracker, tensors: Mapping[str, Tensor], images: Tensor, on_cpu: bool
) -> MemoryEstimate:
    weights = [tensor for tensor in tensors.values() if isinstance(tensor, nn.Parameter)]
    grads = {tracker.serial(p.grad) for p in weights if p.grad is not None}
    gradients = sum(size for serial, size in tracker.at_peak.items() if serial in grads)
    saved = sum(size for serial, size in tracker.at_peak.items() if serial in tracker.saved - grads)
    learned = sum(weight.untyped_storage().nbytes() for weight in weights if weight.requires_grad)
    return MemoryEstimate(
        parameters=sum(tensor.untyped_storage().nbytes() for tensor in tensors.values()),
        gradients=gradients,
        optimizer=_MOMENTS * learned,
        activations=saved + images.untyped_storage().nbytes(),
        workspace=tracker.peak(on_cpu) - gradients - saved,
        libraries=resident(tracker.operators) if on_cpu else 0,
    )


def peak(workload: dict[str, Any], precision: str) -> dict[str, float]:
    """Resident memory in MiB before the model exists, and at most until it has made a few steps."""
    chosen = Workload(**workload)

    def run() -> None:
        model = chosen.build()
        step = training_step(model, *chosen.data(model), precision)
        for _ in range(STEPS):
            step()

    return peak_of(run)


def benchmark_memory(
    workload: Workload, batches: Sequence[int], precisions: Sequence[str], log: Log = silent
) -> list[Row]:
    """A row for each batch size and precision: predicted and measured peak over the process without a model."""
    rows = []
    for precision, batch in product(precisions, batches):
        log(f"{precision}, batch {batch}")
        chosen = replace(workload, batch=batch)
        parts = estimate_memory(chosen.build(), batch, precision).to_dict()
        predicted = parts.pop("total") / MIB
        memory = in_fresh_process("memory", workload=asdict(chosen), precision=precision)
        measured = memory["peak_mib"] - memory["before_mib"]
        row: Row = {
            "batch": batch,
            "precision": precision,
            "predicted MiB": predicted,
            "measured MiB": measured,
        }
        row["predicted / measured"] = predicted / measured
        rows.append(row | {f"{name} MiB": value / MIB for name, value in parts.items()})
    return rows


class StorageTracker(TorchDispatchMode):
    """While open: the storages that operators make, by a serial number, and which of them exist when most bytes do.

    glibc maps large blocks and gives them back; the heap of the small ones stays as large as it once was, and so it is
    full when the large blocks are most.
    """

    def __init__(self, ignored: Sequence[Tensor]) -> None:
        super().__init__()
        self.heap, self.at_peak = 0, dict[int, int]()  # heap: most bytes of small blocks at once
        self._fullest = (0, 0)
        self.saved, self.operators = set[int](), set[str]()
        self._live = dict[int, int]()
        self._serials: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = (
            weakref.WeakKeyDictionary()
        )
        self._serials.update((tensor.untyped_storage(), 0) for tensor in ignored)
        self._count = 0

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
        self.heap = max(self.heap, small)
        large = sum(self._live.values()) + inside - small
        if (large, small) > self._fullest:
            self._fullest, self.at_peak = (large, small), dict(self._live)

    def serial(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, which is counted from its first appearance until nobody holds it."""
        storage = tensor.untyped_storage()
        if storage not in self._serials:
            self._count += 1
            self._serials[storage] = self._count
            self._live[self._count] = storage.nbytes()
            weakref.finalize(storage, self._live.pop, self._count)
        return self._serials[storage]

    def peak(self, on_cpu: bool) -> int:
        """Bytes of the fullest moment; on a CPU with the gaps in the heap of small blocks."""
        large = sum(size for size in self.at_peak.values() if size >= LARGE)
        return large + round(self.heap * (GAPS if on_cpu else 1.0))

    def save(self, tensor: Tensor) -> Tensor:
        """Note that autograd saves this tensor; a hook for `saved_tensors_hooks`."""
        self.saved.add(self.serial(tensor))
        return tensor
