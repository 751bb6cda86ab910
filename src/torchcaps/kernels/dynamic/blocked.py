"""Routing by agreement in torch operations, a block of samples at a time, with recomputation in the backward pass.

The votes of a batch are never stored. Those of a block lie in the cache, unless one sample has more. After t passes the
logits are <u, V_t>, V_t being the sum of the first t parents, so the s of each pass is all that the way back needs.
Letters: n samples x positions, i children, j parents, d and k dimensions of a vote and a child; t the pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import STEADY, limit
from torchcaps.functional.fields import Convention, Everything, Field, Windows
from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.squash import squash, squash_with_length
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.linear import backward, outcome
from torchcaps.kernels.numerics import roomy, roomy_factors
from torchcaps.kernels.operator import Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.samples import block_bytes, by_samples
from torchcaps.kernels.support import FULL, made_anew, padded_windows, unfit, watched
from torchcaps.types import Routed


class Problem(NamedTuple):
    """Operands of the operator. Its outcomes: v `[n, j, d]`, its length `[n, j]`, coupling `[n, i, j]`, s of each pass.

    pose `[n, i, k]`, or the votes `[n, i, j, d]` where there is no weight; weight `[i, j, d, k]`; windows: height,
    width, kernel and stride of those whose parents compete; empty where positions do not.
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


def supports(votes: Votes) -> Support:
    """Whether blocks of samples can take these votes."""
    windows = padded_windows(votes.field)
    if isinstance(votes, ProductVotes) and _by_reference(votes, windows):
        return made_anew(votes)
    reason = watched(votes, equal=True) or unfit(votes, FULL, votes.children.pose.device)
    if reason is None and votes.children.pose.is_meta:
        reason = "tensors on meta hold no numbers"
    if reason is None and not votes.field.local and windows is None:
        reason = f"parents of {type(votes.field).__name__} compete in a way of their own"
    if reason is not None:
        return Support(False, reason)
    return Support(True, "blocked over samples: the votes of a batch are never stored")


def _by_reference(votes: ProductVotes, windows: Windows | None) -> bool:
    """Whether these votes are no products of vectors and matrices alone, or compete in a way of their own."""
    return votes.rows > 1 or votes.shift is not None or not (votes.field.local or windows)


@fast_path("dynamic_routing", "blocked", supports, rank=20)
def run(votes: Votes, *, iterations: int, leaky: bool, detach: bool) -> Routed:
    """Routing by agreement of any votes."""
    windows, weight = padded_windows(votes.field), None
    if not isinstance(votes, ProductVotes):
        pose = votes.dense().flatten(0, -4)
    elif _by_reference(votes, windows):
        routed = by_samples(lambda part: dynamic_routing(part, iterations, leaky=leaky, detach=detach), votes)
        return Routed(*routed)
    else:
        pose, weight = votes.pose.flatten(0, -3), votes.matrices.transpose(2, 3)
    bias = None if votes.bias is None else votes.bias.to((pose if weight is None else weight).dtype)
    sizes = []
    if windows is not None and not windows.local:
        sizes = [windows.height, windows.width, windows.kernel, windows.stride]
    settings = (iterations if votes.fixed is None else 1, leaky, detach, votes.wanted)
    v, length, coupling, _ = _routed(Problem(pose, weight, bias, sizes, votes.field.convention, *settings))
    return outcome(votes, votes.activation.shape[:-1], v, length, coupling)


def _shapes(x: Problem) -> tuple[Tensor, ...]:
    like = x.pose if x.weight is None else x.weight
    (n, i), (j, d) = x.pose.shape[:2], x.pose.shape[2:] if x.weight is None else x.weight.shape[1:3]
    coupling = (n, i, j) if x.want_coupling else (0,)
    return tuple(like.new_empty(size) for size in ((n, j, d), (n, j), coupling, (x.iterations, n, j, d)))


def _forward(x: Problem) -> tuple[Tensor, ...]:
    _, _, coupling, sums = _shapes(x)
    votes = _Votes(x)
    for block in votes.blocks():
        u, c, reached = votes.of(block), votes.first(block), sums.new_zeros(())
        for t in range(x.iterations):
            if t:
                reached = reached + squash(sums[t - 1, block])
                c = votes.share(_agreement(u, reached))
            s = _weighted(u, c)
            sums[t, block] = s if x.bias is None else s.add_(x.bias)
        if x.want_coupling:
            coupling[block] = c.transpose(1, 2)
    return *squash_with_length(sums[-1]), coupling, sums


def _backward(
    x: Problem, kept: Sequence[Tensor], grads: Sequence[Tensor], wanted: Sequence[bool]
) -> Sequence[Tensor | None]:
    del wanted  # each is made on the way to the others
    (sums,), (grad_v, grad_length, grad_coupling) = kept, grads
    votes, grad_bias = _Votes(x), sums.new_zeros(sums.shape[2:])
    grad_pose = torch.empty_like(votes.pose, memory_format=torch.contiguous_format)
    grad_weight = None if votes.weight is None else torch.zeros_like(votes.weight)
    for block in votes.blocks():
        outer = grad_coupling[block].transpose(1, 2) if x.want_coupling else None
        work = _Terms(votes, block, len(sums), x.detach, outer)
        grad_bias += backward(sums[:, block], grad_v[block], grad_length[block], work.step).sum(dim=0)
        grad_pose[block] = votes.spread(block, work.factors, torch.stack(work.against, dim=2), grad_weight)
        del work  # before the terms of the next block are made
    grad_pose = grad_pose if votes.units is None else grad_pose * votes.units
    return grad_pose, None if grad_weight is None else grad_weight.view(votes.sizes), grad_bias


_routed = operator("dynamic_routing_blocked", Problem, 4, Parts(_forward, _backward, _shapes, kept=1))


class _Terms:
    """A block's dL/du as a sum of products: c `[n, j, i]` and dL/ds `[n, j, d]`, dL/dlogits and earlier parents, ..."""

    def __init__(self, votes: _Votes, block: slice, passes: int, detach: bool, grad_coupling: Tensor | None) -> None:
        self.votes, self.block, self.last, self.detach = votes, block, passes - 1, detach
        self.grad_coupling = grad_coupling
        shape = (1 if detach else 2 * passes - 1, *votes.of(block).shape[:3])
        self.factors, self.against = votes.pose.new_empty(shape), list[Tensor]()

    def step(self, t: int, before: Tensor | None, grad_s: Tensor) -> Tensor | None:
        """See `linear.backward`."""
        if before is None:
            self._add(self.votes.first(self.block), grad_s)
            return None
        u = self.votes.of(self.block)
        c = self.votes.share(_agreement(u, before))
        self._add(c, grad_s)
        if self.detach:
            return None
        grad_c = _agreement(u, grad_s)
        if t == self.last and self.grad_coupling is not None:
            grad_c += self.grad_coupling
        grad_logits = self.votes.share_backward(c, grad_c)
        self._add(grad_logits, before)
        return _weighted(u, grad_logits)

    def _add(self, factor: Tensor, vector: Tensor) -> None:
        self.factors[len(self.against)] = factor
        self.against.append(vector)


def _agreement(votes: Tensor, parent: Tensor) -> Tensor:
    """<u_ij, parent_j>: `[n, j, i, d]`, `[n, j, d]` -> `[n, j, i]`."""
    return torch.matmul(parent.unsqueeze(2), votes.transpose(2, 3)).squeeze(2)


def _weighted(votes: Tensor, factors: Tensor) -> Tensor:
    """Sum over children of votes `[n, j, i, d]` times their factors `[n, j, i]`."""
    return torch.matmul(factors.unsqueeze(2), votes).squeeze(2)


class _Votes:
    """Votes of some samples at a time, in memory that all share, so that no page is mapped twice; and their rivalry.

    Couplings have the layout `[n, j, i]`: sums of a softmax run along outer axes.
    """

    def __init__(self, x: Problem) -> None:
        self.leaky, self.units, self.weight = x.leaky, None, None
        if x.weight is None:
            self.pose, self.units = roomy(x.pose, limit(x.pose.dtype, STEADY))
            self.sizes, like = x.pose.shape[1:], x.pose
        else:
            pose, weight, self.units = roomy_factors(x.pose, x.weight)
            self.pose, like, self.sizes = pose.to(weight.dtype), weight, weight.shape
            self.weight = weight.contiguous().flatten(1, 2)  # [i, j d, k]
        self.i, self.j, self.d = self.sizes[:3]
        self.field: Field = Everything()
        if x.windows:
            height, width, kernel, stride = x.windows
            self.field = Windows(height, width, kernel, stride, convention=x.convention)
        self.positions, each = math.prod(self.field.positions), self.i * self.j * self.d
        samples = block_bytes(like) // max(1, self.positions * each * like.element_size())
        self.size = self.positions * max(1, min(samples, len(self.pose) // max(1, self.positions)))
        self._by_child, self._votes = like.new_empty(2, self.size * each)
        self._made: slice | None = None
        self._first = self.share(like.new_zeros(self.positions, self.j, self.i))

    def blocks(self) -> Iterator[slice]:
        """Blocks of whole samples."""
        return (slice(at, min(at + self.size, len(self.pose))) for at in range(0, len(self.pose), self.size))

    def of(self, block: slice) -> Tensor:
        """Votes `[n, j, i, d]`: those for a parent lie together, as sums over children want it."""
        pose = self.pose[block]
        votes = self._votes[: len(pose) * self.i * self.j * self.d].view(-1, self.j, self.i, self.d)
        if block != self._made:
            self._made, by_child = block, pose
            if self.weight is not None:
                by_child = torch.bmm(pose.transpose(0, 1), self.weight.transpose(1, 2), out=self._columns(len(pose)))
                by_child = by_child.view(self.i, -1, self.j, self.d).transpose(0, 1)
            votes.copy_(by_child.transpose(1, 2))
        return votes

    def spread(self, block: slice, factors: Tensor, against: Tensor, grad_weight: Tensor | None) -> Tensor:
        """Gradient of poses (of given votes, that) and, added to it, of weights, from dL/du = factors @ against."""
        grad, self._made = self.of(block), None  # in the place of the votes
        torch.bmm(factors.flatten(1, 2).permute(1, 2, 0), against.flatten(0, 1), out=grad.flatten(0, 1))
        if self.weight is None or grad_weight is None:
            return grad.transpose(1, 2)
        columns = self._columns(len(grad))
        columns.view(self.i, -1, self.j, self.d).copy_(grad.permute(2, 0, 1, 3))
        grad_weight.baddbmm_(columns.transpose(1, 2), self.pose[block].transpose(0, 1))
        return torch.bmm(columns, self.weight).transpose(0, 1)

    def _columns(self, n: int) -> Tensor:
        """Memory for a number of each vote, `[i, n, j d]`."""
        return self._by_child[: self.i * n * self.j * self.d].view(self.i, n, -1)

    def first(self, block: slice) -> Tensor:
        """Couplings of a block before anything is known."""
        return self._first.repeat((block.stop - block.start) // self.positions, 1, 1)

    def share(self, logits: Tensor) -> Tensor:
        """Softmax over the parents that compete for a child."""
        if self.field.local and not self.leaky:
            return logits.softmax(dim=1)
        return self.field.share(self._links(logits), self.leaky).flatten(0, -3).transpose(1, 2)

    def share_backward(self, c: Tensor, grad: Tensor) -> Tensor:
        """From the gradient of `share`, in its place, to that of its logits."""
        links = self._links(grad.mul_(c))
        links.addcmul_(self._links(c), self.field.total(links), value=-1)
        return grad

    def _links(self, x: Tensor) -> Tensor:
        """`[b, *positions, i, j]`."""
        return x.transpose(1, 2).unflatten(0, (-1, *self.field.positions))
