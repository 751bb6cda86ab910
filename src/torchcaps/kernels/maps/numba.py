"""Routing by agreement (arXiv 1710.09829) on maps in compiled loops.

For capsules on a map whose votes a convolution computed. At each position, and apart from other
positions, children i route to parents j by votes u_ij:

    c_i = softmax over j of <u_ij, V_j>;  s_j = bias_j + sum_i c_ij u_ij;  v_j = squash(s_j)

where V_j is the sum of the v_j of the iterations before. Torch operations would read all votes in
each iteration. The loops of `_loops.py` read them once: they route a group of positions through all
iterations while its votes are in the cache. The backward pass computes the iterations again.

Letters: b batch, i children, j parents, d dimensions of a vote, p positions, all in one axis.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import factor_limit
from torchcaps.functional.fields import spatial_first
from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import MapVotes, Votes
from torchcaps.kernels.lanes import POSITIONS, as_arrays, parallel_for
from torchcaps.kernels.numerics import clamp_magnitude
from torchcaps.kernels.operator import define_operator
from torchcaps.kernels.registry import fast_path
from torchcaps.kernels.support import HAS_NUMBA, NO_NUMBA, device_mismatch, needs_reference
from torchcaps.types import Routed

# Numbers in all votes below which the loops gain less time than their compilation takes.
MIN_NUMBERS = 1 << 16


class Problem(NamedTuple):
    """Operands of the operator.

    Outputs: v `[b, j, d, p]`, length `[b, j, p]` and coupling `[b, i, j, p]`, which has no samples
    unless it is wanted.

    Attributes:
        votes: `[b, i, j, d, p]`.
        bias: `[j, d]`, or None.
        iterations: number of routing iterations.
        want_coupling: whether to return the last coupling.
    """

    votes: Tensor
    bias: Tensor | None
    iterations: int
    want_coupling: bool

    def empty_outputs(self) -> tuple[Tensor, ...]:
        """Empty outputs: v, length and coupling."""
        b, i, j, d, p = self.votes.shape
        sizes = ((b, j, d, p), (b, j, p), (b if self.want_coupling else 0, i, j, p))
        return tuple(map(self.votes.new_empty, sizes))

    def forward(self) -> tuple[Tensor, ...]:
        """v, length and coupling."""
        outputs = self.empty_outputs()
        _run_loop("forward_pass", self, *outputs)
        return outputs

    def backward(
        self, _saved: Sequence[Tensor], grads: Sequence[Tensor], _needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Gradients of the votes and the bias."""
        votes = self.votes
        grad_votes = torch.empty_like(votes, memory_format=torch.contiguous_format)
        # Each group adds up its own gradient of the bias, so that threads do not share one.
        grad_bias = votes.new_empty(_count_groups(self), *votes.shape[2:4])  # [group, j, d]
        _run_loop("backward_pass", self, tuple(grads), grad_votes, grad_bias)
        if self.bias is None:
            return grad_votes, None
        return grad_votes, grad_bias.sum(dim=0)

    def reference(self) -> tuple[Tensor, ...]:
        """The outputs in torch operations: each position is routed by itself."""
        votes = self.votes.movedim(-1, 1)  # [b, p, i, j, d]
        routed: Any = dynamic_routing(votes, self.iterations, bias=self.bias)
        v, length, coupling = (tensor.movedim(1, -1) for tensor in routed)
        if not self.want_coupling:
            coupling = length.new_empty(0)
        return v, length, coupling


def obstacle(votes: Votes) -> str | None:
    """Why the compiled loops cannot take these votes."""
    if not isinstance(votes, MapVotes):
        return "the votes are no maps"
    reason = None if HAS_NUMBA else NO_NUMBA
    reason = reason or needs_reference(votes)
    if reason is None and not votes.field.local:
        reason = "parents at different positions compete"
    operands = {"pose": votes.children.pose, "bias": votes.bias}
    return reason or device_mismatch(operands, torch.device("cpu"))


def drawback(votes: Votes) -> str | None:
    """Why other implementations are better for these votes."""
    num_positions = len(votes.children.pose) * math.prod(votes.field.positions)
    if num_positions * votes.count * votes.parents * votes.dim < MIN_NUMBERS:
        return f"fewer than {MIN_NUMBERS} votes do not pay for compiling loops"
    return None


# Of the implementations of an operation, those of lower rank are tried first.
@fast_path(
    "map_routing",
    "numba",
    obstacle,
    rank=10,
    reason="compiled loops: votes are read once for all iterations",
    drawback=drawback,
)
def run(votes: MapVotes, *, iterations: int) -> Routed:
    """Route maps of votes; the implementation "numba" of the operation "map_routing".

    Args:
        votes: of children for parents at the same position.
        iterations: number of routing iterations.

    Returns:
        Poses v `[b, *positions, j, d]`, their lengths `[b, *positions, j]` and the couplings of the
        last iteration `[b, *positions, i, j]`, or None if they are not needed.
    """
    needs_coupling = votes.context.needs_coupling
    without_clamp = replace(votes.context, clamp=False)  # `_run_loop` clamps
    maps = votes.bind(without_clamp).maps()  # [b, i, j, d, *positions]
    bias = None if votes.bias is None else full_precision(votes.bias).to(maps.dtype)
    problem = Problem(maps.flatten(4), bias, iterations, needs_coupling)
    v, length, coupling = _map_routing(problem)

    positions = maps.shape[4:]
    pose = spatial_first(v.unflatten(-1, positions))
    activation = spatial_first(length.unflatten(-1, positions))
    if not needs_coupling:
        return Routed(pose, activation, None)
    return Routed(pose, activation, spatial_first(coupling.unflatten(-1, positions)))


_map_routing = define_operator("map_routing_numba", Problem)


def _count_groups(problem: Problem) -> int:
    """Number of groups of POSITIONS positions; the last group of a sample may have fewer."""
    votes = problem.votes
    return len(votes) * math.ceil(votes.shape[-1] / POSITIONS)


def _run_loop(name: str, problem: Problem, *arguments: Tensor | tuple[Tensor, ...]) -> None:
    """Run a loop of `_loops.py` on all groups, by as many threads as torch uses.

    Args:
        name: "forward_pass" or "backward_pass".
        problem: the operands.
        arguments: those of the loop after the operands; some are written.
    """
    from torchcaps.kernels.maps import _loops  # importing numba takes half a second

    # Bounded, so that squares of votes stay finite.
    votes = clamp_magnitude(problem.votes, factor_limit(problem.votes.dtype))
    bias = problem.bias
    if bias is None:
        bias = votes.new_zeros(votes.shape[2:4])
    arrays = as_arrays((problem.iterations, votes, bias, *arguments))
    parallel_for(getattr(_loops, name), _count_groups(problem), *arrays)
