"""Routing by agreement on a CPU in compiled loops; no vote is stored.

The loops are in `_loops.py`, which needs numba and is imported at the first call. Letters as there,
and b, all samples.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchcaps.kernels.dynamic.passes import Passes, Problem, define_route, not_linear
from torchcaps.kernels.lanes import BLOCK, LANES, as_arrays, by_lane, by_sample, parallel_for
from torchcaps.kernels.numerics import bound_factors
from torchcaps.kernels.registry import fast_path
from torchcaps.kernels.support import HAS_NUMBA, NO_NUMBA, dtype_mismatch

# Numbers in all votes below which the loops gain less time than their compilation takes.
MIN_NUMBERS = 1 << 22
# Dimensions of a parent and of a child up to which the loops over them are unrolled.
MAX_DIM = 32


def obstacle(votes: Any) -> str | None:
    """Why the compiled loops cannot route these votes."""
    reason = not_linear(votes) if HAS_NUMBA else NO_NUMBA
    reason = reason or dtype_mismatch(votes, torch.device("cpu"))
    if reason is None and max(votes.weight.shape[2:]) > MAX_DIM:
        return f"a capsule has more than {MAX_DIM} dimensions"
    return reason


def drawback(votes: Any) -> str | None:
    """Why other implementations are better for these votes."""
    batch = votes.activation.shape[:-1].numel()
    if batch < LANES:
        return f"fewer than {LANES} samples at all positions leave a part of each loop empty"
    if batch * votes.count * votes.parents * votes.dim < MIN_NUMBERS:
        return f"fewer than {MIN_NUMBERS} numbers in all votes do not pay for compiling loops"
    return None


class _LoopPasses(Passes):
    """All samples at once, LANES of them in a group.

    Attributes:
        pose: `[b, i, k]`, bounded.
        weight: `[i, j, d, k]`, bounded.
        num_blocks: blocks of children.
        uniform: coupling of the first pass.
        c: coupling of the last pass `[g, i, j, n]`.
        terms: of dL/du, each a factor `[g, i, j, n]` and a vector `[b, j, d]`.
    """

    def __init__(self, problem: Problem, backward: bool) -> None:
        weight: Any = problem.weight
        pose, weight, self.scale = bound_factors(problem.pose.detach(), weight.detach())
        self.pose = pose.to(weight.dtype)
        self.weight = weight
        self.detach = problem.detach
        self.num_blocks = -(-len(weight) // BLOCK)
        self.uniform = 1.0 / (weight.shape[1] + problem.leaky)
        self.layer = (
            (0,) * weight.shape[3],
            (0,) * weight.shape[2],
            problem.leaky,
            by_lane(self.pose),
            weight,
        )
        self.terms: list[tuple[Tensor, Tensor]] = []

    def blocks(self) -> Iterator[slice]:
        yield slice(None)

    def weighted_sums(self, V: Tensor | None) -> Tensor:
        self.c = self._new_links()
        if V is None:
            self.c.fill_(self.uniform)
            return torch.einsum("bik,ijdk->bjd", self.pose, self.weight) * self.uniform
        return self._sum("forward_pass", by_lane(V), self.c)

    def coupling(self) -> Tensor:
        return by_sample(self.c, len(self.pose))

    def pass_backward(
        self, V: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        """Adds terms of dL/du_ij, the sum over passes of c_ij dL/ds_j + dL/db_ij V_j."""
        c = self._new_links()
        self.terms.append((c, grad_s))
        if V is None:
            c.fill_(self.uniform)
            return None
        if self.detach:
            self._sum("forward_pass", by_lane(V), c)
            return None
        grad_b = self._new_links()
        self.terms.append((grad_b, V))
        outer = c.new_empty(0, 1, 1, LANES) if grad_coupling is None else by_lane(grad_coupling)
        return self._sum("backward_pass", by_lane(V), by_lane(grad_s), outer, c, grad_b)

    def votes_backward(self) -> Tensor:
        children, parents, dim, inner = self.weight.shape
        factors = torch.stack([factor for factor, _ in self.terms])
        vectors = torch.stack([by_lane(vector) for _, vector in self.terms])
        grad_pose = factors.new_empty(factors.shape[1], children, inner, LANES)
        grad_weight = factors.new_empty(children, inner, parents * dim)
        self._run(
            "votes_backward",
            (0,) * len(factors),
            factors,
            vectors,
            vectors.movedim(-1, 2),
            grad_pose,
            grad_weight,
        )
        self.grad_weight = grad_weight.transpose(1, 2).contiguous()
        return by_sample(grad_pose, len(self.pose))

    def _new_links(self) -> Tensor:
        """Memory for a number of each link, `[g, i, j, n]`."""
        num_groups = -(-len(self.pose) // LANES)
        return self.pose.new_empty(num_groups, *self.weight.shape[:2], LANES)

    def _sum(self, name: str, V: Tensor, *arguments: Tensor) -> Tensor:
        """Run a pass with V by lane and its other arguments; returns its sums `[b, j, d]`."""
        sums = V.new_empty(self.num_blocks, *V.shape)
        self._run(name, V, *arguments, sums)
        return by_sample(sums.sum(dim=0), len(self.pose))

    def _run(self, name: str, *arguments: Any) -> None:
        """Run a loop of `_loops.py` on all blocks of children, by as many threads as torch uses."""
        from torchcaps.kernels.dynamic import _loops  # importing numba takes half a second

        layer = _loops.Layer._make(as_arrays(self.layer))
        parallel_for(getattr(_loops, name), self.num_blocks, layer, *as_arrays(arguments))


# Of the implementations of an operation, those of lower rank are tried first.
fast_path(
    "dynamic_routing",
    "numba",
    obstacle,
    rank=10,
    reason="compiled loops: votes are computed where they are used, never stored",
    drawback=drawback,
)(define_route("numba", _LoopPasses))
