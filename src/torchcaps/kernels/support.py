"""Which implementation can take which arguments: (usable, reason)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

# Looked for once, without importing them: numba alone takes half a second.
HAS_NUMBA, HAS_TRITON = (find_spec(name) is not None for name in ("numba", "triton"))
NO_NUMBA = "numba is not installed (pip install 'torchcaps[fast]')"
# Weights below which compiled loops gain less than the seconds that compiling them takes.
NUMBA_WORTH = 1 << 16
NUMBA_EM_WORTH = 1 << 11  # shared over positions, each is used far more often
# Products of a vote's matrices above which they are not written out in code: 8 x 8 matrices still are.
NUMBA_PRODUCTS = 512
# Kernel and channels below which the frequency domain has no chance.
CONV_KERNEL, CONV_CHANNELS = 4, 8
# Dimensions of a parent and of a child up to which the GPU kernels were compiled and fit, see
# `python -m benchmarks.gpu --offline`; parents, children and samples may be any number.
TRITON_DIM, TRITON_IN_DIM = 32, 128


class Support(NamedTuple):
    """Whether an implementation can run, in words why (not), and whether "auto" should take it."""

    usable: bool
    reason: str
    worth_it: bool = True


def cpu_dynamic_routing(votes: Tensor, *others: Tensor | None) -> Support:
    """Whether the blocked CPU path of `dynamic_routing` can take these tensors."""
    named = {"votes": votes} | {f"argument {n}": other for n, other in enumerate(others, 2) if other is not None}
    reason = _elsewhere(named) or _other_type("votes", votes, (torch.float32, torch.float64))
    if reason is not None:
        return Support(False, reason)
    return Support(True, "blocked over samples: nothing but the votes is kept for the backward pass")


def cpu_conv2d(x: Tensor, weight: Tensor) -> Support:
    """Whether the frequency domain can take this convolution; sizes that do not pay there run directly within it."""
    reason = _elsewhere({"x": x, "weight": weight}) or _other_type(
        "weight", weight, (torch.float32, torch.float64, torch.bfloat16)
    )
    if reason is None and not torch.is_autocast_enabled("cpu"):
        reason = _other_type("x", x, (weight.dtype,))
    if reason is not None:
        return Support(False, reason)
    outputs, channels, *kernel = weight.shape
    if min(kernel) < CONV_KERNEL or min(outputs, channels) < CONV_CHANNELS:
        least = f"{CONV_KERNEL}x{CONV_KERNEL} pixels and {CONV_CHANNELS} channels"
        return Support(True, f"kernels below {least} cost less directly", worth_it=False)
    return Support(True, "frequency domain: a fraction of the products, in blocks that stay in the cache")


def cpu_routed_dynamic(pose: Tensor, weight: Tensor, bias: Tensor | None = None) -> Support:
    """Whether the blocked CPU path of `routed_dynamic` can take these tensors."""
    reason = _not_on_cpu(pose, weight, bias)
    if reason is not None:
        return Support(False, reason)
    return Support(True, "blocked over samples: the votes of a batch are never stored")


def cpu_routed_em(pose: Tensor, activation: Tensor, weight: Tensor, *others: Tensor | None) -> Support:
    """Whether the blocked CPU path of `routed_em` can take these tensors."""
    named = {"pose": pose, "activation": activation, "weight": weight}
    named |= {name: x for name, x in zip(("beta_u", "beta_a", "shift"), others, strict=False) if x is not None}
    reason = _elsewhere(named)
    if reason is not None:
        return Support(False, reason)
    return Support(True, "blocked over samples: the votes of a batch are never stored")


def numba_routed_em(pose: Tensor, activation: Tensor, weight: Tensor, *others: Tensor | None) -> Support:
    """Whether the compiled loops of `routed_em` can take these tensors."""
    if not HAS_NUMBA:
        return Support(False, NO_NUMBA)
    support = cpu_routed_em(pose, activation, weight, *others)
    if not support.usable:
        return support
    products = pose.shape[-1] * weight.shape[-1]
    if products > NUMBA_PRODUCTS:
        return Support(False, f"a vote takes {products} products; at most {NUMBA_PRODUCTS} are written out in code")
    if weight.numel() < NUMBA_EM_WORTH:
        return Support(True, f"fewer than {NUMBA_EM_WORTH} weights do not pay for compiling loops", worth_it=False)
    return Support(True, "compiled loops: votes are made in registers and never stored")


def numba_routed_dynamic(pose: Tensor, weight: Tensor, bias: Tensor | None = None) -> Support:
    """Whether the compiled loops of `routed_dynamic` can take these tensors."""
    if not HAS_NUMBA:
        return Support(False, NO_NUMBA)
    reason = _not_on_cpu(pose, weight, bias)
    if reason is not None:
        return Support(False, reason)
    if weight.numel() < NUMBA_WORTH:
        return Support(True, f"fewer than {NUMBA_WORTH} weights do not pay for compiling loops", worth_it=False)
    return Support(True, "compiled loops: votes are recomputed in a core's own cache and never stored")


def triton_routed_dynamic(pose: Tensor, weight: Tensor, bias: Tensor | None = None) -> Support:
    """Whether the GPU kernels of `routed_dynamic` can take these tensors."""
    if not HAS_TRITON:
        return Support(False, "Triton is not installed")
    device = weight.device.type
    if device != "cuda" and not (device == "cpu" and _interpreting()):
        return Support(False, f"weight is on {weight.device}, not on a GPU")
    tensors = {"pose": pose} | ({"bias": bias} if bias is not None else {})
    reason = _elsewhere(tensors, weight.device) or _other_type(
        "weight", weight, (torch.float32, torch.bfloat16, torch.float16)
    )
    if reason is None and pose.dtype == torch.float64:
        reason = "pose is torch.float64; at most float32 is supported"
    if reason is None:
        reason = _too_large(*weight.shape[2:])
    if reason is not None:
        return Support(False, reason)
    return Support(True, "GPU kernels: products of matrices over many children, no votes", worth_it=device == "cuda")


def _too_large(dim: int, in_dim: int) -> str | None:
    """Why the GPU kernels do not take poses of these sizes."""
    for name, size, most in (("dim", dim, TRITON_DIM), ("in_dim", in_dim, TRITON_IN_DIM)):
        if size > most:
            return f"{name} is {size}; at most {most} is supported by the GPU kernels"
    return None


def _interpreting() -> bool:
    """Whether Triton is imported and interprets its kernels on the CPU (TRITON_INTERPRET=1)."""
    triton = sys.modules.get("triton")
    return triton is not None and bool(triton.knobs.runtime.interpret)


def _not_on_cpu(pose: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """What keeps these tensors from the CPU paths."""
    tensors = {"pose": pose, "weight": weight} | ({"bias": bias} if bias is not None else {})
    reason = _elsewhere(tensors) or _other_type("weight", weight, (torch.float32, torch.float64))
    if reason is None:
        reason = _other_type("pose", pose, (weight.dtype, torch.bfloat16, torch.float16))
    if reason is None and bias is not None:
        reason = _other_type("bias", bias, (weight.dtype,))
    return reason


def _elsewhere(tensors: dict[str, Tensor], device: torch.device | None = None) -> str | None:
    """The first tensor that is not on that device; on the CPU without one."""
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu" if device is None else tensor.device != device:
            return f"{name} is on {tensor.device}, not on {device or 'the CPU'}"
    return None


def _other_type(name: str, tensor: Tensor, types: tuple[torch.dtype, ...]) -> str | None:
    """Why a tensor of another type than these cannot be taken."""
    if tensor.dtype in types:
        return None
    return f"{name} is {tensor.dtype}; supported here: {', '.join(dict.fromkeys(str(t) for t in types))}"
