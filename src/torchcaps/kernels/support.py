"""Which implementation can take which arguments: (usable, reason)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Support(NamedTuple):
    """Whether an implementation can run, and in words why (not)."""

    usable: bool
    reason: str


def cpu_routed_dynamic(pose: Tensor, weight: Tensor, bias: Tensor | None) -> Support:
    """Whether the blocked CPU path of `routed_dynamic` can take these tensors."""
    tensors = {"pose": pose, "weight": weight} | ({"bias": bias} if bias is not None else {})
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            return Support(False, f"{name} is on {tensor.device}, not on the CPU")
    if weight.dtype not in (torch.float32, torch.float64):
        return Support(False, f"weight is {weight.dtype}; float32 and float64 are supported")
    if pose.dtype not in (weight.dtype, torch.bfloat16, torch.float16):
        return Support(False, f"pose is {pose.dtype} where weight is {weight.dtype}")
    if bias is not None and bias.dtype != weight.dtype:
        return Support(False, f"bias is {bias.dtype} where weight is {weight.dtype}")
    return Support(True, "blocked over samples: the votes of a batch are never stored")
