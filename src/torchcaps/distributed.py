"""The processes of one run, which `torchrun` starts: their shares, what they exchange, and the loss of one of them.

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
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from torchcaps.errors import ArgumentError, TrainingError

PATIENCE = timedelta(
    minutes=10
)  # how long a process waits for the others, one of which may be making the data
T = TypeVar("T")
_idle = False
_store: dist.Store | None = (
    None  # what the processes have in common, before they are a group and when they are not
)


@dataclass(frozen=True)
class Ranks:
    """This process, number `rank` from 0, among the `world` processes of its run."""

    rank: int = 0
    world: int = 1

    @property
    def main(self) -> bool:
        """True for the process that writes the files."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """The share of this rank in `count` rows: contiguous, in rank order, the first ones longer by at most one."""
        size, longer = divmod(count, self.world)
        start = self.rank * size + min(self.rank, longer)
        return slice(start, start + size + (self.rank < longer))

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks of `values` [figures] on the CPU; the same bits on each of them."""
        if self.world == 1:
            return values
        total = values.detach().to("cuda" if dist.get_backend() == "nccl" else "cpu", copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

    def gather(self, value: T) -> list[T]:
        """The values of all ranks in rank order, on all ranks. They are pickled; tensors belong in `cat`."""
        values = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    def cat(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks in rank order, on the device of `tensor` [rows, ...]; a rank may have none."""
        if self.world == 1:
            return tensor
        rows = (
            tensor.detach().cpu().clone()
        )  # a view would be pickled with all that it is a view of
        return torch.cat(self.gather(rows)).to(tensor.device)

    def same(self, value: T) -> T:
        """The value of rank 0, on all ranks."""
        values = [value]
        if self.world > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def first(self) -> bool:
        """True for the first process of the run that asks, and for no other, also when some of them are lost."""
        try:
            return _store is None or _store.add("torchcaps/first", 1) == 1
        except RuntimeError:
            return True  # torchrun, which holds the store, is gone too: better a sentence twice than never


def joined() -> Ranks:
    """The processes that this one has joined: those of the default process group, or itself alone."""
    there = dist.is_available() and dist.is_initialized()
    return Ranks(dist.get_rank(), dist.get_world_size()) if there else Ranks()


@contextmanager
def join(environ: Mapping[str, str], device: str = "auto") -> Iterator[Ranks]:
    """Join the other processes of the run where torchrun started several, as `environ` says; else this does nothing.

    On "cuda", or "auto" with GPUs, each process of a machine takes a GPU of its own, as the current device. Raises
    TrainingError if torchrun set no such environment, GPUs are too few or a process does not come, and ValueError for
    one certain GPU, which the processes cannot share.
    """
    world = int(environ.get("WORLD_SIZE") or 1)
    if world == 1:
        yield Ranks()
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise TrainingError(
            f"{missing[0]}: expected in the environment beside WORLD_SIZE, as torchrun sets it"
        )
    global _store  # noqa: PLW0603 (there is one run in a process)
    rank, host, port = int(environ["RANK"]), environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    hosting = (
        rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    )  # no torchrun does
    with listening():
        _store = dist.TCPStore(host, port, world, hosting, timeout=PATIENCE, wait_for_workers=False)
    backend = _backend(device, int(environ.get("LOCAL_RANK") or 0))
    with listening():
        dist.init_process_group(
            backend, store=_store, rank=rank, world_size=world, timeout=PATIENCE
        )
    yield joined()
    dist.destroy_process_group()  # not after an error: it might wait for processes that are gone


def _backend(device: str, local_rank: int) -> str:
    """What carries the tensors; where it is nccl, gloo carries those on the CPU. Sets the current GPU."""
    if device.startswith("cuda:"):
        raise ArgumentError(
            "device", f"expected auto, cpu or cuda where there are several processes, got {device}"
        )
    if device != "cuda" and not (device == "auto" and torch.cuda.is_available()):
        return "gloo"
    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        raise TrainingError(
            f"device: expected a GPU for each process of this machine, found {gpus}"
        )
    torch.cuda.set_device(local_rank)
    return "cpu:gloo,cuda:nccl"


@contextmanager
def main_first() -> Iterator[None]:
    """Let the first process go through the block before the others do: it makes or fetches what is not there yet."""
    ranks = joined()
    if not ranks.main:
        ranks.same(None)
    yield
    if ranks.main:
        ranks.same(None)


@contextmanager
def counting(rows: int) -> Iterator[None]:
    """While open, batch norms leave out the rows of a process that has none of its own, but one to go along with."""
    global _idle  # noqa: PLW0603
    _idle = rows == 0
    try:
        yield
    finally:
        _idle = False


@contextmanager
def listening() -> Iterator[None]:
    """Raise TrainingError, one sentence, when another process of the run ended or does not answer for `PATIENCE`."""
    try:
        yield
    except RuntimeError as error:  # gloo raises no class of its own, but names its file
        if not dist.is_available() or not (
            isinstance(error, dist.DistError) or re.search(r"gloo[/\\]", str(error))
        ):
            raise
        cause = re.sub(r"^\[\S*\] ", "", str(error)).partition(". ")[0]
        raise TrainingError(
            f"a process of this run was lost ({cause}); --resume continues the run"
        ) from error


def leave(status: int) -> NoReturn:
    """End this process at once, with what it printed: the threads of gloo may abort a process that ends slowly."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def parallel(task: nn.Module, ranks: Ranks) -> nn.Module:
    """A module that averages the gradients of all ranks in its backward pass; the task itself where there is one rank.

    Where shares differ, multiply the mean loss of a rank by `world * rows of the rank / rows of all`: the gradients are
    then those of the mean over all rows.
    """
    if ranks.world == 1:
        return task
    devices = [torch.cuda.current_device()] if _on_gpu(task) else None
    wrapper = nn.parallel.DistributedDataParallel(
        task, device_ids=devices, find_unused_parameters=True
    )
    wrapper.broadcast_buffers = (
        False  # all ranks have the same; as an argument it is deprecated in torch 2.13
    )
    return wrapper


def synced(module: nn.Module, ranks: Ranks) -> nn.Module:
    """The module with batch norms that take their statistics from the rows of all ranks while they train, and the same
    state_dict. On the CPU the layers are changed in place; on GPUs torch's own replace them."""
    if ranks.world == 1:
        return module
    if _on_gpu(module):
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            vars(layer)["forward"] = partial(
                _synced_norm, layer
            )  # torch's SyncBatchNorm refuses the CPU
    return module


def _on_gpu(module: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in module.parameters())


def _synced_norm(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """Batch norm of `inputs` [rows, channels, ...] by the statistics of all ranks; a rank may have no rows."""
    if not layer.training or joined().world == 1:
        return type(layer).forward(layer, inputs)
    layer._check_input_dim(inputs)
    x = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    rest, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    sums = summed(torch.cat([x.sum(rest), x.new_tensor([x.numel() // x.shape[1]])]))
    count = sums[-1].detach()
    if count < 2:
        lone = inputs if len(inputs) else inputs.sum(0, keepdim=True)  # zeros
        return type(layer).forward(layer, lone)[
            : len(inputs)
        ]  # refuses it, or knows what to do, on every rank
    mean = sums[:-1] / count
    centerd = x - mean.view(shape)
    variance = summed(centerd.square().sum(rest)) / count
    _track(layer, mean.detach(), variance.detach() * count / (count - 1))
    scale = torch.rsqrt(variance + layer.eps) * (1 if layer.weight is None else layer.weight)
    shift = 0 if layer.bias is None else layer.bias.view(shape)
    return (centerd * scale.view(shape) + shift).to(inputs.dtype)


def summed(values: Tensor) -> Tensor:
    """The sum over all ranks, of those whose rows count (see `counting`), with its gradient; for what a batch is."""
    return values if joined().world == 1 else _summed(values * (0 if _idle else 1))


def gathered(rows: Tensor) -> tuple[Tensor, int]:
    """The rows [rows, numbers] of all ranks in rank order with their gradients, those that count (see `counting`), and
    where this rank's begin: 0 where they do not."""
    ranks = joined()
    if ranks.world == 1:
        return rows, 0
    counts = ranks.gather(0 if _idle else len(rows))
    before = sum(counts[: ranks.rank])
    mine = F.pad(
        rows[: counts[ranks.rank]], (0, 0, before, sum(counts) - before - counts[ranks.rank])
    )
    return _summed(mine), 0 if _idle else before


def _summed(values: Tensor) -> Tensor:
    """The sum over all ranks. The losses of all ranks depend on it, so its gradient is the sum of theirs."""
    total = values.clone()
    if total.requires_grad:
        total.register_hook(_summed)
    dist.all_reduce(total.detach())
    return total


def _track(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics towards these [channels], as torch's own batch norm does."""
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return
    layer.num_batches_tracked.add_(1)
    step = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), step)
    layer.running_var.lerp_(variance.to(layer.running_var.dtype), step)
