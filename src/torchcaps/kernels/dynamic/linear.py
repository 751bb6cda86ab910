"""What the fast paths of routing by agreement share: linear votes as they take them, and the way back through passes.

The children of all positions are a batch of their own. Letters: b batch, i children, j parents, d and k dimensions of a
parent and a child; t the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.squash import full_precision, squash
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.numerics import squash_backward
from torchcaps.kernels.support import watched
from torchcaps.types import Routed


class Linear(NamedTuple):
    """Operands of an operator: `vote_ij = weight_ij pose_i`, then routing by agreement.

    pose `[b, i, k]`, weight `[i, j, d, k]`, bias `[j, d]`. Outcomes: v `[b, j, d]`, its length `[b, j]`, the coupling
    `[b, i, j]` (empty unless wanted), and, kept for the gradient, s of every pass `[iterations, b, j, d]`.
    """

    pose: Tensor
    weight: Tensor
    bias: Tensor | None
    iterations: int
    leaky: bool
    detach: bool
    want_coupling: bool


def shapes(x: Linear) -> tuple[Tensor, ...]:
    """Memory for the outcomes; half precision is computed in float32."""
    (batch, children), (_, parents, dim, _) = x.pose.shape[:2], x.weight.shape
    kind = torch.float32 if x.weight.dtype in (torch.float16, torch.bfloat16) else x.weight.dtype
    sizes = (batch, parents, dim), (batch, parents), (batch, children, parents), (x.iterations, batch, parents, dim)
    v, length, coupling, sums = (x.weight.new_empty(size, dtype=kind) for size in sizes)
    return v, length, coupling if x.want_coupling else coupling.new_empty(0), sums


def other_votes(votes: Votes) -> str | None:
    """Why these are not the linear votes of children that stand for themselves; None if they are."""
    if not isinstance(votes, ProductVotes):
        return "the votes are given, not made of poses and matrices; 'blocked' takes them"
    if votes.rows > 1:
        return f"poses are matrices of {votes.rows} rows"
    if votes.shift is not None:
        return "the votes are shifted"
    if not votes.field.local:
        return f"parents at different positions compete (convention {votes.field.convention!r})"
    return watched(votes, equal=True)


def route(
    op: Callable[[Linear], tuple[Tensor, ...]], votes: Any, iterations: int, leaky: bool, detach: bool,
    cast: torch.dtype | None = None,
) -> Routed:  # fmt: skip
    """Run the operator on linear votes, whose couplings are those of their field; with poses of the type `cast`."""
    lead = votes.pose.shape[:-2]
    pose, weight = votes.pose.flatten(0, -3), votes.matrices.transpose(2, 3)
    pose = pose if cast is None else pose.to(cast)
    bias = None if votes.bias is None else votes.bias.to(full_precision(weight).dtype)
    passes = iterations if votes.fixed is None else 1
    v, length, coupling, _ = op(Linear(pose, weight, bias, passes, leaky, detach, votes.wanted))
    return outcome(votes, lead, v, length, coupling)


def backward(
    sums: Tensor, grad_v: Tensor, grad_length: Tensor, step: Callable[[int, Tensor | None, Tensor], Tensor | None]
) -> Tensor:
    """Passes from the last to the first; returns the gradient of the bias of each sample, `[b, j, d]`.

    Args:
        sums: s of every pass, `[t, b, j, d]`.
        grad_v: of the last parents, `[b, j, d]`.
        grad_length: of their lengths, `[b, j]`.
        step: takes the number of a pass, the sum of the parents that its logits came from (None in the first pass) and
            dL/ds. Returns the gradient of that sum; None where nothing flows to earlier passes.
    """
    last = len(sums) - 1
    reached, grad_parent = squash(sums).cumsum(dim=0), torch.zeros_like(sums)  # dL/dv_t, filled from later passes
    grad_parent[last], grad_bias = grad_v, torch.zeros_like(grad_v)
    for t in range(last, -1, -1):
        grad_s = squash_backward(sums[t], grad_parent[t], grad_length if t == last else None)
        grad_bias += grad_s
        found = step(t, reached[t - 1] if t else None, grad_s)
        if found is None:
            break
        grad_parent[:t] += found
    return grad_bias


def outcome(votes: Votes, lead: torch.Size, v: Tensor, length: Tensor, coupling: Tensor) -> Routed:
    """What was routed, at its positions again; absent children couple to nothing."""
    v, length = v.unflatten(0, lead), length.unflatten(0, lead)
    if not votes.wanted:
        return Routed(v, length, None)
    coupling, present = coupling.unflatten(0, lead), votes.present
    return Routed(v, length, coupling if present is None else coupling * present.to(coupling).unsqueeze(-1))
