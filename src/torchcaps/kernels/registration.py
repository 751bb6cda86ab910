"""What all implementations of `routed_dynamic` share as operators: shapes of the outcome, and the gradient's way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchcaps.functional.bounds import STEADY, limit
from torchcaps.functional.squash import safe_norm

# An operator with these arguments and outcomes; see `torchcaps.kernels.cpu.dynamic.routed_dynamic`.
Operator = Any


def connect(forward: Operator, backward: Operator) -> None:
    """Give an operator and its backward operator their fake versions and their place in autograd.

    The backward operator takes what `_backward` below passes. It cannot be differentiated again, and says so.
    """
    forward.register_fake(_fake_forward)
    backward.register_fake(_fake_backward)

    def pass_on(ctx: Any, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor, _grad_sums: Tensor) -> Any:
        pose, weight, sums = ctx.saved_tensors
        coupling = grad_coupling if ctx.want_coupling else None
        grads = backward(pose, weight, sums, grad_v, grad_length, coupling, ctx.has_bias, ctx.leaky, ctx.detach)
        return grads[0], grads[1], grads[2] if ctx.has_bias else None, None, None, None, None

    forward.register_autograd(pass_on, setup_context=_remember)
    backward.register_autograd(refuse)


def largest(x: Tensor) -> float:
    """Largest magnitude; 0 of no numbers."""
    low, high = (end.item() for end in x.aminmax()) if x.numel() else (0.0, 0.0)
    return max(-low, high)


def within(x: Tensor, most: float) -> Tensor:
    """`x` with numbers beyond a bound taken for it, without a copy where there are none: to look costs less."""
    return x.clamp(-most, most) if largest(x) > most else x


def roomy(x: Tensor, most: float) -> tuple[Tensor, Tensor | None]:
    """`x` with each sample in units in which nothing is beyond a bound, and those units `[b, 1, ...]`; None for 1.

    Squash gives directions: those of huge votes are the same in any unit.
    """
    if not largest(x) > most:
        return x, None
    units = most / x.abs().amax(dim=list(range(1, x.dim())), keepdim=True).clamp(min=most)
    return x * units, units


def roomy_factors(pose: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Poses `[b, i, k]` and weights whose votes routing and its gradient can multiply, and the units of the poses."""
    most = limit(weight.dtype, STEADY)
    weight = within(weight, most)
    pose, units = roomy(pose, most / (weight.shape[-1] * max(1.0, largest(weight))))
    return pose, weight, units


def squash_backward(s: Tensor, grad_v: Tensor, grad_length: Tensor | None) -> Tensor:
    """Gradient of s `[..., d]` from that of squash(s) and, unless None, of its length `[...]`.

    With n = |s| and g = n / (1 + n^2): v = g s, so dL/ds = g dv + g'/n <s, dv> s, where g'(n) = (g/n)^2 - g^2;
    and dlength/dn = 2 g^2 / n.
    """
    n = safe_norm(s, keepdim=True)
    g = 1.0 / (1.0 / n + n)
    unit = s / n
    along = g * (g / n - g * n) * (unit * grad_v).sum(dim=-1, keepdim=True)  # n g'(n): g^2 alone would underflow
    if grad_length is not None:
        along = along + 2.0 * g.square() / n * grad_length.unsqueeze(-1)
    return g * grad_v + along * unit


def _fake_forward(
    pose: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, leaky: bool, detach: bool, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    del bias, leaky, detach
    batch, children = pose.shape[:2]
    parents, dim = weight.shape[1:3]
    kind = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
    return (
        weight.new_empty((batch, parents, dim), dtype=kind),
        weight.new_empty((batch, parents), dtype=kind),
        weight.new_empty((batch, children, parents) if want_coupling else (0,), dtype=kind),
        weight.new_empty((iterations, batch, parents, dim), dtype=kind),
    )


def _fake_backward(
    pose: Tensor, weight: Tensor, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None,
    has_bias: bool, leaky: bool, detach: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del grad_v, grad_length, grad_coupling, leaky, detach
    grad_pose = torch.empty_like(pose, memory_format=torch.contiguous_format)
    grad_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    return grad_pose, grad_weight, sums.new_empty(weight.shape[1:3] if has_bias else (0,))


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    pose, weight, bias, _, leaky, detach, want_coupling = inputs
    ctx.save_for_backward(pose, weight, output[3])
    ctx.has_bias, ctx.leaky, ctx.detach, ctx.want_coupling = bias is not None, leaky, detach, want_coupling


def refuse(_ctx: Any, *_grads: Tensor) -> Any:
    """Say that there is no second derivative; for the autograd of a backward operator."""
    raise NotImplementedError(
        "torchcaps: the fast implementations of routing have no second derivative; impl='reference' has one"
    )
