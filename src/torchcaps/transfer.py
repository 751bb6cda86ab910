"""Where and how a model computes: its device, tensors on their way there, precision and mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.errors import check_known

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")

# What sends tensors to a GPU, and records what becomes of random numbers before, while the step of a
# training becomes a graph (`torchcaps.training.graph.Tape`).
tape: ContextVar[Any] = ContextVar("tape", default=None)


def to_device(tensor: Tensor, like: Tensor | torch.device) -> Tensor:
    """A tensor on a device; one of the CPU goes to a GPU without a wait of the host.

    A copy from pinned memory is a part of the device's work, which later operations follow.
    Numbers in float64 become float32 on a device without it.

    Args:
        tensor: on any device.
        like: the device; or a tensor on it, whose type is taken too.
    """
    device = like if isinstance(like, torch.device) else like.device
    if isinstance(like, Tensor):
        tensor = tensor.to(like.dtype)
    if tensor.dtype == torch.float64:
        tensor = tensor.to(widest_float(device.type))
    is_copy = tensor.device.type == "cpu" and device.type == "cuda"
    if is_copy and not torch.compiler.is_compiling():
        return send(tensor, device) if tape.get() is None else tape.get().send(tensor, device)
    return tensor.to(device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a tensor of the CPU on a GPU, for which the host does not wait."""
    return tensor.pin_memory().to(device, non_blocking=True)


def widen(x: Tensor) -> Tensor:
    """A tensor in float64; in float32 on a device without it, as those of Apple."""
    if x.device.type == "cpu":
        return x.double()
    return x.to(widest_float(x.device.type))


@cache
def widest_float(device: str) -> torch.dtype:
    """The largest type of floating point of a device: float64, or float32 where that is refused.

    Args:
        device: type of the device, such as "cuda".
    """
    if device in ("cpu", "meta"):
        return torch.float64
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode without gradients.

    Afterwards every submodule has its own training flag back.
    """
    with eval_mode(model), torch.inference_mode():
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode with gradients.

    Afterwards every submodule has its own training flag back.
    """
    modules = list(model.modules())
    flags = [module.training for module in modules]
    model.eval()
    try:
        yield
    finally:
        for module, training in zip(modules, flags, strict=True):
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer; the CPU for a model without either."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def autocast(
    device: torch.device, precision: str, cache_enabled: bool | None = None
) -> torch.autocast:
    """Return the autocast context of a precision.

    Args:
        device: device of the model.
        precision: "bf16" or "fp16"; with "fp32" and "tf32" autocast is off.
        cache_enabled: whether casts of weights are kept; None as torch does.

    Raises:
        UnknownNameError: for another precision.
    """
    check_known("precision", precision, PRECISIONS)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, half or torch.bfloat16, half is not None, cache_enabled)
