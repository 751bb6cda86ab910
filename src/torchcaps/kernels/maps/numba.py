"""Routing by agreement (arXiv 1710.09829) on maps in compiled loops.

The votes that a convolution computed are read once for all iterations. Positions lie next to each
other in the lanes of vector registers (see `_loops.py`, which needs numba and is imported at the
first call). The backward pass computes the iterations again.

Letters: b batch, i children, j parents, d dimensions, p positions.
"""

import math
from collections.abc import Sequence
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
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.support import HAS_NUMBA, NO_NUMBA, device_mismatch, needs_reference
from torchcaps.types import Routed

# Number of votes below which the loops gain less time than their compilation takes.
WORTH = 1 << 16


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


def supports(votes: Votes) -> Support:
    """Whether the compiled loops can take these votes."""
    if not isinstance(votes, MapVotes):
        return Support(False, "the votes are no maps")
    if not HAS_NUMBA:
        return Support(False, NO_NUMBA)
    reason = needs_reference(votes)
    if reason is None and not votes.field.local:
        reason = "parents at different positions compete"
    operands = {"pose": votes.children.pose, "bias": votes.bias}
    reason = reason or device_mismatch(operands, torch.device("cpu"))
    if reason is not None:
        return Support(False, reason)

    num_positions = len(votes.children.pose) * math.prod(votes.field.positions)
    if num_positions * votes.count * votes.parents * votes.dim < WORTH:
        return Support(
            True, f"fewer than {WORTH} votes do not pay for compiling loops", worth_it=False
        )
    return Support(True, "compiled loops: votes are read once for all iterations")


@fast_path("map_routing", "numba", supports, rank=10)
def run(votes: MapVotes, *, iterations: int) -> Routed:
    """Routing by agreement in which the parents of each position compete, and are squashed one by one."""
    needs_coupling = votes.context.needs_coupling
    maps = votes.bind(votes.context._replace(clamp=False)).maps()  # clamped in `_run_loop`
    bias = None if votes.bias is None else full_precision(votes.bias).to(maps.dtype)
    outputs = _map_routing(Problem(maps.flatten(4), bias, iterations, needs_coupling))

    space = maps.shape[4:]
    v = spatial_first(outputs[0].unflatten(-1, space))
    length = spatial_first(outputs[1].unflatten(-1, space))
    if not needs_coupling:
        return Routed(v, length, None)
    return Routed(v, length, spatial_first(outputs[2].unflatten(-1, space)))


def _shapes(x: Problem) -> tuple[Tensor, ...]:
    """Empty outputs."""
    b, i, j, d, p = x.votes.shape
    num_couplings = b if x.want_coupling else 0
    sizes = [(b, j, d, p), (b, j, p), (num_couplings, i, j, p)]
    return tuple(x.votes.new_empty(size) for size in sizes)


def _forward(x: Problem) -> tuple[Tensor, ...]:
    """Poses, lengths and couplings of the parents."""
    outputs = _shapes(x)
    _run_loop("forward_pass", x, *outputs)
    return outputs


def _backward(
    x: Problem, _saved: Sequence[Tensor], grads: Sequence[Tensor], _needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """Gradients of the votes and the bias."""
    grad_votes = torch.empty_like(x.votes, memory_format=torch.contiguous_format)
    grad_bias = x.votes.new_empty(_count_groups(x), *x.votes.shape[2:4])
    _run_loop("backward_pass", x, tuple(grads), grad_votes, grad_bias)
    if x.bias is None:
        return grad_votes, None
    return grad_votes, grad_bias.sum(dim=0)


def _reference(x: Problem) -> tuple[Tensor, ...]:
    """The outputs in torch operations: each position is routed by itself."""
    routed: Any = dynamic_routing(x.votes.movedim(-1, 1), x.iterations, bias=x.bias)
    v, length, coupling = (tensor.movedim(1, -1) for tensor in routed)
    return v, length, coupling if x.want_coupling else length.new_empty(0)


_map_routing = define_operator(
    "map_routing_numba",
    Problem,
    num_outputs=3,
    forward=_forward,
    backward=_backward,
    shapes=_shapes,
    reference=_reference,
)


def _count_groups(x: Problem) -> int:
    """Number of groups of POSITIONS positions; the last group of a sample may have fewer."""
    return len(x.votes) * math.ceil(x.votes.shape[-1] / POSITIONS)


def _run_loop(name: str, x: Problem, *arguments: Tensor | tuple[Tensor, ...]) -> None:
    """Run a loop of `_loops.py` on all groups, by as many threads as torch uses."""
    from torchcaps.kernels.maps import _loops  # importing numba takes half a second

    # Bounded, so that squares of votes stay finite.
    votes = clamp_magnitude(x.votes, factor_limit(x.votes.dtype))
    bias = votes.new_zeros(votes.shape[2:4]) if x.bias is None else x.bias
    arrays = as_arrays((x.iterations, votes, bias, *arguments))
    parallel_for(getattr(_loops, name), _count_groups(x), *arrays)
