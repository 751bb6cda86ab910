"""EM routing of matrix votes in compiled loops: a vote is computed where it is used, never stored.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, procedure 1. The loops
and the equations are in `_loops.py`, which needs numba and is imported at the first call. Here are
the operator and the layout of its arrays: samples come in groups of LANES, which lie next to each
other in memory, and one thread routes a group through all iterations. The backward pass takes the
state of every parent after every iteration, which the forward pass saves, and computes the
couplings again from it.

Letters: b batch, y and x places of the map, n capsule types of the map, w windows, i children of a
window, j parents of a window, h dimensions of a vote. Poses are matrices [row, inner], weights
[inner, outer], votes [row, outer], all stored flat, so that h = (row, outer).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import factor_limit, gradient_limit
from torchcaps.functional.fields import Convention, ConvField
from torchcaps.functional.routing.em import em_routing
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import ProductVotes
from torchcaps.kernels.dynamic.passes import restore_positions
from torchcaps.kernels.lanes import LANES, as_arrays, by_lane, by_sample, parallel_for
from torchcaps.kernels.numerics import clamp_magnitude, max_magnitude
from torchcaps.kernels.operator import define_operator
from torchcaps.kernels.registry import fast_path
from torchcaps.kernels.support import (
    HAS_NUMBA,
    NO_NUMBA,
    competes_apart,
    device_mismatch,
    needs_reference,
    padded_windows,
    vote_operands,
)
from torchcaps.types import Capsules, Routed

# Number of weights below which the loops gain less time than their compilation takes.
MIN_WEIGHTS = 1 << 11
# Most products of a vote: their loops are unrolled, which takes long to compile.
MAX_PRODUCTS = 512
# Row of the logit of the activation in the array `stats` of the loops.
LOGIT = 2


class Problem(NamedTuple):
    """Operands of the operator, all of one type of number.

    Outputs: mean `[b, rows, columns, j, h]`, activation `[b, rows, columns, j]` and coupling
    `[b, rows, columns, i, j]`, which has no samples unless it is wanted.

    Attributes:
        pose: `[b, y, x, n, row * inner]`.
        activation: `[b, y, x, n]`.
        weight: `[i, j, inner, outer]`.
        beta_u, beta_a: `[j]`.
        shift: `[1 or i, 1 or j, h]`, or None.
        kernel, stride, convention: of the windows; see `ConvField`.
        temperatures: inverse temperature of each iteration.
        want_coupling: whether to return the last coupling.
    """

    pose: Tensor
    activation: Tensor
    weight: Tensor
    beta_u: Tensor
    beta_a: Tensor
    shift: Tensor | None
    kernel: int
    stride: int
    convention: Convention
    temperatures: list[float]
    want_coupling: bool

    @property
    def field(self) -> ConvField:
        """The windows on the map."""
        height, width = self.pose.shape[1:3]
        return ConvField(height, width, self.kernel, self.stride, convention=self.convention)

    @property
    def rows(self) -> int:
        """Rows of a pose."""
        return self.pose.shape[-1] // self.weight.shape[2]

    @property
    def dim(self) -> int:
        """Dimensions of a vote."""
        return self.rows * self.weight.shape[3]

    def clamped(self) -> Problem:
        """The same problem with numbers clamped such that squares of votes stay finite."""
        limit = gradient_limit(self.weight.dtype)
        vote_limit = factor_limit(self.weight.dtype)
        weight = clamp_magnitude(self.weight, limit)
        pose_limit = vote_limit / (weight.shape[2] * max(1.0, max_magnitude(weight)))
        return self._replace(
            pose=clamp_magnitude(self.pose, pose_limit),
            activation=clamp_magnitude(self.activation, limit),
            weight=weight,
            shift=None if self.shift is None else clamp_magnitude(self.shift, vote_limit),
        )

    def empty_outputs(self) -> tuple[Tensor, ...]:
        """Empty outputs, and the state after every iteration by group; see `_loops.py`.

        They are mean, activation and coupling; means, variances and stats.
        """
        children, parents = self.weight.shape[:2]
        batch = len(self.pose)
        rows, columns = self.field.positions
        groups = math.ceil(batch / LANES)
        iterations = len(self.temperatures)
        num_parents = rows * columns * parents
        sizes = (
            (batch, rows, columns, parents, self.dim),
            (batch, rows, columns, parents),
            (batch if self.want_coupling else 0, rows, columns, children, parents),
            (groups, iterations, num_parents, self.dim, LANES),
            (groups, iterations, num_parents, self.dim, LANES),
        )
        stats = self.weight.new_empty(
            groups, iterations, num_parents, 3, LANES, dtype=torch.float64
        )
        return (*map(self.weight.new_empty, sizes), stats)

    def forward(self) -> tuple[Tensor, ...]:
        """The outputs and the states."""
        mean, activation, coupling, means, variances, stats = self.empty_outputs()
        batch = len(mean)
        groups = len(means) if self.want_coupling else 0
        R = means.new_empty(groups, means.shape[2], len(self.weight), LANES)  # the last coupling
        _run_loop("forward_pass", self, (means, variances, stats), R)

        mean.copy_(by_sample(means[:, -1], batch).view_as(mean))
        logit = by_sample(stats[:, -1, :, LOGIT], batch)
        activation.copy_(logit.sigmoid().view_as(activation))
        if self.want_coupling:
            by_parent = by_sample(R, batch).unflatten(1, activation.shape[1:])
            coupling.copy_(by_parent.transpose(-1, -2))
        return mean, activation, coupling, means, variances, stats

    def backward(
        self, saved: Sequence[Tensor], grads: Sequence[Tensor], _needed: Sequence[bool]
    ) -> Sequence[Tensor]:
        """Gradients of pose, activation, weight, beta_u, beta_a and shift."""
        means, _, stats = saved
        grad_mean, grad_activation, grad_coupling = grads
        groups = len(means)
        batch = len(grad_mean)
        children, parents, inner, outer = self.weight.shape
        num_places = math.prod(self.activation.shape[1:])

        # d sigmoid(x) / dx = sigmoid(x) (1 - sigmoid(x))
        activation = stats[:, -1, :, LOGIT].to(means.dtype).sigmoid()
        grad_logit = by_lane(grad_activation.flatten(1)) * activation * (1 - activation)
        num_shifts = 0 if self.shift is None else groups
        gradients = (
            means.new_zeros(groups, num_places, self.pose.shape[-1], LANES),
            means.new_zeros(groups, num_places, LANES),  # of activations
            means.new_empty(groups, parents, children, inner, outer),
            means.new_empty(num_shifts, parents, children, self.dim),
            means.new_empty(groups, parents, 2, LANES),  # of beta_u and beta_a
        )
        _run_loop(
            "backward_pass",
            self,
            tuple(saved),
            by_lane(grad_mean.flatten(1, 3)),
            grad_logit,
            by_lane(grad_coupling.transpose(-1, -2).flatten(1, 3)),
            gradients,
        )
        grad_pose, grad_child, grad_weight, grad_shift, grad_betas = gradients
        per_parent = grad_betas.sum(dim=(0, 3))
        return (
            by_sample(grad_pose, batch).view(self.pose.shape),
            by_sample(grad_child, batch).view(self.activation.shape),
            grad_weight.sum(dim=0).transpose(0, 1),
            per_parent[:, 0] * self.dim,
            per_parent[:, 1],
            grad_shift.sum(dim=0).transpose(0, 1),
        )

    def reference(self) -> tuple[Tensor, ...]:
        """The outputs in torch operations, all votes stored."""
        votes = ProductVotes(
            Capsules(self.pose, self.activation), self.field, self.weight, self.shift
        )
        routed: Any = em_routing(
            votes, None, self.beta_u, self.beta_a, len(self.temperatures), self.temperatures
        )
        mean, activation, coupling = routed
        if not self.want_coupling:
            coupling = activation.new_empty(0)
        return mean, activation, coupling


def obstacle(votes: Any) -> str | None:
    """Why the compiled loops cannot route these votes."""
    reason = None if HAS_NUMBA else NO_NUMBA
    reason = reason or needs_reference(votes)
    reason = reason or device_mismatch(vote_operands(votes), torch.device("cpu"))
    if reason is None and not isinstance(votes, ProductVotes):
        reason = "the votes are given, not made of poses and matrices"
    if reason := reason or competes_apart(votes.field):
        return reason
    num_products = votes.children.pose.shape[-1] * votes.weight.shape[-1]
    if num_products > MAX_PRODUCTS:
        return f"a vote takes {num_products} products; the compiled loops take {MAX_PRODUCTS}"
    return None


def drawback(votes: Any) -> str | None:
    """Why other implementations are better for these votes."""
    # Children of a window may share matrices: count those that are used.
    if votes.weight.shape[1:].numel() * votes.count < MIN_WEIGHTS:
        return f"fewer than {MIN_WEIGHTS} weights do not pay for compiling loops"
    return None


# Of the implementations of an operation, those of lower rank are tried first.
@fast_path(
    "em_routing",
    "numba",
    obstacle,
    rank=10,
    reason="compiled loops: votes are computed where they are used, never stored",
    drawback=drawback,
)
def run(
    votes: Any, *, beta_u: Tensor | float, beta_a: Tensor | float, temperatures: list[float]
) -> Routed:
    """Route by EM; the implementation "numba" of the operation "em_routing".

    Args:
        votes: products of poses and matrices (`ProductVotes`). Their bias is one more shift.
        beta_u: cost of the procedure, a number or one per parent.
        beta_a: likewise.
        temperatures: inverse temperature of each iteration.
    """
    weight = full_precision(votes.matrices)
    lead = votes.activation.shape[:-1]  # batch and positions of the parents
    field = padded_windows(votes.field)
    if field is None:
        # Children at the positions of their parents: each position is a map of one place.
        field = ConvField(1, 1, 1, convention=votes.field.convention)
        pose = votes.pose.flatten(0, len(lead) - 1)[:, None, None]
        activation = votes.activation.flatten(0, len(lead) - 1)[:, None, None]
    else:
        pose = votes.field.pad(votes.children.pose)
        activation = votes.field.pad(votes.children.activation)

    shift = None if votes.shift is None else full_precision(votes.shift)
    if votes.bias is not None:
        bias = full_precision(votes.bias).unsqueeze(0)
        shift = bias if shift is None else shift + bias
    beta_u = torch.as_tensor(beta_u, dtype=weight.dtype, device=weight.device)
    beta_a = torch.as_tensor(beta_a, dtype=weight.dtype, device=weight.device)
    problem = Problem(
        pose=pose.to(weight.dtype),
        activation=activation.to(weight.dtype),
        weight=weight,
        beta_u=beta_u.expand(votes.parents),
        beta_a=beta_a.expand(votes.parents),
        shift=None if shift is None else shift.to(weight.dtype),
        kernel=field.kernel,
        stride=field.stride,
        convention=field.convention,
        temperatures=temperatures,
        want_coupling=votes.context.needs_coupling,
    )
    mean, parent_activation, coupling = _em_routing(problem)[:3]
    return restore_positions(
        votes, lead, mean.flatten(0, 2), parent_activation.flatten(0, 2), coupling.flatten(0, 2)
    )


_em_routing = define_operator(
    "em_routing_numba",
    Problem,
    num_saved=3,  # the states: means, variances and stats
)


def _run_loop(name: str, problem: Problem, *arguments: Any) -> None:
    """Run a loop of `_loops.py` on all groups, by as many threads as torch uses.

    Args:
        name: "forward_pass" or "backward_pass".
        problem: the operands, of which a `Layer` is made.
        arguments: those of the loop after the layer; some are written. The last one of
            "backward_pass" are its `Gradients`.
    """
    from torchcaps.kernels.em import _loops  # importing numba takes half a second

    problem = problem.clamped()
    children, parents, inner, outer = problem.weight.shape
    place, competition = _competitions(problem.field, problem.pose.shape[3], parents)
    zeros = problem.weight.new_zeros(1, *problem.field.positions, children, parents)
    coupling = problem.field.initial_coupling(zeros)[0]
    first_coupling = coupling.transpose(-1, -2).flatten(0, 2)  # [w * j, i]
    shift = problem.shift
    if shift is None:
        shift = problem.weight.new_zeros(1, 1, problem.dim)
    operands = (
        ((0,) * problem.rows, (0,) * inner, (0,) * outer),  # sizes
        int(competition.max()) + 1,  # num_competitions
        place,
        competition,
        first_coupling,
        by_lane(problem.pose.flatten(1, 3)),
        by_lane(problem.activation.flatten(1)),
        problem.weight.transpose(0, 1),
        shift.expand(children, parents, problem.dim).transpose(0, 1),
        problem.beta_u * problem.dim,
        problem.beta_a,
        problem.weight.new_tensor(problem.temperatures),
    )
    layer = _loops.Layer._make(as_arrays(operands))
    states, *arrays = as_arrays(arguments)
    if name == "backward_pass":
        arrays[-1] = _loops.Gradients._make(arrays[-1])
    states = _loops.State._make(states)
    parallel_for(getattr(_loops, name), len(states.mean), layer, states, *arrays)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # they outlive the call
def _competitions(field: ConvField, types: int, parents: int) -> tuple[Tensor, Tensor]:
    """Place of each child on the map and number of the competition for it, both `[w * j, i]`.

    Parents with the same number compete for the child.

    Args:
        field: of the windows.
        types: capsule types of the map.
        parents: of a window.
    """
    places = torch.arange(field.height * field.width * types)
    places = field.gather(places.view(1, field.height, field.width, types))
    place = places[0].flatten(0, 1).repeat_interleave(parents, dim=0)
    pairs = torch.arange(place.numel(), dtype=torch.float64)
    pairs = pairs.view(1, *field.positions, parents, -1).transpose(-1, -2)
    last = field.reduce_competing(pairs, Tensor.amax).expand_as(pairs)
    _, competition = last.unique(return_inverse=True)
    return place, competition[0].transpose(-1, -2).flatten(0, 2)
