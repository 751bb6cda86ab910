"""Routing by agreement (arXiv 1710.09829) on maps in compiled loops: all passes, and back, in a core's own cache.

What a convolution has made is read once, position by position beside each other in the lanes of vector registers (see
`_loops.py`, which needs numba and is imported at the first call); on the way back the passes are made anew. Letters:
b batch, i children, j parents, d dimensions, p positions.
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
from torchcaps.kernels.operator import Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.support import HAS_NUMBA, NO_NUMBA, device_mismatch, needs_reference
from torchcaps.types import Routed

# Votes below which compiled loops gain less than the seconds that compiling them takes.
WORTH = 1 << 16


class Problem(NamedTuple):
    """Operands of the operator. Outcomes: v `[b, j, d, p]`, length `[b, j, p]`, coupling `[b, i, j, p]`, or empty."""

    votes: Tensor  # [b, i, j, d, p]
    bias: Tensor | None  # [j, d]
    iterations: int
    want_coupling: bool


def supports(votes: Votes) -> Support:
    """Whether the compiled loops can take these votes."""
    if not isinstance(votes, MapVotes):
        return Support(False, "the votes are no maps")
    reason = NO_NUMBA if not HAS_NUMBA else needs_reference(votes)
    if reason is None and not votes.field.local:
        reason = "parents at different positions compete"
    reason = reason or device_mismatch(
        {"pose": votes.children.pose, "bias": votes.bias}, torch.device("cpu")
    )
    if reason is not None:
        return Support(False, reason)
    each = votes.count * votes.parents * votes.dim
    if len(votes.children.pose) * math.prod(votes.field.positions) * each < WORTH:
        return Support(
            True, f"fewer than {WORTH} votes do not pay for compiling loops", worth_it=False
        )
    return Support(True, "compiled loops: votes are read once for all iterations")


@fast_path("map_routing", "numba", supports, rank=10)
def run(votes: MapVotes, *, iterations: int) -> Routed:
    """Routing by agreement in which the parents of each position compete, and are squashed one by one."""
    needs_coupling = votes.context.needs_coupling
    maps = votes.bind(votes.context._replace(clamp=False)).maps()  # clamped in `_run`
    bias = None if votes.bias is None else full_precision(votes.bias).to(maps.dtype)
    v, length, coupling = _routed(Problem(maps.flatten(4), bias, iterations, needs_coupling))
    v, length = (spatial_first(x.unflatten(-1, maps.shape[4:])) for x in (v, length))
    return Routed(
        v, length, spatial_first(coupling.unflatten(-1, maps.shape[4:])) if needs_coupling else None
    )


def _shapes(x: Problem) -> tuple[Tensor, ...]:
    b, i, j, d, p = x.votes.shape
    sizes = (b, j, d, p), (b, j, p), (b if x.want_coupling else 0, i, j, p)
    return tuple(x.votes.new_empty(size) for size in sizes)


def _forward(x: Problem) -> tuple[Tensor, ...]:
    outcomes = _shapes(x)
    _run("forward_pass", x, *outcomes)
    return outcomes


def _backward(
    x: Problem, _: Sequence[Tensor], grads: Sequence[Tensor], __: Sequence[bool]
) -> Sequence[Tensor | None]:
    grad_votes = torch.empty_like(x.votes, memory_format=torch.contiguous_format)
    grad_bias = x.votes.new_empty(_count_groups(x), *x.votes.shape[2:4])
    _run("backward_pass", x, tuple(grads), grad_votes, grad_bias)
    return grad_votes, None if x.bias is None else grad_bias.sum(dim=0)


def _reference(x: Problem) -> tuple[Tensor, ...]:
    """Parents, lengths and coupling in torch's own operations; each position is a place of its own."""
    routed: Any = dynamic_routing(x.votes.movedim(-1, 1), x.iterations, bias=x.bias)
    v, length, coupling = (tensor.movedim(1, -1) for tensor in routed)
    return v, length, coupling if x.want_coupling else length.new_empty(0)


_routed = operator("map_routing_numba", Problem, 3, Parts(_forward, _backward, _shapes, _reference))


def _count_groups(x: Problem) -> int:
    """Groups of POSITIONS positions of a sample; the last one of each may have fewer."""
    return len(x.votes) * -(-x.votes.shape[-1] // POSITIONS)


def _run(name: str, x: Problem, *arguments: Tensor | tuple[Tensor, ...]) -> None:
    """Run a loop of `_loops.py` on all groups, shared out among as many threads as torch uses."""
    from torchcaps.kernels.maps import _loops  # numba takes half a second to import

    # So bounded that squares of votes stay finite.
    votes = clamp_magnitude(x.votes, factor_limit(x.votes.dtype))
    bias = votes.new_zeros(votes.shape[2:4]) if x.bias is None else x.bias
    arrays = as_arrays((x.iterations, votes, bias, *arguments))
    parallel_for(getattr(_loops, name), _count_groups(x), *arrays)
