"""Routing by agreement in torch operations, a block of samples at a time.

The votes of a batch are never stored. Those of a block fit in the cache, unless one sample has
more; the backward pass computes them again. Letters as in `passes.py`; n samples of a block at all
positions.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torchcaps.functional.bounds import steady_limit
from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.passes import Problem, Work, make_operator, route
from torchcaps.kernels.numerics import bound_factors, rescale_samples
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.samples import block_bytes, by_samples
from torchcaps.kernels.support import (
    FULL_PRECISION,
    blocked_support,
    dtype_mismatch,
    needs_reference,
    padded_windows,
    recomputable,
)
from torchcaps.types import Routed


def supports(votes: Votes) -> Support:
    """Whether blocks of samples can route these votes."""
    if _runs_reference(votes):
        return recomputable(votes)
    reason = needs_reference(votes) or dtype_mismatch(
        votes, FULL_PRECISION, votes.children.pose.device
    )
    if reason is None and not votes.field.local and padded_windows(votes.field) is None:
        reason = f"parents of {type(votes.field).__name__} compete in a way of their own"
    return blocked_support(votes, reason)


def _runs_reference(votes: Votes) -> bool:
    """Whether the reference routes each block: the operator takes linear votes, not shifted."""
    if not isinstance(votes, ProductVotes):
        return False
    is_known_field = votes.field.local or padded_windows(votes.field) is not None
    return votes.rows > 1 or votes.shift is not None or not is_known_field


@fast_path("dynamic_routing", "blocked", supports, rank=20)
def run(votes: Votes, *, iterations: int, leaky: bool, detach: bool) -> Routed:
    """Routing by agreement of any votes."""
    if not _runs_reference(votes):
        return route(_dynamic_routing, votes, iterations, leaky, detach)

    def route_block(block: Votes) -> Routed:
        return dynamic_routing(block, iterations, leaky=leaky, detach=detach)

    return Routed(*by_samples(route_block, votes))


class _Blocks(Work):
    """Votes of some samples at a time, in buffers that all blocks share.

    Votes have the layout `[n, j, i, d]`, which suits sums over children, and couplings `[n, j, i]`.
    """

    def __init__(self, problem: Problem, backward: bool) -> None:
        self.leaky = problem.leaky
        self.detach = problem.detach
        self.field = problem.field
        self.num_terms = problem.num_terms if backward else 0
        self.weight = None
        if problem.weight is None:
            like = problem.pose
            self.pose, self.scale = rescale_samples(like, steady_limit(like.dtype))
            self.i, self.j, self.d = like.shape[1:]
        else:
            like = problem.weight
            pose, weight, self.scale = bound_factors(problem.pose, like)
            self.pose = pose.to(weight.dtype)
            self.i, self.j, self.d = weight.shape[:3]
            self.weight = weight.contiguous().flatten(1, 2)  # [i, j d, k]
            self.grad_weight = torch.zeros_like(self.weight) if backward else None

        self.num_positions = math.prod(self.field.positions)
        numbers = self.i * self.j * self.d
        sample_bytes = max(1, self.num_positions * numbers * like.element_size())
        batch = len(self.pose) // max(1, self.num_positions)
        self.size = self.num_positions * max(1, min(block_bytes(like) // sample_bytes, batch))
        self._child_buffer, self._vote_buffer = like.new_empty(2, self.size * numbers)
        zeros = like.new_zeros(self.num_positions, self.j, self.i)
        self._first_coupling = self._softmax(zeros)

    def blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.pose), self.size):
            block = slice(start, start + self.size)
            self.block_pose = by_child = self.pose[block]
            n = len(by_child)
            if self.weight is not None:
                products = torch.bmm(
                    by_child.transpose(0, 1), self.weight.transpose(1, 2), out=self._child_rows()
                )
                by_child = products.transpose(0, 1)
            numbers = n * self.i * self.j * self.d
            self.votes = self._vote_buffer[:numbers].view(n, self.j, self.i, self.d)
            self.votes.copy_(by_child.reshape(n, self.i, self.j, self.d).transpose(1, 2))
            # dL/du is a sum of products of these factors and vectors.
            self.factors = self.votes.new_empty(self.num_terms, n, self.j, self.i)
            self.vectors: list[Tensor] = []
            yield block

    def weighted_sums(self, V: Tensor | None, keep: bool) -> Tensor:
        self.c = self._couplings(V)
        return self._weigh(self.c)

    def coupling(self) -> Tensor:
        return self.c.transpose(1, 2)

    def pass_backward(
        self, V: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        c = self._couplings(V)
        self._add_term(c, grad_s)
        if V is None or self.detach:
            return None
        grad = self._agreement(grad_s)
        if grad_coupling is not None:
            grad += grad_coupling.transpose(1, 2)
        # From dL/dc to dL/db = c (dL/dc - sum of c dL/dc over competing parents), in place.
        links = self._as_links(grad.mul_(c))
        total = self.field.reduce_competing(links, Tensor.sum)
        links.addcmul_(self._as_links(c), total, value=-1)
        self._add_term(grad, V)
        return self._weigh(grad)

    def votes_backward(self) -> Tensor:
        factors = self.factors.flatten(1, 2).permute(1, 2, 0)
        vectors = torch.stack(self.vectors, dim=2).flatten(0, 1)
        grad = self.votes
        torch.bmm(factors, vectors, out=grad.flatten(0, 1))
        del self.factors, factors  # before those of the next block are made
        if self.weight is None or self.grad_weight is None:
            return grad.transpose(1, 2)
        rows = self._child_rows()
        rows.view(self.i, -1, self.j, self.d).copy_(grad.permute(2, 0, 1, 3))
        self.grad_weight.baddbmm_(rows.transpose(1, 2), self.block_pose.transpose(0, 1))
        return torch.bmm(rows, self.weight).transpose(0, 1)

    def _add_term(self, factor: Tensor, vector: Tensor) -> None:
        """Add a term of dL/du."""
        self.factors[len(self.vectors)] = factor
        self.vectors.append(vector)

    def _agreement(self, parent: Tensor) -> Tensor:
        """<u_ij, parent_j>: `[n, j, d]` -> `[n, j, i]`."""
        return torch.matmul(parent.unsqueeze(2), self.votes.transpose(2, 3)).squeeze(2)

    def _weigh(self, factors: Tensor) -> Tensor:
        """Sum over children of factor times vote: `[n, j, i]` -> `[n, j, d]`."""
        return torch.matmul(factors.unsqueeze(2), self.votes).squeeze(2)

    def _child_rows(self) -> Tensor:
        """The buffer of votes by child, `[i, n, j d]`."""
        n = len(self.block_pose)
        return self._child_buffer[: self.i * n * self.j * self.d].view(self.i, n, -1)

    def _couplings(self, V: Tensor | None) -> Tensor:
        """c of a pass, `[n, j, i]`."""
        if V is None:
            return self._first_coupling.repeat(len(self.block_pose) // self.num_positions, 1, 1)
        return self._softmax(self._agreement(V))

    def _softmax(self, logits: Tensor) -> Tensor:
        """Softmax over the parents that compete for a child."""
        if self.field.local and not self.leaky:
            return logits.softmax(dim=1)
        share = self.field.softmax(self._as_links(logits), self.leaky)
        return share.flatten(0, -3).transpose(1, 2)

    def _as_links(self, x: Tensor) -> Tensor:
        """`[n, j, i]` -> `[b, *positions, i, j]`, a view."""
        return x.transpose(1, 2).unflatten(0, (-1, *self.field.positions))


_dynamic_routing = make_operator("dynamic_routing_blocked", _Blocks)
