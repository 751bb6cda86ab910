"""Routing by agreement in torch operations, a block of samples at a time, with recomputation in the backward pass.

The votes of a batch are never stored. Those of a block lie in the cache; where one sample has more, as in a
convolution, they are made anew, part by part, whenever they are needed, and its couplings alone are kept. After t
passes the logits are <u, V_t>, V_t being the sum of the first t parents, so the s of each pass is all that the backward
pass needs. Letters: n samples x positions, i children, j parents, d and k dimensions of a vote and a child; t the pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import STEADY, limit
from torchcaps.functional.fields import Everything, Windows
from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.squash import squash, squash_with_length
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.linear import outcome
from torchcaps.kernels.fields import padded_windows
from torchcaps.kernels.numerics import roomy, roomy_factors, squash_backward
from torchcaps.kernels.operator import Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.samples import block_bytes, by_samples
from torchcaps.kernels.support import FULL, made_anew, unfit, watched
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
    convention: str
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
        return by_samples(lambda part: dynamic_routing(part, iterations, leaky=leaky, detach=detach), votes)
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
    votes, rivals = _Votes(x), _Rivals(x)
    for parts in votes.blocks(rivals.positions):
        c = _route_block(x, votes, rivals, parts, sums)
        if x.want_coupling:
            coupling[_whole(parts)] = rivals.uniform if c is None else c.transpose(1, 2)
    return *squash_with_length(sums[-1]), coupling, sums


def _backward(
    x: Problem, kept: Sequence[Tensor], grads: Sequence[Tensor], wanted: Sequence[bool]
) -> Sequence[Tensor | None]:
    del wanted  # each is made on the way to the others
    (sums,), (grad_v, grad_length, grad_coupling) = kept, grads
    votes, rivals = _Votes(x), _Rivals(x)
    gradients, grad_bias = _Gradients(votes), sums.new_zeros(sums.shape[2:])
    for parts in votes.blocks(rivals.positions):
        block = _whole(parts)
        outer = grad_coupling[block].transpose(1, 2) if x.want_coupling else None
        terms = _terms(x, votes, rivals, parts, sums[:, block], grad_v[block], grad_length[block], outer)
        for part in parts:
            here = _within(part, block)
            factors = [f[here] if isinstance(f, Tensor) else f for f, _ in terms]
            gradients.add(part, factors, torch.stack([vector[here] for _, vector in terms], dim=2))
        for _, grad_s in terms[::2]:
            grad_bias += grad_s.sum(dim=0)
        del terms, factors  # those of the next block are made in their memory
    return *gradients.made(), grad_bias


_routed = operator("dynamic_routing_blocked", Problem, 4, Parts(_forward, _backward, _shapes, kept=1))

_Term = tuple[Tensor | float, Tensor]  # of dL/du: factors `[n, j, i]` of vectors `[n, j, d]`


def _route_block(x: Problem, votes: _Votes, rivals: _Rivals, parts: list[slice], sums: Tensor) -> Tensor | None:
    """Write the s of each pass; returns the last coupling `[n, j, i]`, None for one that is uniform."""
    block = _whole(parts)
    reached, c = torch.zeros_like(sums[0, block]), rivals.first(block)
    for t in range(x.iterations):
        more = t + 1 < x.iterations
        logits = reached.new_empty(votes.links(block)) if more else None
        for part in parts:
            here, u = _within(part, block), votes.of(part)
            s = u.sum(dim=2).mul_(rivals.uniform) if c is None else _weighted(u, c[here])
            sums[t, part] = s if x.bias is None else s.add_(x.bias)
            if logits is not None:
                reached[here] += squash(s)
                logits[here] = votes.agreement(u, reached[here])
        if logits is not None:
            c = rivals.share(logits)
    return c


def _terms(
    x: Problem, votes: _Votes, rivals: _Rivals, parts: list[slice], sums: Tensor, grad_v: Tensor, grad_length: Tensor,
    grad_coupling: Tensor | None,
) -> list[_Term]:  # fmt: skip
    """A block's dL/du as a sum of products: c and dL/ds, dL/dlogits and the sum of parents before, and so on."""
    block, last = _whole(parts), x.iterations - 1
    reached, grad_parent = squash(sums).cumsum(dim=0), torch.zeros_like(sums)  # dL/dv_t, filled from later passes
    grad_parent[last] = grad_v
    terms: list[_Term] = []
    for t in range(last, -1, -1):
        grad_s = squash_backward(sums[t], grad_parent[t], grad_length if t == last else None)
        if t == 0:
            first = rivals.first(block)
            terms.append((rivals.uniform if first is None else first, grad_s))
            break
        logits, grad_c = sums.new_empty(2, *votes.links(block))
        for part in parts:
            here, u = _within(part, block), votes.of(part)
            logits[here] = votes.agreement(u, reached[t - 1, here])
            if not x.detach:
                grad_c[here] = votes.agreement(u, grad_s[here])
        c = rivals.share(logits)
        terms.append((c, grad_s))
        if x.detach:
            break
        if t == last and grad_coupling is not None:
            grad_c += grad_coupling
        grad_logits = rivals.share_backward(c, grad_c)
        terms.append((grad_logits, reached[t - 1]))
        for part in reversed(parts):  # the votes of the last are still there
            here = _within(part, block)
            grad_parent[:t, here] += _weighted(votes.of(part), grad_logits[here])
    return terms


def _weighted(votes: Tensor, factors: Tensor) -> Tensor:
    """Sum over children of votes `[n, j, i, d]` times their factors `[n, j, i]`."""
    n, j, i, d = votes.shape
    return torch.bmm(factors.reshape(n * j, 1, i), votes.view(n * j, i, d)).view(n, j, d)


def _whole(parts: list[slice]) -> slice:
    return slice(parts[0].start, parts[-1].stop)


def _within(part: slice, block: slice) -> slice:
    return slice(part.start - block.start, part.stop - block.start)


class _Rivals:
    """The parents that compete for a child, in the layout `[n, j, i]`: sums of a softmax run along outer axes."""

    def __init__(self, x: Problem) -> None:
        _, _, coupling, sums = _shapes(x._replace(pose=x.pose[:1], want_coupling=True))
        self.uniform = 1.0 / (coupling.shape[2] + x.leaky)
        self.leaky = x.leaky
        self.windows = Windows(*x.windows, 0, x.convention) if x.windows else None  # type: ignore
        self.field = self.windows or Everything()
        self.positions = math.prod(self.field.positions)
        nothing = sums.new_zeros(self.positions, coupling.shape[2], coupling.shape[1])
        self._first = self.share(nothing) if self.windows else None

    def first(self, block: slice) -> Tensor | None:
        """Couplings of a block before anything is known; None for `uniform`."""
        samples = (block.stop - block.start) // self.positions
        return None if self._first is None else self._first.repeat(samples, 1, 1)

    def share(self, logits: Tensor) -> Tensor:
        """Softmax over the parents that compete for a child; may take the place of the logits."""
        if self.windows is None and not self.leaky:
            return logits.softmax(dim=1)
        links = self._links(logits)
        high = self.field.most(links).clamp(min=0.0) if self.leaky else self.field.most(links)
        total = self.field.total(links.sub_(high).exp_())
        links.div_(total + (-high).exp() if self.leaky else total)
        return logits

    def share_backward(self, c: Tensor, grad: Tensor) -> Tensor:
        """From the gradient of `share`, in its place, to that of its logits."""
        links = self._links(grad.mul_(c))
        links.addcmul_(self._links(c), self.field.total(links), value=-1)
        return grad

    def _links(self, x: Tensor) -> Tensor:
        """`[b, *positions, i, j]`."""
        links = x.transpose(1, 2)
        return links if self.windows is None else links.unflatten(0, (-1, *self.windows.positions))


class _Votes:
    """Votes of some samples and positions at a time, in memory that all share, so that no page is mapped twice."""

    def __init__(self, x: Problem) -> None:
        self.pose, self.weight, self.units = x.pose, x.weight, None
        if x.weight is None:
            self.pose, self.units = roomy(x.pose, limit(x.pose.dtype, STEADY))
            i, j, d = x.pose.shape[1:]
            like = x.pose
        else:
            self.pose, weight, self.units = roomy_factors(x.pose, x.weight)
            self.pose, like = self.pose.to(weight.dtype), weight.contiguous()
            i, j, d, k = like.shape
            self.weight = like.view(i, j * d, k)
        self.shape, self.like = (j, i, d), like
        per_row = j * i * d
        self.size = max(1, min(len(self.pose), block_bytes(like) // max(1, per_row * like.element_size())))
        self._by_child, self._votes, self._product = like.new_empty(3, self.size * per_row)
        self._made: slice | None = None

    def blocks(self, positions: int) -> Iterator[list[slice]]:
        """Blocks of whole samples, each as the parts that its votes are made in."""
        size, per_block = self.size, max(1, self.size // positions) * positions
        for start in range(0, len(self.pose), per_block):
            stop = min(start + per_block, len(self.pose))
            yield [slice(at, min(at + size, stop)) for at in range(start, stop, size)]

    def links(self, block: slice) -> tuple[int, int, int]:
        """n, j, i."""
        return block.stop - block.start, *self.shape[:2]

    def of(self, part: slice) -> Tensor:
        """Votes `[n, j, i, d]`: those for a parent lie together, as sums over children want it."""
        (j, i, d), pose = self.shape, self.pose[part]
        votes = self._votes[: len(pose) * j * i * d].view(-1, j, i, d)
        if part != self._made:
            self._made, by_child = part, pose
            if self.weight is not None:
                by_child = self.by_child(len(pose))
                torch.bmm(pose.transpose(0, 1), self.weight.transpose(1, 2), out=by_child)
                by_child = by_child.view(i, -1, j, d).transpose(0, 1)
            votes.copy_(by_child.transpose(1, 2))
        return votes

    def by_child(self, n: int) -> Tensor:
        """Memory for a number of each vote, `[i, n, j d]`."""
        j, i, d = self.shape
        return self._by_child[: i * n * j * d].view(i, n, j * d)

    def product(self, n: int) -> Tensor:
        """Memory for a number of each vote, `[n, j, i, d]`."""
        return self._product[: n * math.prod(self.shape)].view(n, *self.shape)

    def agreement(self, votes: Tensor, parent: Tensor) -> Tensor:
        """<u_ij, parent_j>: `[n, j, i, d]`, `[n, j, d]` -> `[n, j, i]`."""
        return torch.mul(votes, parent.unsqueeze(2), out=self.product(len(votes))).sum(dim=-1)


class _Gradients:
    """Gradients of poses and weights, from those of votes."""

    def __init__(self, votes: _Votes) -> None:
        self.votes = votes
        self.pose = torch.empty_like(votes.pose, memory_format=torch.contiguous_format)
        self.weight = None if votes.weight is None else torch.zeros_like(votes.weight)

    def add(self, part: slice, factors: list[Tensor | float], against: Tensor) -> None:
        """What dL/du = sum over terms of factors `[n, j, i]` x against `[n, j, terms, d]` adds to them."""
        (j, i, d), votes, n = self.votes.shape, self.votes, len(against)
        stack, product = against.new_empty(n, j, i, len(factors)), votes.product(n)
        for term, factor in enumerate(factors):
            stack[..., term] = factor
        torch.bmm(stack.view(n * j, i, -1), against.view(n * j, -1, d), out=product.view(n * j, i, d))
        if self.weight is None or votes.weight is None:
            self.pose[part] = product.transpose(1, 2)
            return
        columns = votes.by_child(n)
        columns.view(i, n, j, d).copy_(product.permute(2, 0, 1, 3))
        self.pose[part] = torch.bmm(columns, votes.weight).transpose(0, 1)
        self.weight.baddbmm_(columns.transpose(1, 2), votes.pose[part].transpose(0, 1))

    def made(self) -> tuple[Tensor, Tensor | None]:
        """Of the pose, or the votes, and of the weight."""
        pose = self.pose if self.votes.units is None else self.pose * self.votes.units
        return pose, None if self.weight is None else self.weight.view_as(self.votes.like)
