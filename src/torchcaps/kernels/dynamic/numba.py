"""Votes and routing by agreement in compiled loops: votes are recomputed where they are needed and never stored.

Samples are laid out in groups of LANES, one to each lane of a vector register (see `_loops.py`, which needs numba and
is imported at the first call). Threads take groups as they become free, and every sum is made by one of them in one
order. Backward, per block of samples: the passes anew, last to first, keeping c and dL/db of each; then, child by
child, dL/du of all samples, which becomes the gradient of their poses and of the child's weights before it leaves the
cache. Letters: b batch, g groups, i children, j parents, d and k dimensions of a parent and a child, t the pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.squash import squash, squash_with_length
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.linear import Linear, backward, other_votes, route, shapes
from torchcaps.kernels.numerics import roomy_factors
from torchcaps.kernels.operator import Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.simd.lanes import LANES, by_lane, by_sample, flat, in_threads
from torchcaps.kernels.support import FULL, HAS_NUMBA, NO_NUMBA, unfit
from torchcaps.types import Routed

# Couplings and gradients of logits of a block of samples, in bytes.
FACTORS_BYTES = 20 << 20
# Weights below which compiled loops gain less than the seconds that compiling them takes.
WORTH = 1 << 16


def supports(votes: Votes) -> Support:
    """Whether the compiled loops can take these votes."""
    reason = other_votes(votes) if HAS_NUMBA else NO_NUMBA
    reason = reason or unfit(votes, FULL, torch.device("cpu"))
    if reason is not None or not isinstance(votes, ProductVotes):
        return Support(False, reason or "the votes are given")
    used = votes.weight.numel() * math.prod(votes.field.positions)
    if used < WORTH:
        return Support(True, f"fewer than {WORTH} weights do not pay for compiling loops", worth_it=False)
    return Support(True, "compiled loops: votes are recomputed in a core's own cache and never stored")


@fast_path("dynamic_routing", "numba", supports, rank=10)
def run(votes: Votes, *, iterations: int, leaky: bool, detach: bool) -> Routed:
    """Routing by agreement of linear votes."""
    return route(_routed, votes, iterations, leaky, detach)


def _forward(x: Linear) -> tuple[Tensor, ...]:
    pose, weight, _ = roomy_factors(x.pose, x.weight)
    layer = _Layer.of(pose, weight, x.leaky)
    v, length, coupling, sums = shapes(x)
    kept = layer.pairs() if x.want_coupling and x.iterations > 1 else weight.new_empty(0)
    reached = torch.zeros_like(v)
    for t in range(x.iterations):
        s = layer.route(reached, kept if t == x.iterations - 1 else kept.new_empty(0)) if t else layer.average()
        sums[t] = s if x.bias is None else s + x.bias
        reached += squash(sums[t])
    if x.want_coupling:
        coupling.copy_(by_sample(kept, len(pose)) if kept.numel() else coupling.fill_(layer.uniform))
    v, length = squash_with_length(sums[-1])
    return v, length, coupling, sums


def _backward(x: Linear, kept: Sequence[Tensor], grads: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor]:
    del wanted  # each is made on the way to the others
    (sums,), (grad_v, grad_length, grad_coupling) = kept, grads
    pose, weight, units = roomy_factors(x.pose, x.weight)
    grad_pose, grad_weight = weight.new_empty(pose.shape), weight.new_zeros(weight.shape)
    grad_bias = weight.new_zeros(weight.shape[1:3])
    for block in _blocks(len(pose), weight, len(sums)):
        layer = _Layer.of(pose[block], weight, x.leaky)
        outer = by_lane(grad_coupling[block]) if x.want_coupling else sums.new_empty(0)
        work = _Factors(layer, len(sums), x.detach, outer)
        grad_bias += backward(sums[:, block], grad_v[block], grad_length[block], work.step).sum(dim=0)
        grad_pose[block] = layer.spread(work.factors, work.against, grad_weight)
        del work  # before the factors of the next block are made
    return grad_pose if units is None else grad_pose * units, grad_weight, grad_bias


_routed = operator("dynamic_routing_numba", Linear, 4, Parts(_forward, _backward, shapes, kept=1))


class _Layer(NamedTuple):
    """A block of samples before the compiled loops: poses `[g, i, k, LANES]`, weights, and the sizes of things."""

    pose: Tensor
    weight: Tensor
    batch: int
    leaky: bool

    @classmethod
    def of(cls, pose: Tensor, weight: Tensor, leaky: bool) -> _Layer:
        """From poses `[b, i, k]` of any type and weights of any strides."""
        return cls(by_lane(pose.detach(), weight.dtype), weight.detach().contiguous(), len(pose), leaky)

    @property
    def groups(self) -> int:
        return len(self.pose)

    @property
    def uniform(self) -> float:
        return 1.0 / (self.weight.shape[1] + self.leaky)

    def pairs(self) -> Tensor:
        """Memory for a number for each child and parent, `[g, i, j, LANES]`."""
        return self.weight.new_empty((self.groups, *self.weight.shape[:2], LANES))

    def parents(self) -> Tensor:
        """Memory for vectors of parents, `[g, j, d, LANES]`."""
        return self.weight.new_empty((self.groups, *self.weight.shape[1:3], LANES))

    def average(self) -> Tensor:
        """s of the first pass, `[b, j, d]`."""
        sums = self.parents()
        self.run("uniform_pass", self.pose, self.weight, sums)
        return by_sample(sums, self.batch) * self.uniform

    def route(self, reached: Tensor, coupling: Tensor) -> Tensor:
        """s `[b, j, d]` of a later pass, after parents that sum up to `reached`; fills `coupling` unless empty."""
        sums = self.parents()
        self.run("routed_pass", int(self.leaky), self.pose, self.weight, by_lane(reached), sums, coupling)
        return by_sample(sums, self.batch)

    def spread(self, factors: Tensor, against: Tensor, grad_weight: Tensor) -> Tensor:
        """From dL/du to the gradient of the poses `[b, i, k]`, and of the weights, which is added to `grad_weight`."""
        grad_pose = torch.empty_like(self.pose)
        arguments = (self.groups, self.pose, self.weight, factors, against, grad_pose, grad_weight)
        self.run("gradient_pass", *arguments, of=len(self.weight))
        return by_sample(grad_pose, self.batch)

    def run(self, name: str, *arguments: Tensor | int, of: int | None = None) -> None:
        """Run a loop of `_loops.py` on all groups (or `of` children), shared out among torch's number of threads."""
        from torchcaps.kernels.dynamic import _loops  # numba takes half a second to import

        count = self.groups if of is None else of
        in_threads(getattr(_loops, name), count, tuple(self.weight.shape), *map(flat, arguments))


def _blocks(batch: int, weight: Tensor, iterations: int) -> Iterator[slice]:
    """Blocks of samples whose factors fit in FACTORS_BYTES, but at least a group for each thread."""
    children, parents = weight.shape[:2]
    per_group = max(1, 2 * (iterations - 1) * children * parents * LANES * weight.element_size())
    size = LANES * max(torch.get_num_threads(), FACTORS_BYTES // per_group)
    return (slice(start, min(start + size, batch)) for start in range(0, batch, size))


class _Factors:
    """dL/du as a sum of products of factors and vectors.

    Factors: one vector of LANES for the first pass, then c and dL/db `[g, i, j, LANES]` of each later pass, last first
    (with `detach` c of the last alone); vectors `[n, g, j, d, LANES]`: dL/ds, then the sum of earlier parents.
    """

    def __init__(self, layer: _Layer, passes: int, detach: bool, grad_coupling: Tensor) -> None:
        self.layer, self.last, self.detach, self.grad_coupling = layer, passes - 1, detach, grad_coupling
        self.each = 1 if detach else 2
        terms = self.each * (min(1, self.last) if detach else self.last)
        self.pairs = layer.pairs().numel() if terms else 0
        self.factors = layer.weight.new_empty(LANES + terms * self.pairs)
        self.against = layer.weight.new_zeros((1 + terms, *layer.parents().shape))
        self.factors[:LANES] = layer.uniform

    def step(self, t: int, before: Tensor | None, grad_s: Tensor) -> Tensor | None:
        """See `linear.backward`."""
        if before is None:
            self.against[0] = by_lane(grad_s)
            return None
        n, layer = self.each * (self.last - t), self.layer
        place = self.factors[LANES + n * self.pairs :][: self.each * self.pairs]
        self.against[1 + n] = by_lane(grad_s)
        if self.detach:
            layer.route(before, place)
            return None
        self.against[2 + n] = by_lane(before)
        outer = self.grad_coupling if t == self.last else before.new_empty(0)
        grad_reached = layer.parents()
        layer.run(
            "backward_pass", int(layer.leaky), layer.pose, layer.weight, self.against[2 + n], self.against[1 + n],
            outer, place, grad_reached,
        )  # fmt: skip
        return by_sample(grad_reached, layer.batch)
