"""Routing by agreement in torch operations, a block of samples at a time.

`passes.py` has the equations, and runs the passes; here is what a pass computes on a block:

    b_ij = <u_ij, V_j>;  c_i = softmax over j of b_ij;  s_j = sum_i c_ij u_ij

where u_ij is the vote of child i for parent j and V_j the sum of the parents of the passes before.
The votes of a batch are never stored. Those of a block fit in the cache, unless one sample has
more; the backward pass computes them again.

Letters: b samples at all positions, n those of a block, i children, j parents, d and k dimensions
of a parent and of a child. A link is a pair of a child and a parent.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchcaps.functional.bounds import gradient_limit
from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.passes import Passes, Problem, define_route
from torchcaps.kernels.numerics import bound_factors, rescale_samples
from torchcaps.kernels.registry import fast_path
from torchcaps.kernels.samples import block_bytes, by_samples
from torchcaps.kernels.support import (
    BLOCKED,
    competes_apart,
    dtype_mismatch,
    needs_reference,
    not_recomputable,
    without_numbers,
)
from torchcaps.types import Routed


def obstacle(votes: Votes) -> str | None:
    """Why blocks of samples cannot route these votes."""
    if _runs_reference(votes):  # its votes are made again in the backward pass
        return not_recomputable(votes)
    # In turn: couplings that a pass does not give, types, other competition, and tensors on meta.
    reason = needs_reference(votes) or dtype_mismatch(votes, votes.children.pose.device)
    return reason or competes_apart(votes.field) or without_numbers(votes)


def _runs_reference(votes: Votes) -> bool:
    """Whether the reference routes each block of samples, because the passes here cannot.

    They take stored votes, and products of a vector and a matrix without a shift.
    """
    if not isinstance(votes, ProductVotes):
        return False
    return votes.rows > 1 or votes.shift is not None or competes_apart(votes.field) is not None


# Of the implementations of an operation, those of lower rank are tried first. BLOCKED is a sentence
# for users on what this one does.
@fast_path("dynamic_routing", "blocked", obstacle, rank=20, reason=BLOCKED)
def run(votes: Votes, **options: Any) -> Routed:
    """Routing by agreement of any votes; the implementation "blocked" of the operation.

    Args:
        votes: stored or lazy, of any field.
        options: iterations, leaky and detach; see `ops.dynamic_routing`.
    """
    if not _runs_reference(votes):
        return _route(votes, **options)
    return Routed._make(by_samples(partial(dynamic_routing, **options), votes))


class _BlockedPasses(Passes):
    """Passes on the votes of some samples at a time, in buffers that all blocks share.

    Votes have the layout `[n, j, i, d]`, which suits sums over children, and couplings `[n, j, i]`.
    The gradient of the votes is a sum of terms factor times vector, of all passes:

        dL/du_ij = sum over passes of c_ij dL/ds_j + dL/db_ij V_j

    The backward pass collects factors `[n, j, i]` and vectors `[n, j, d]`. It multiplies them once.

    Attributes:
        pose: poses `[b, i, k]`, or votes `[b, i, j, d]` if there is no weight; bounded.
        scale: factor of the gradients of the poses, or None; see `rescale_samples`.
        weight: `[i, j d, k]`, or None.
        num_positions: positions of a sample.
        size: samples of a block, times positions.
        num_terms: terms of dL/du.
        votes, factors, vectors: of the block; see above.
        c: couplings of the last pass of the block.
    """

    def __init__(self, problem: Problem, backward: bool) -> None:
        self.leaky = problem.leaky
        self.detach = problem.detach
        self.field = problem.field
        # One term of the first pass, two of each later one.
        num_terms = 1 if problem.detach else 2 * problem.iterations - 1
        self.num_terms = num_terms if backward else 0
        self.weight = None
        if problem.weight is None:
            like = problem.pose
            # Within the limit, products of votes in the passes and their gradients are finite.
            self.pose, self.scale = rescale_samples(like, gradient_limit(like.dtype))
            self.children, self.parents, self.dim = like.shape[1:]
        else:
            like = problem.weight
            # The same of poses and weights, whose products are the votes.
            pose, weight, self.scale = bound_factors(problem.pose, like)
            self.pose = pose.to(weight.dtype)
            self.children, self.parents, self.dim = weight.shape[:3]
            self.weight = weight.contiguous().flatten(1, 2)
            self.grad_weight = torch.zeros_like(self.weight) if backward else None

        # As many samples in a block as fit into its bytes, and at least one.
        self.num_positions = math.prod(self.field.positions)
        numbers = self.children * self.parents * self.dim
        sample_bytes = max(1, self.num_positions * numbers * like.element_size())
        batch = len(self.pose) // max(1, self.num_positions)
        block_samples = max(1, min(block_bytes(like) // sample_bytes, batch))
        self.size = self.num_positions * block_samples
        self._child_buffer, self._vote_buffer = like.new_empty(2, self.size * numbers)
        zeros = like.new_zeros(self.num_positions, self.parents, self.children)
        self._first_coupling = self._softmax(zeros)

    def blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.pose), self.size):
            block = slice(start, start + self.size)
            self.block_pose = self.pose[block]
            by_child = self._compute_votes()
            n = len(by_child)
            numbers = n * self.children * self.parents * self.dim
            buffer = self._vote_buffer[:numbers]
            self.votes = buffer.view(n, self.parents, self.children, self.dim)
            self.votes.copy_(by_child.transpose(1, 2))
            self.factors = self.votes.new_empty(self.num_terms, n, self.parents, self.children)
            self.vectors: list[Tensor] = []
            yield block

    def _compute_votes(self) -> Tensor:
        """Votes of the block by child, `[n, i, j, d]`."""
        votes = self.block_pose
        if self.weight is not None:
            pose = self.block_pose.transpose(0, 1)  # [i, n, k]
            products = torch.bmm(pose, self.weight.transpose(1, 2), out=self._child_rows())
            votes = products.transpose(0, 1)
        return votes.reshape(len(votes), self.children, self.parents, self.dim)

    def weighted_sums(self, V: Tensor | None) -> Tensor:
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
        grad_c = self._agreement(grad_s)
        if grad_coupling is not None:
            grad_c += grad_coupling.transpose(1, 2)
        # dL/db = c dL/dc - c (sum of c dL/dc over competing parents), in the memory of dL/dc.
        grad_b = grad_c.mul_(c)
        links = self._as_links(grad_b)
        total = self.field.reduce_competing(links, Tensor.sum)
        links.addcmul_(self._as_links(c), total, value=-1)
        self._add_term(grad_b, V)
        return self._weigh(grad_b)

    def votes_backward(self) -> Tensor:
        factors = self.factors.flatten(1, 2).permute(1, 2, 0)  # [n j, i, terms]
        vectors = torch.stack(self.vectors, dim=2).flatten(0, 1)  # [n j, terms, d]
        grad_votes = self.votes  # in the memory of the votes, [n, j, i, d]
        torch.bmm(factors, vectors, out=grad_votes.flatten(0, 1))
        del self.factors, factors  # before those of the next block are made
        if self.weight is None or self.grad_weight is None:
            return grad_votes.transpose(1, 2)
        rows = self._child_rows()
        by_child = rows.view(self.children, -1, self.parents, self.dim)
        by_child.copy_(grad_votes.permute(2, 0, 1, 3))
        self.grad_weight.baddbmm_(rows.transpose(1, 2), self.block_pose.transpose(0, 1))
        return torch.bmm(rows, self.weight).transpose(0, 1)

    def _add_term(self, factor: Tensor, vector: Tensor) -> None:
        """Add the term factor `[n, j, i]` times vector `[n, j, d]` to dL/du."""
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
        numbers = self.children * n * self.parents * self.dim
        return self._child_buffer[:numbers].view(self.children, n, -1)

    def _couplings(self, V: Tensor | None) -> Tensor:
        """c of a pass, `[n, j, i]`; V is None in the first pass, whose logits are zero."""
        if V is None:
            num_samples = len(self.block_pose) // self.num_positions
            return self._first_coupling.repeat(num_samples, 1, 1)
        return self._softmax(self._agreement(V))

    def _softmax(self, logits: Tensor) -> Tensor:
        """Softmax of `[n, j, i]` over the parents that compete for a child.

        If leaky, one more parent of logit zero competes for each child. Unless the field is local,
        parents at several positions compete.
        """
        if self.field.local and not self.leaky:
            return logits.softmax(dim=1)
        coupling = self.field.softmax(self._as_links(logits), self.leaky)
        return coupling.flatten(0, -3).transpose(1, 2)

    def _as_links(self, x: Tensor) -> Tensor:
        """`[n, j, i]` -> `[b, *positions, i, j]`, a view."""
        return x.transpose(1, 2).unflatten(0, (-1, *self.field.positions))


_route = define_route("blocked", _BlockedPasses)
