"""The processes of one run, which `torchrun` starts: shards, exchange, and the loss of a process.

Everything works in a single process too, and then without `torch.distributed`.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from torchcaps.errors import ArgumentError, TrainingError

# How long a process waits for the others, one of which may be making the data.
PATIENCE = timedelta(minutes=10)
T = TypeVar("T")
_is_padding = False
# The store of torchrun, which the processes share also while they are no process group.
_store: dist.Store | None = None


@dataclass(frozen=True)
class Ranks:
    """This process, number `rank` from 0, among the `world_size` processes of its run."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """True for the process that writes the files."""
        return self.rank == 0

    def shard(self, count: int) -> slice:
        """The share of this rank in `count` rows: contiguous, in rank order.

        The first shards are longer by at most one row.
        """
        size, longer = divmod(count, self.world_size)
        start = self.rank * size + min(self.rank, longer)
        return slice(start, start + size + (self.rank < longer))

    def shard_size(self, count: int) -> int:
        """How many of `count` rows are this rank's."""
        return len(range(count)[self.shard(count)])

    def padded_shard(self, count: int) -> slice:
        """The shard; where it is empty, the first row, which does not count."""
        return self.shard(count) if self.shard_size(count) else slice(0, 1)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks of `values` on the CPU; the same bits on each of them."""
        if self.world_size == 1:
            return values
        total = values.detach().to("cuda" if dist.get_backend() == "nccl" else "cpu", copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

    def any(self, flag: bool) -> bool:
        """Whether the flag of any rank is set, on all ranks."""
        return bool(self.sum(torch.tensor(float(flag))) > 0)

    def gather(self, value: T) -> list[T]:
        """The values of all ranks in rank order, on all ranks.

        They are pickled; tensors belong in `cat`.
        """
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def cat(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks in rank order, on the device of `tensor` [rows, ...].

        A rank may have none.
        """
        if self.world_size == 1:
            return tensor
        # A view would be pickled with its whole storage.
        return torch.cat(self.gather(tensor.detach().cpu().clone())).to(tensor.device)

    def broadcast(self, value: T) -> T:
        """The value of rank 0, on all ranks; its tensors come out on the CPU.

        A tensor on the GPU of rank 0 would take memory there for every other rank.
        """
        if self.world_size == 1:
            return value
        values = [tree_map_only(Tensor, Tensor.cpu, value)]
        dist.broadcast_object_list(values)
        return values[0]

    def claim_report(self) -> bool:
        """True for the first process of the run that asks, also when others are lost."""
        try:
            return _store is None or _store.add("torchcaps/first", 1) == 1
        except RuntimeError:
            return True  # torchrun, which holds the store, is gone: rather twice than never


def current() -> Ranks:
    """The ranks of the default process group, or a single one."""
    is_initialized = dist.is_available() and dist.is_initialized()
    return Ranks(dist.get_rank(), dist.get_world_size()) if is_initialized else Ranks()


@contextmanager
def init(environ: Mapping[str, str], device: str = "auto") -> Iterator[Ranks]:
    """Join the process group that torchrun describes in `environ`; alone, this does nothing.

    On "cuda", or "auto" with GPUs, each process of a machine takes a GPU of its own, as the
    current device.

    Raises:
        TrainingError: torchrun set no such environment, GPUs are too few, or a process is missing.
        ArgumentError: `device` names one certain GPU, which the processes cannot share.
    """
    world_size = int(environ.get("WORLD_SIZE") or 1)
    if world_size == 1:
        yield Ranks()
        return
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if not environ.get(name):
            raise TrainingError(
                f"{name}: expected in the environment beside WORLD_SIZE, as torchrun sets it"
            )
    global _store  # noqa: PLW0603 (there is one run in a process)
    rank = int(environ["RANK"])
    # torchrun usually holds the store itself.
    is_host = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    with lost_rank_errors():
        _store = dist.TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            world_size,
            is_host,
            timeout=PATIENCE,
            wait_for_workers=False,
        )
        dist.init_process_group(
            _choose_backend(device, int(environ.get("LOCAL_RANK") or 0)),
            store=_store,
            rank=rank,
            world_size=world_size,
            timeout=PATIENCE,
        )
    yield current()
    dist.destroy_process_group()  # not after an error: it might wait for processes that are gone


def _choose_backend(device: str, local_rank: int) -> str:
    """What carries the tensors; beside nccl, gloo carries those on the CPU.

    The current GPU is set to one of this process.
    """
    if device.startswith("cuda:"):
        raise ArgumentError(
            "device", f"expected auto, cpu or cuda where there are several processes, got {device}"
        )
    if device != "cuda" and not (device == "auto" and torch.cuda.is_available()):
        return "gloo"
    if local_rank >= torch.cuda.device_count():
        raise TrainingError(
            "device: expected a GPU for each process of this machine, "
            f"found {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(local_rank)
    return "cpu:gloo,cuda:nccl"


@contextmanager
def main_first() -> Iterator[None]:
    """Let the first process go through the block before the others: it makes what is missing."""
    ranks = current()
    if not ranks.is_main:
        ranks.broadcast(None)
    yield
    if ranks.is_main:
        ranks.broadcast(None)


@contextmanager
def exclude_padding_rows(num_rows: int) -> Iterator[None]:
    """While open, a rank whose shard is empty (`num_rows` = 0) adds nothing to sums over ranks.

    Such a rank computes one row of padding, so that it takes part in every collective operation.
    """
    global _is_padding  # noqa: PLW0603
    _is_padding = num_rows == 0
    try:
        yield
    finally:
        _is_padding = False


@contextmanager
def lost_rank_errors() -> Iterator[None]:
    """Raise TrainingError, one sentence, when another process ended or is silent for `PATIENCE`."""
    try:
        yield
    except RuntimeError as error:  # gloo raises no class of its own, but names its file
        is_lost = dist.is_available() and isinstance(error, dist.DistError)
        if not (is_lost or re.search(r"gloo[/\\]", str(error))):
            raise
        cause = re.sub(r"^\[\S*\] ", "", str(error)).partition(". ")[0]
        raise TrainingError(
            f"a process of this run was lost ({cause}); --resume continues the run"
        ) from error


def hard_exit(status: int) -> NoReturn:
    """Flush and end this process at once: threads of gloo may abort a process that ends slowly."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def data_parallel(task: nn.Module) -> nn.Module:
    """A module whose backward pass averages the gradients of all ranks.

    Where shards differ, multiply the mean loss of a rank by `world_size * rows of the rank / rows
    of all`: the gradients are then those of the mean over all rows.
    """
    wrapper = nn.parallel.DistributedDataParallel(
        task,
        device_ids=[torch.cuda.current_device()] if _on_gpu(task) else None,
        find_unused_parameters=True,
    )
    # All ranks have the same buffers; as an argument it is deprecated in torch 2.13.
    wrapper.broadcast_buffers = False
    return wrapper


def sync_batch_norms(module: nn.Module, ranks: Ranks) -> nn.Module:
    """The module with batch norms whose statistics in training are those of all ranks' rows.

    Its state_dict is the same. On the CPU, which torch's SyncBatchNorm refuses, the layers are
    changed in place; on GPUs torch's own replace them.
    """
    if ranks.world_size == 1:
        return module
    if _on_gpu(module):
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            vars(layer)["forward"] = partial(_synced_norm, layer)
    return module


def _on_gpu(module: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in module.parameters())


def _synced_norm(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """Batch norm of `inputs` [rows, channels, ...] by the statistics of all ranks.

    A rank may have no rows.
    """
    if not layer.training or current().world_size == 1:
        return type(layer).forward(layer, inputs)
    layer._check_input_dim(inputs)
    x = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    axes = [0, *range(2, x.dim())]
    shape = [1, -1] + [1] * (x.dim() - 2)
    sums = all_reduce_sum(torch.cat([x.sum(axes), x.new_tensor([x.numel() // x.shape[1]])]))
    count = sums[-1].detach()
    if count < 2:  # the layer refuses a single value, or handles it, on every rank alike
        padded = inputs if len(inputs) else inputs.sum(0, keepdim=True)  # zeros
        return type(layer).forward(layer, padded)[: len(inputs)]
    mean = sums[:-1] / count
    centered = x - mean.view(shape)
    variance = all_reduce_sum(centered.square().sum(axes)) / count
    running_mean, running_var = layer.running_mean, layer.running_var
    if (
        running_mean is not None
        and running_var is not None
        and layer.num_batches_tracked is not None
    ):
        # As torch's own batch norm does.
        layer.num_batches_tracked.add_(1)
        step = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
        unbiased = variance.detach() * count / (count - 1)
        running_mean.lerp_(mean.detach().to(running_mean.dtype), step)
        running_var.lerp_(unbiased.to(running_var.dtype), step)
    scale = torch.rsqrt(variance + layer.eps) * (1 if layer.weight is None else layer.weight)
    shift = 0 if layer.bias is None else layer.bias.view(shape)
    return (centered * scale.view(shape) + shift).to(inputs.dtype)


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over all ranks with its gradient, without padding (`exclude_padding_rows`)."""
    if current().world_size == 1:
        return values
    return _differentiable_sum(values * (not _is_padding))


def all_gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """The rows of all ranks in rank order with their gradients, without padding.

    Args:
        rows: [rows, numbers] of this rank.

    Returns:
        All rows, and where those of this rank begin; 0 on a rank that has none.
    """
    ranks = current()
    if ranks.world_size == 1:
        return rows, 0
    counts = ranks.gather(0 if _is_padding else len(rows))
    num_rows = counts[ranks.rank]
    start = sum(counts[: ranks.rank])
    padded = nn.functional.pad(rows[:num_rows], (0, 0, start, sum(counts) - start - num_rows))
    return _differentiable_sum(padded), 0 if _is_padding else start


def _differentiable_sum(values: Tensor) -> Tensor:
    """The sum over all ranks.

    The losses of all ranks depend on it, so its gradient is the sum of theirs.
    """
    total = values.clone()
    if total.requires_grad:
        total.register_hook(_differentiable_sum)
    dist.all_reduce(total.detach())
    return total
