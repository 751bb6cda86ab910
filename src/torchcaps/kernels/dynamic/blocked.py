"""Routing by agreement in torch operations, a block of samples at a time, with recomputation in the backward pass.

The votes of a batch are never stored. Those of a block lie in the cache, unless one sample has more. Letters as in
`passes.py`; n samples x positions.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torchcaps.functional.bounds import steady_limit
from torchcaps.functional.fields import ConvField, DenseField, Field
from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.passes import Problem, Work, implementation, route
from torchcaps.kernels.numerics import rescale, rescale_factors
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.samples import block_bytes, by_samples
from torchcaps.kernels.support import (
    FULL,
    dtype_mismatch,
    in_blocks,
    needs_reference,
    padded_windows,
    recomputable,
)
from torchcaps.types import Routed


def supports(votes: Votes) -> Support:
    """Whether blocks of samples can take these votes."""
    if _by_reference(votes):
        return recomputable(votes)
    reason = needs_reference(votes) or dtype_mismatch(votes, FULL, votes.children.pose.device)
    if reason is None and not votes.field.local and padded_windows(votes.field) is None:
        reason = f"parents of {type(votes.field).__name__} compete in a way of their own"
    return in_blocks(votes, reason)


def _by_reference(votes: Votes) -> bool:
    """Whether these votes are no products of vectors and matrices alone, or compete in a way of their own."""
    alone = votes.field.local or padded_windows(votes.field)
    return isinstance(votes, ProductVotes) and (
        votes.rows > 1 or votes.shift is not None or not alone
    )


@fast_path("dynamic_routing", "blocked", supports, rank=20)
def run(votes: Votes, *, iterations: int, leaky: bool, detach: bool) -> Routed:
    """Routing by agreement of any votes."""
    if _by_reference(votes):
        return Routed(
            *by_samples(
                lambda part: dynamic_routing(part, iterations, leaky=leaky, detach=detach), votes
            )
        )
    return route(_routed, votes, iterations, leaky, detach)


class _Blocks(Work):
    """Votes of some samples at a time, in memory that all share, so that no page is mapped twice; and their rivalry.

    Votes have the layout `[n, j, i, d]`, as sums over children want it, and couplings `[n, j, i]`: sums of a softmax
    run along outer axes.
    """

    def __init__(self, x: Problem, backward: bool) -> None:
        self.leaky, self.detach, self.terms, self.weight = (
            x.leaky,
            x.detach,
            x.terms * backward,
            None,
        )
        if x.weight is None:
            self.pose, self.units = rescale(x.pose, steady_limit(x.pose.dtype))
            sizes, like = x.pose.shape[1:], x.pose
        else:
            pose, weight, self.units = rescale_factors(x.pose, x.weight)
            self.pose, like, sizes = pose.to(weight.dtype), weight, weight.shape
            self.weight = weight.contiguous().flatten(1, 2)  # [i, j d, k]
            self.grad_weight = torch.zeros_like(self.weight) if backward else None
        self.i, self.j, self.d = sizes[:3]
        self.field: Field = DenseField()
        if x.windows:
            height, width, kernel, stride = x.windows
            self.field = ConvField(height, width, kernel, stride, convention=x.convention)
        self.positions, each = math.prod(self.field.positions), self.i * self.j * self.d
        samples = block_bytes(like) // max(1, self.positions * each * like.element_size())
        self.size = self.positions * max(1, min(samples, len(self.pose) // max(1, self.positions)))
        self._by_child, self._votes = like.new_empty(2, self.size * each)
        self._first = self._share(like.new_zeros(self.positions, self.j, self.i))

    def blocks(self) -> Iterator[slice]:
        for block in (slice(at, at + self.size) for at in range(0, len(self.pose), self.size)):
            self.here = by_child = self.pose[block]
            n = len(self.here)
            self.votes = self._votes[: n * self.i * self.j * self.d].view(n, self.j, self.i, self.d)
            if self.weight is not None:
                weight = self.weight.transpose(1, 2)
                by_child = torch.bmm(
                    self.here.transpose(0, 1), weight, out=self._columns()
                ).transpose(0, 1)
            self.votes.copy_(by_child.reshape(n, self.i, self.j, self.d).transpose(1, 2))
            self.factors, self.against = (
                self._votes.new_empty(self.terms, n, self.j, self.i),
                list[Tensor](),
            )
            yield block

    def sums(self, reached: Tensor | None, keep: bool) -> Tensor:
        self.c = self._couplings(reached)
        return self._weighted(self.c)

    def coupling(self) -> Tensor:
        return self.c.transpose(1, 2)

    def back(
        self, reached: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        c = self._couplings(reached)
        self._add(c, grad_s)
        if reached is None or self.detach:
            return None
        grad = self._agreement(grad_s)
        if grad_coupling is not None:
            grad += grad_coupling.transpose(1, 2)
        links = self._links(
            grad.mul_(c)
        )  # from the gradient of a softmax, in its place, to that of its logits
        links.addcmul_(self._links(c), self.field.reduce_competing(links, Tensor.sum), value=-1)
        self._add(grad, reached)
        return self._weighted(grad)

    def spread(self) -> Tensor:
        factors, grad = self.factors.flatten(1, 2).permute(1, 2, 0), self.votes
        torch.bmm(factors, torch.stack(self.against, dim=2).flatten(0, 1), out=grad.flatten(0, 1))
        del self.factors, factors  # before those of the next block are made
        if self.weight is None or self.grad_weight is None:
            return grad.transpose(1, 2)
        columns = self._columns()
        columns.view(self.i, -1, self.j, self.d).copy_(grad.permute(2, 0, 1, 3))
        self.grad_weight.baddbmm_(columns.transpose(1, 2), self.here.transpose(0, 1))
        return torch.bmm(columns, self.weight).transpose(0, 1)

    def _add(self, factor: Tensor, vector: Tensor) -> None:
        self.factors[len(self.against)] = factor
        self.against.append(vector)

    def _agreement(self, parent: Tensor) -> Tensor:
        """<u_ij, parent_j>: `[n, j, d]` -> `[n, j, i]`."""
        return torch.matmul(parent.unsqueeze(2), self.votes.transpose(2, 3)).squeeze(2)

    def _weighted(self, factors: Tensor) -> Tensor:
        """Sum over children of votes times their factors `[n, j, i]`."""
        return torch.matmul(factors.unsqueeze(2), self.votes).squeeze(2)

    def _columns(self) -> Tensor:
        """Memory for a number of each vote, `[i, n, j d]`."""
        n = len(self.here)
        return self._by_child[: self.i * n * self.j * self.d].view(self.i, n, -1)

    def _couplings(self, reached: Tensor | None) -> Tensor:
        if reached is None:
            return self._first.repeat(len(self.here) // self.positions, 1, 1)
        return self._share(self._agreement(reached))

    def _share(self, logits: Tensor) -> Tensor:
        """Softmax over the parents that compete for a child."""
        if self.field.local and not self.leaky:
            return logits.softmax(dim=1)
        return self.field.softmax(self._links(logits), self.leaky).flatten(0, -3).transpose(1, 2)

    def _links(self, x: Tensor) -> Tensor:
        """`[b, *positions, i, j]`."""
        return x.transpose(1, 2).unflatten(0, (-1, *self.field.positions))


_routed = implementation("dynamic_routing_blocked", _Blocks)
