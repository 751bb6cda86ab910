"""Votes and routing by agreement in compiled loops: votes are recomputed where they are needed and never stored.

Samples are laid out in groups of LANES, one to each lane of a vector register (see `_loops.py`, which needs numba and
is imported at the first call). Threads take groups as they become free, and every sum is made by one of them in one
order. Backward, per block of samples: the passes anew, last to first, keeping c and dL/db of each; then, child by
child, dL/du of all samples, which becomes the gradient of their poses and of the child's weights before it leaves the
cache. Letters as in `passes.py`; g groups.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.passes import Problem, Work, implementation, other_votes, route
from torchcaps.kernels.numerics import rescale_factors
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.simd.lanes import BLOCK, LANES, by_lane, by_sample, flat, parallel_for
from torchcaps.kernels.support import FULL, HAS_NUMBA, NO_NUMBA, dtype_mismatch
from torchcaps.types import Routed

# Couplings and gradients of logits of a block of samples, in bytes.
FACTORS_BYTES = 24 << 20
# Weights below which compiled loops gain less than the seconds that compiling them takes.
WORTH = 1 << 16


def supports(votes: Votes) -> Support:
    """Whether the compiled loops can take these votes."""
    reason = (
        NO_NUMBA
        if not HAS_NUMBA
        else other_votes(votes) or dtype_mismatch(votes, FULL, torch.device("cpu"))
    )
    if reason is not None or not isinstance(votes, ProductVotes):
        return Support(False, reason or "the votes are given")
    used = votes.weight.numel() * math.prod(votes.field.positions)
    if used < WORTH:
        return Support(
            True, f"fewer than {WORTH} weights do not pay for compiling loops", worth_it=False
        )
    return Support(
        True, "compiled loops: votes are recomputed in a core's own cache and never stored"
    )


@fast_path("dynamic_routing", "numba", supports, rank=10)
def run(votes: Votes, *, iterations: int, leaky: bool, detach: bool) -> Routed:
    """Routing by agreement of linear votes."""
    return route(_routed, votes, iterations, leaky, detach)


class _Loops(Work):
    """A block of samples before the compiled loops: all of them, or in the backward pass as many as FACTORS_BYTES hold.

    dL/du is dL/ds of the first pass, times its coupling, and a sum of products of factors and vectors. Factors: c and
    dL/db `[g, i, j, LANES]` of each later pass, last first (with `detach` c of the last alone); vectors
    `[n, g, j, d, LANES]`: dL/ds, then the sum of earlier parents.
    """

    def __init__(self, x: Problem, backward: bool) -> None:
        weight: Any = x.weight
        pose, weight, self.units = rescale_factors(x.pose, weight)
        self.dim, more = weight.shape[-1], -weight.shape[-1] % BLOCK
        self.all, self.weight = (
            F.pad(of, (0, more)) if more else of.contiguous() for of in (pose, weight)
        )
        self.leaky, self.detach = x.leaky, x.detach
        self.uniform = 1.0 / (weight.shape[1] + x.leaky)
        if backward:
            self.whole_grad = torch.zeros_like(self.weight)
            self.grad_weight = self.whole_grad[..., : self.dim]
        self.later = (int(x.iterations > 1) if x.detach else x.terms - 1) * backward
        per_group = max(
            1, 2 * (x.iterations - 1) * math.prod(weight.shape[:2]) * LANES * weight.element_size()
        )
        groups = max(torch.get_num_threads(), FACTORS_BYTES // per_group)
        self.size = LANES * groups if backward else max(1, len(pose))

    def blocks(self) -> Iterator[slice]:
        for block in (slice(at, at + self.size) for at in range(0, len(self.all), self.size)):
            self.pose, self.batch = (
                by_lane(self.all[block], self.weight.dtype),
                len(self.all[block]),
            )
            self.kept, self.used = self.weight.new_empty(0), 0
            if self.grad_weight is not None:
                self.pairs = math.prod((len(self.pose), *self.weight.shape[:2], LANES))
                self.factors = self.weight.new_empty(self.later * self.pairs)
                self.against = self.weight.new_zeros((1 + self.later, *self._parents().shape))
            yield block

    def sums(self, reached: Tensor | None, keep: bool) -> Tensor:
        sums = self._parents()
        if reached is None:
            self._run("uniform_pass", len(self.pose), self.pose, self.weight, sums)
            return by_sample(sums, self.batch) * self.uniform
        if keep:
            self.kept = self.weight.new_empty((len(self.pose), *self.weight.shape[:2], LANES))
        return self._routed(reached, sums, self.kept)

    def coupling(self) -> Tensor:
        if self.kept.numel():
            return by_sample(self.kept, self.batch)
        return self.weight.new_tensor(self.uniform)

    def back(
        self, reached: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        if reached is None:
            self.against[0] = by_lane(grad_s * self.uniform)
            return None
        n, each = 1 + self.used, 1 if self.detach else 2
        place = self.factors[self.used * self.pairs :][: each * self.pairs]
        self.used += each
        self.against[n], grad_reached = by_lane(grad_s), self._parents()
        if self.detach:
            self._routed(reached, grad_reached, place)
            return None
        self.against[n + 1] = by_lane(reached)
        outer = place.new_empty(0) if grad_coupling is None else by_lane(grad_coupling)
        arrays = (self.pose, self.weight, self.against[n : n + 2], outer, place, grad_reached)
        self._run("backward_pass", len(self.pose), int(self.leaky), *arrays)
        return by_sample(grad_reached, self.batch)

    def spread(self) -> Tensor:
        grad_pose, groups = torch.empty_like(self.pose), len(self.pose)
        self._run(
            "gradient_pass",
            len(self.weight),
            groups,
            self.pose,
            self.weight,
            self.factors,
            self.against,
            grad_pose,
            self.whole_grad,
        )
        del self.factors  # before those of the next block are made
        return by_sample(grad_pose, self.batch)[..., : self.dim]

    def _routed(self, reached: Tensor, sums: Tensor, coupling: Tensor) -> Tensor:
        """s of a later pass; its coupling unless that is empty."""
        arguments = (self.pose, self.weight, by_lane(reached), sums, coupling)
        self._run("routed_pass", len(self.pose), int(self.leaky), *arguments)
        return by_sample(sums, self.batch)

    def _parents(self) -> Tensor:
        """Memory for vectors of parents, `[g, j, d, LANES]`."""
        return self.weight.new_empty((len(self.pose), *self.weight.shape[1:3], LANES))

    def _run(self, name: str, count: int, *arguments: Any) -> None:
        """Run a loop of `_loops.py` on so many groups (or children), shared out among torch's number of threads."""
        from torchcaps.kernels.dynamic import _loops  # numba takes half a second to import

        parallel_for(getattr(_loops, name), count, tuple(self.weight.shape), *map(flat, arguments))


_routed = implementation("dynamic_routing_numba", _Loops)
