"""Routing by agreement, pass by pass, forward and back: what its implementations share. Each is a `Work`.

After t passes the logits are <u, V_t>, V_t being the sum of the first t parents, so the s of each pass is all that the
way back needs. The children of all positions are a batch of their own. Letters: b batch, i children, j parents, d and k
dimensions of a parent and a child; t the pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.fields import Convention, ConvField, DenseField, Field
from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.squash import full_precision, squash, squash_with_length
from torchcaps.functional.votes import DenseVotes, ProductVotes, Votes, linear_votes
from torchcaps.kernels.numerics import squash_backward
from torchcaps.kernels.operator import Grads, Parts, operator
from torchcaps.kernels.support import needs_reference, padded_windows
from torchcaps.types import Routed

Op = Callable[["Problem"], tuple[Tensor, ...]]


class Problem(NamedTuple):
    """Operands of the operators: `vote_ij = weight_ij pose_i`, then routing by agreement.

    pose `[b, i, k]`, weight `[i, j, d, k]`; or votes `[b, i, j, d]` and no weight. bias `[j, d]`. windows: height,
    width, kernel and stride of those whose parents compete; empty where positions do not. Outcomes: v `[b, j, d]`, its
    length `[b, j]`, the coupling `[b, i, j]` (empty unless wanted), and, kept, s of every pass `[iterations, b, j, d]`.
    """

    pose: Tensor
    weight: Tensor | None
    bias: Tensor | None
    windows: list[int]
    convention: Convention
    iterations: int
    leaky: bool
    detach: bool
    want_coupling: bool

    @property
    def terms(self) -> int:
        """Of dL/du as a sum of products: c and dL/ds of each pass, dL/dlogits and the parents before of later ones."""
        return 1 if self.detach else 2 * self.iterations - 1


class Work(ABC):
    """An implementation at work on a problem, a block of samples at a time. It has `problem` and `backward` (bool)."""

    units: Tensor | None = None  # what gradients of poses are to be multiplied with
    grad_weight: Tensor | None = None  # filled block by block

    @abstractmethod
    def __init__(self, problem: Problem, backward: bool) -> None: ...

    @abstractmethod
    def blocks(self) -> Iterator[slice]:
        """Samples; what follows is about those given last."""

    @abstractmethod
    def sums(self, reached: Tensor | None, keep: bool) -> Tensor:
        """s `[b, j, d]` after parents that sum up to `reached` (None in the first pass); keeps its coupling if told."""

    @abstractmethod
    def coupling(self) -> Tensor:
        """The coupling kept, `[b, i, j]`."""

    @abstractmethod
    def back(
        self, reached: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        """A pass of the way back, last to first: gradient of `reached` `[b, j, d]`; None with `detach`, or without."""

    @abstractmethod
    def spread(self) -> Tensor:
        """Gradient of the poses from what `back` has found; that of the weight is added to `grad_weight`."""


def implementation(name: str, kind: type[Work]) -> Op:
    """The operator of this name that works so."""

    def forward(x: Problem) -> tuple[Tensor, ...]:
        work, (_, _, coupling, sums) = kind(x, False), _shapes(x)
        for block in work.blocks():
            reached = None
            for t in range(x.iterations):
                s = work.sums(reached, x.want_coupling and t == x.iterations - 1)
                sums[t, block] = s if x.bias is None else s + x.bias
                if t < x.iterations - 1:
                    v = squash(sums[t, block])
                    reached = v if reached is None else reached + v
            if x.want_coupling:
                coupling[block] = work.coupling()
        return *squash_with_length(sums[-1]), coupling, sums

    def backward(
        x: Problem, kept: Sequence[Tensor], grads: Sequence[Tensor], _wanted: Sequence[bool]
    ) -> Grads:
        (sums,), (grad_v, grad_length, outer) = kept, grads
        work, grad_pose, grad_bias = (
            kind(x, True),
            sums.new_empty(x.pose.shape),
            sums.new_zeros(sums.shape[2:]),
        )
        for block in work.blocks():
            grad_coupling = outer[block] if x.want_coupling else None
            grad_bias += _back(
                work, sums[:, block], grad_v[block], grad_length[block], grad_coupling
            )
            grad_pose[block] = work.spread()
        grad_weight = (
            None
            if x.weight is None or work.grad_weight is None
            else work.grad_weight.view(x.weight.shape)
        )
        return grad_pose if work.units is None else grad_pose * work.units, grad_weight, grad_bias

    return operator(name, Problem, 4, Parts(forward, backward, _shapes, _reference, kept=1))


def _reference(x: Problem) -> tuple[Tensor, ...]:
    """v, its length and the coupling in torch's own operations, all votes stored."""
    votes = x.pose if x.weight is None else linear_votes(x.pose, x.weight)
    field: Field = DenseField()
    if x.windows:
        height, width, kernel, stride = x.windows
        field = ConvField(height, width, kernel, stride, convention=x.convention)
    dense = DenseVotes(votes.unflatten(0, (-1, *field.positions)), bias=x.bias, field=field)
    routed = dynamic_routing(dense, x.iterations, leaky=x.leaky, detach=x.detach)
    coupling: Any = routed.coupling if x.want_coupling else routed.pose.new_empty(0, 1, 1)
    return routed.pose.flatten(0, -3), routed.activation.flatten(0, -2), coupling.flatten(0, -3)


def _shapes(x: Problem) -> tuple[Tensor, ...]:
    """Memory for the outcomes; half precision is computed in float32."""
    (b, i), like = x.pose.shape[:2], x.pose if x.weight is None else x.weight
    j, d = x.pose.shape[2:] if x.weight is None else x.weight.shape[1:3]
    kind = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
    sizes = (b, j, d), (b, j), (b, i, j) if x.want_coupling else (0,), (x.iterations, b, j, d)
    return tuple(like.new_empty(size, dtype=kind) for size in sizes)


def _back(
    work: Work, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None
) -> Tensor:
    """Passes of a block from the last to the first; the gradient of the bias `[j, d]`."""
    last = len(sums) - 1
    reached, grad_parent = (
        squash(sums).cumsum(dim=0),
        torch.zeros_like(sums),
    )  # dL/dv_t, filled from later passes
    grad_parent[last], grad_bias = grad_v, sums.new_zeros(sums.shape[2:])
    for t in range(last, -1, -1):
        grad_s = squash_backward(sums[t], grad_parent[t], grad_length if t == last else None)
        grad_bias += grad_s.sum(dim=0)
        found = work.back(
            reached[t - 1] if t else None, grad_s, grad_coupling if t == last else None
        )
        if found is None:
            break
        grad_parent[:t] += found
    return grad_bias


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
    return needs_reference(votes)


def route(
    op: Op,
    votes: Votes,
    iterations: int,
    leaky: bool,
    detach: bool,
    cast: torch.dtype | None = None,
) -> Routed:
    """Run the operator on given or linear votes; with poses of the type `cast`."""
    windows, weight = padded_windows(votes.field), None
    sizes: list[int] = []
    if isinstance(votes, ProductVotes):
        pose, weight = votes.pose.flatten(0, -3), votes.matrices.transpose(2, 3)
    else:
        pose = votes.dense().flatten(0, -4)
    pose = pose if cast is None else pose.to(cast)
    bias = (
        None
        if votes.bias is None
        else votes.bias.to(full_precision(pose if weight is None else weight).dtype)
    )
    if windows is not None and not windows.local:
        sizes = [windows.height, windows.width, windows.kernel, windows.stride]
    settings = (iterations, leaky, detach, votes.context.needs_coupling)
    v, length, coupling, _ = op(
        Problem(pose, weight, bias, sizes, votes.field.convention, *settings)
    )
    return restore_positions(votes, votes.activation.shape[:-1], v, length, coupling)


def restore_positions(
    votes: Votes, lead: torch.Size, v: Tensor, length: Tensor, coupling: Tensor
) -> Routed:
    """What was routed, at its positions again; absent children couple to nothing."""
    v, length = v.unflatten(0, lead), length.unflatten(0, lead)
    if not votes.context.needs_coupling:
        return Routed(v, length, None)
    coupling, present = coupling.unflatten(0, lead), votes.mask
    return Routed(
        v, length, coupling if present is None else coupling * present.to(coupling).unsqueeze(-1)
    )
