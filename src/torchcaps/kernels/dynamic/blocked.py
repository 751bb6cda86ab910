"""Routing by agreement in torch operations, a block of samples at a time, with recomputation in the backward pass.

The votes of a batch are never stored. Those of a block lie in the cache; where one sample has more, as in a
convolution, they are made anew, part by part, whenever they are needed, and its couplings alone are kept. After t
passes the logits are <u, V_t>, V_t being the sum of the first t parents, so the s of each pass is all that the backward
pass needs. Letters: b samples, p positions, n of both, i children, j parents, d dimensions of a vote; t the pass, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import STEADY, limit
from torchcaps.functional.fields import Windows
from torchcaps.functional.squash import squash, squash_with_length
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.linear import outcome
from torchcaps.kernels.fields import among_links, padded_windows
from torchcaps.kernels.numerics import roomy, roomy_factors, squash_backward, within
from torchcaps.kernels.operator import Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.support import FULL, unfit, watched
from torchcaps.types import Routed

# Votes of one block, in bytes: what fits beside its gradient in a core's share of the last-level cache; a GPU needs
# more work at a time.
BLOCK_BYTES, GPU_BLOCK_BYTES = 6 << 20, 256 << 20


class Problem(NamedTuple):
    """Operands of the operator. Its outcomes: v `[n, j, d]`, its length `[n, j]`, coupling `[n, i, j]`, s of each pass.

    pose `[b, p, i, in_dim]`, or the votes `[b, p, i, j, d]` where there is no weight; weight `[i, j, outer, inner]`;
    shift `[1 or i, 1 or j, d]`; present, of children, `[n, i]`, where shifts would give absent ones a vote;
    windows: height, width, kernel and stride of those whose parents compete; empty where positions do not.
    """

    pose: Tensor
    weight: Tensor | None
    shift: Tensor | None
    present: Tensor | None
    bias: Tensor | None
    parents: int
    windows: list[int]
    convention: str
    iterations: int
    leaky: bool
    detach: bool
    want_coupling: bool


def supports(votes: Votes) -> Support:
    """Whether blocks of samples can take these votes."""
    device = votes.children.pose.device
    reason = watched(votes, equal=True) or unfit(votes, FULL, device)
    if reason is None and device.type == "meta":
        reason = "tensors on meta hold no numbers"
    windows = padded_windows(votes.field)
    if reason is None and not votes.field.local and (windows is None or not isinstance(votes, ProductVotes)):
        reason = f"parents of {type(votes.field).__name__} compete in a way of their own"
    if reason is not None:
        return Support(False, reason)
    return Support(True, "blocked over samples: the votes of a batch are never stored")


@fast_path("dynamic_routing", "blocked", supports, rank=20)
def run(votes: Votes, *, iterations: int, leaky: bool, detach: bool) -> Routed:
    """Routing by agreement of any votes."""
    weight, shift, present, windows = None, None, None, padded_windows(votes.field)
    if isinstance(votes, ProductVotes):
        pose, weight, shift = votes.pose, votes.matrices.transpose(2, 3), votes.shift
        present = votes.present if shift is not None else None
    else:
        pose = votes.dense()
    lead, kind = votes.activation.shape[:-1], (pose if weight is None else weight).dtype
    first = len(lead) if windows is None or windows.local else 1  # what compete are of one sample
    shape = (math.prod(lead[:first]), math.prod(lead[first:]))
    pose = pose.reshape(*shape, *pose.shape[len(lead) :])
    if present is not None:
        present = present.expand(*lead, -1).flatten(0, -2)
    numbers = [] if windows is None or first > 1 else [windows.height, windows.width, windows.kernel, windows.stride]
    shift, bias = (None if x is None else x.to(kind) for x in (shift, votes.bias))
    passes = iterations if votes.fixed is None else 1
    v, length, coupling, _ = _routed(
        Problem(pose, weight, shift, present, bias, votes.parents, numbers, votes.field.convention, passes, leaky,
                detach, votes.wanted)
    )  # fmt: skip
    return outcome(votes, lead, v, length, coupling)


def _shapes(x: Problem) -> tuple[Tensor, ...]:
    like = x.pose if x.weight is None else x.weight
    n, i = x.pose.shape[0] * x.pose.shape[1], x.pose.shape[2]
    dim = x.pose.shape[-1] if x.weight is None else x.pose.shape[-1] // x.weight.shape[3] * x.weight.shape[2]
    coupling = (n, i, x.parents) if x.want_coupling else (0,)
    sizes = ((n, x.parents, dim), (n, x.parents), coupling, (x.iterations, n, x.parents, dim))
    v, length, kept, sums = (like.new_empty(size) for size in sizes)
    return v, length, kept, sums


def _forward(x: Problem) -> tuple[Tensor, ...]:
    v, length, coupling, sums = _shapes(x)
    votes, rivals = _Blocks(x), _Rivals(x)
    for parts in votes.blocks():
        block = slice(parts[0].start, parts[-1].stop)
        c = _route_block(x, votes, rivals, parts, sums)
        if x.want_coupling:
            coupling[block] = rivals.uniform if c is None else c.transpose(1, 2)
    v, length = squash_with_length(sums[-1])
    return v, length, coupling, sums


def _backward(x: Problem, kept: Sequence[Tensor], grads: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor]:
    del wanted  # each is made on the way to the others
    (sums,), (grad_v, grad_length, grad_coupling) = kept, grads
    votes, rivals = _Blocks(x), _Rivals(x)
    votes.begin_gradients()
    grad_bias = sums.new_zeros(sums.shape[2:])
    for parts in votes.blocks():
        block = slice(parts[0].start, parts[-1].stop)
        outer = grad_coupling[block].transpose(1, 2) if x.want_coupling else None
        terms, grad_s = _block_backward(x, votes, rivals, parts, sums, grad_v[block], grad_length[block], outer)
        for part in parts:
            votes.add_gradients(part, *_stacked(terms, _within(part, block)))
        grad_bias += grad_s
    return votes.gradients(grad_bias)


_routed = operator("dynamic_routing_blocked", Problem, 4, Parts(_forward, _backward, _shapes, kept=1))

_Term = tuple[
    Tensor | float, Tensor
]  # of dL/du: a factor of each vote `[n, j, i]`, a vector of each parent `[n, j, d]`


def _route_block(x: Problem, votes: _Blocks, rivals: _Rivals, parts: list[slice], sums: Tensor) -> Tensor | None:
    """Write the s of each pass; returns the last coupling `[n, j, i]`, None for one that is uniform."""
    block = slice(parts[0].start, parts[-1].stop)
    reached = torch.zeros_like(sums[0, block])
    c = rivals.first(block)
    for t in range(x.iterations):
        logits = reached.new_empty(0) if t + 1 == x.iterations else reached.new_empty(votes.links(block))
        factors = rivals.mask(c, block)
        for part in parts:
            here, u = _within(part, block), votes.made(part)
            s = u.sum(dim=2).mul_(rivals.uniform) if factors is None else _weighted(u, factors[here])
            sums[t, part] = s if x.bias is None else s.add_(x.bias)
            if t + 1 < x.iterations:
                reached[here] += squash(s)
                logits[here] = votes.agreement(u, reached[here])
        if t + 1 < x.iterations:
            c = rivals.share(logits)
    return c


def _block_backward(
    x: Problem, votes: _Blocks, rivals: _Rivals, parts: list[slice], sums: Tensor, grad_v: Tensor, grad_length: Tensor,
    grad_coupling: Tensor | None,
) -> tuple[list[_Term], Tensor]:  # fmt: skip
    """A block's dL/du as a sum of products, and dL/dbias."""
    block, last = slice(parts[0].start, parts[-1].stop), x.iterations - 1
    sums = sums[:, block]
    reached, grad_parent = squash(sums).cumsum(dim=0), torch.zeros_like(sums)  # dL/dv_t, filled from later passes
    grad_parent[last] = grad_v
    grad_bias, terms = torch.zeros_like(sums[0, 0]), []
    for t in range(last, -1, -1):
        grad_s = squash_backward(sums[t], grad_parent[t], grad_length if t == last else None)
        grad_bias += grad_s.sum(dim=0)
        if t == 0:
            first = rivals.mask(rivals.first(block), block)
            terms.append((rivals.uniform if first is None else first, grad_s))
            break
        logits, grad_c = sums.new_empty(2, *votes.links(block))
        for part in parts:
            here, u = _within(part, block), votes.made(part)
            logits[here] = votes.agreement(u, reached[t - 1, here])
            if not x.detach:
                grad_c[here] = votes.agreement(u, grad_s[here])
        c = rivals.share(logits)
        terms.append((rivals.masked(c, block), grad_s))
        if x.detach:
            break
        grad_c = rivals.masked(grad_c, block)
        if t == last and grad_coupling is not None:
            grad_c += grad_coupling
        grad_logits = rivals.share_backward(c, grad_c)
        terms.append((grad_logits, reached[t - 1]))
        for part in reversed(parts):  # the votes of the last are still there
            here = _within(part, block)
            grad_parent[:t, here] += _weighted(votes.made(part), grad_logits[here])
    return terms, grad_bias


def _weighted(votes: Tensor, factors: Tensor) -> Tensor:
    """Sum over children of votes `[n, j, i, d]` times their factors `[n, j, i]`."""
    n, j, i, d = votes.shape
    return torch.bmm(factors.reshape(n * j, 1, i), votes.view(n * j, i, d)).view(n, j, d)


def _within(part: slice, block: slice) -> slice:
    return slice(part.start - block.start, part.stop - block.start)


def _stacked(terms: list[_Term], here: slice) -> tuple[list[Tensor | float], Tensor]:
    """Factors, and vectors `[n, j, terms, d]`, of some of a block."""
    return [f[here] if isinstance(f, Tensor) else f for f, _ in terms], torch.stack([v[here] for _, v in terms], dim=2)


class _Rivals:
    """The parents that compete for a child, in the layout `[n, j, i]`: softmax along an outer axis."""

    def __init__(self, x: Problem) -> None:
        self.leaky, self.present = x.leaky, x.present
        self.uniform = 1.0 / (x.parents + x.leaky)
        self.windows = Windows(*x.windows, 0, x.convention) if x.windows else None  # type: ignore[arg-type]
        self._first = None
        if self.windows is not None:
            like = x.pose if x.weight is None else x.weight
            nothing = like.new_zeros(x.pose.shape[1], x.parents, x.pose.shape[2])
            self._first = self.share(nothing)
        elif x.present is not None:
            self._first = torch.full_like(x.present[:1], self.uniform).unsqueeze(1).expand(1, x.parents, -1)

    def first(self, block: slice) -> Tensor | None:
        """Couplings of a block before anything is known; None for `uniform`."""
        if self._first is None:
            return None
        return self._first.repeat((block.stop - block.start) // len(self._first), 1, 1)

    def share(self, logits: Tensor) -> Tensor:
        """Softmax over the parents that compete for a child."""
        if self.windows is not None:
            windows = self.windows
            return among_links(logits, windows, lambda links: windows.share(links, self.leaky))
        if not self.leaky:
            return logits.softmax(dim=1)
        high = logits.amax(dim=1, keepdim=True).clamp(min=0.0)
        weight = (logits - high).exp_()
        return weight / (weight.sum(dim=1, keepdim=True) + (-high).exp())

    def share_backward(self, c: Tensor, grad: Tensor) -> Tensor:
        """From the gradient of `share` to that of its logits."""
        along = c * grad
        windows = self.windows
        if windows is None:
            return c * (grad - along.sum(dim=1, keepdim=True))
        return c * (grad - among_links(along, windows, windows.total))

    def masked(self, x: Tensor, block: slice) -> Tensor:
        """`x` where the child is there, else 0."""
        return x if self.present is None else x * self.present[block].to(x).unsqueeze(1)

    def mask(self, c: Tensor | None, block: slice) -> Tensor | None:
        """The same of couplings, which may be uniform."""
        return None if c is None else self.masked(c, block)


class _Blocks:
    """Votes of some samples and positions at a time, in memory that all share, so that no page is mapped twice."""

    def __init__(self, x: Problem) -> None:
        pose, weight, self.units = x.pose.detach(), x.weight, None
        like = pose if weight is None else weight
        most = limit(like.dtype, STEADY)
        if weight is None:
            pose, self.units = roomy(pose, most)
            self.rows = 1
        else:
            pose, weight, self.units = roomy_factors(pose, weight.detach())
            pose, weight = pose.to(weight.dtype), weight.contiguous()
            self.rows = pose.shape[-1] // weight.shape[3]
            self.flat = weight.view(len(weight), -1, weight.shape[3])  # [i, j x outer, inner]
        self.shift = None if x.shift is None else within(x.shift.detach(), most).transpose(0, 1)
        self.lead, self.pose, self.weight = pose.shape[:2], pose.flatten(0, 1), weight
        dim = pose.shape[-1] if weight is None else self.rows * weight.shape[2]
        self.shape = (x.parents, pose.shape[2], dim)
        most_bytes = BLOCK_BYTES if like.device.type == "cpu" else GPU_BLOCK_BYTES
        self.size = max(1, min(len(self.pose), most_bytes // max(1, math.prod(self.shape) * like.element_size())))
        self._by_child, self._votes, self._product = like.new_empty(3, self.size * math.prod(self.shape))
        self._made: slice | None = None

    def blocks(self) -> Iterator[list[slice]]:
        """Blocks of whole samples, each as the parts that its votes are made in."""
        (samples, positions), size = self.lead, self.size
        per_block = max(1, size // max(1, positions)) * positions
        for start in range(0, samples * positions, max(1, per_block)):
            stop = min(start + per_block, samples * positions)
            yield [slice(at, min(at + size, stop)) for at in range(start, stop, size)]

    def links(self, block: slice) -> tuple[int, int, int]:
        """n, j, i."""
        return block.stop - block.start, *self.shape[:2]

    def _view(self, buffer: Tensor, *shape: int) -> Tensor:
        return buffer[: math.prod(shape)].view(shape)

    def made(self, part: slice) -> Tensor:
        """Votes `[n, j, i, d]`: those for a parent lie together, as sums over children want it."""
        j, i, d = self.shape
        votes = self._view(self._votes, part.stop - part.start, j, i, d)
        if part == self._made:
            return votes
        self._made, pose = part, self.pose[part]
        if self.weight is None:
            return votes.copy_(pose.transpose(1, 2))
        by_child = self._view(self._by_child, i, len(pose) * self.rows, self.flat.shape[1])
        torch.bmm(self._matrices(pose), self.flat.transpose(1, 2), out=by_child)
        split = by_child.view(i, len(pose), self.rows, j, -1).permute(1, 3, 0, 2, 4)
        votes.view(split.shape).copy_(split)
        return votes if self.shift is None else votes.add_(self.shift)

    def _matrices(self, pose: Tensor) -> Tensor:
        """Poses as `[i, n x rows, inner]`."""
        return pose.transpose(0, 1).reshape(pose.shape[1], len(pose) * self.rows, -1)

    def agreement(self, votes: Tensor, parent: Tensor) -> Tensor:
        """<u_ij, parent_j>: `[n, j, i, d]`, `[n, j, d]` -> `[n, j, i]`."""
        product = self._view(self._product, *votes.shape)
        return torch.mul(votes, parent.unsqueeze(2), out=product).sum(dim=-1)

    def begin_gradients(self) -> None:
        """Make room for the gradients, in the layout of `pose` and `weight`."""
        self.grad_pose = torch.empty_like(self.pose, memory_format=torch.contiguous_format)
        self.grad_flat = None if self.weight is None else torch.zeros_like(self.flat)
        self.grad_shift = self.pose.new_zeros(self.shape, dtype=self.flat.dtype) if self.shift is not None else None

    def add_gradients(self, part: slice, factors: list[Tensor | float], against: Tensor) -> None:
        """What dL/du = sum over terms of factors `[n, j, i]` x against `[n, j, terms, d]` adds to them."""
        (j, i, d), n = self.shape, part.stop - part.start
        outer = self._view(self._product, n * j, i, d)
        stack = against.new_empty(n, j, i, len(factors))
        for term, factor in enumerate(factors):
            stack[..., term] = factor
        torch.bmm(stack.view(n * j, i, -1), against.view(n * j, -1, d), out=outer)
        product = outer.view(n, j, i, d)
        if self.grad_flat is None:
            self.grad_pose[part] = product.transpose(1, 2)
            return
        if self.grad_shift is not None:
            self.grad_shift += product.sum(dim=0)
        columns = self._view(self._by_child, i, n * self.rows, self.flat.shape[1])
        columns.view(i, n, self.rows, j, -1).copy_(product.view(n, j, i, self.rows, -1).permute(2, 0, 3, 1, 4))
        self.grad_pose[part] = torch.bmm(columns, self.flat).view(i, n, -1).transpose(0, 1)
        self.grad_flat.baddbmm_(columns.transpose(1, 2), self._matrices(self.pose[part]))

    def gradients(self, grad_bias: Tensor) -> list[Tensor]:
        """Of pose, weight, shift, present and bias."""
        pose = self.grad_pose.unflatten(0, self.lead)
        none = grad_bias.new_empty(0)
        return [
            pose if self.units is None else pose * self.units,
            none if self.grad_flat is None or self.weight is None else self.grad_flat.view_as(self.weight),
            none if self.grad_shift is None else self.grad_shift.transpose(0, 1),
            none, grad_bias,
        ]  # fmt: skip
