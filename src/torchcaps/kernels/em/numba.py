"""EM routing of matrix votes in compiled loops: a vote is computed where it is used, never stored.

Samples are laid out in groups of LANES (see `_loops.py`, which needs numba and is imported at the
first call). One thread routes a group through all iterations. The backward pass keeps the state of
every parent after every iteration and computes the couplings again from it.

Letters: b batch, y and x places of the map, n capsule types of the map, w windows, i children of a
window, j parents of a window, h dimensions of a vote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import factor_limit, steady_limit
from torchcaps.functional.fields import Convention, ConvField
from torchcaps.functional.routing.em import em_routing
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.passes import restore_positions
from torchcaps.kernels.lanes import LANES, as_arrays, by_lane, by_sample, parallel_for
from torchcaps.kernels.numerics import clamp_magnitude, max_magnitude
from torchcaps.kernels.operator import define_operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.support import (
    HAS_NUMBA,
    NO_NUMBA,
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

    def bounded(self) -> Problem:
        """The same problem with numbers so bounded that squares of votes stay finite."""
        limit = steady_limit(self.weight.dtype)
        vote_limit = factor_limit(self.weight.dtype)
        weight = clamp_magnitude(self.weight, limit)
        pose_limit = vote_limit / (weight.shape[2] * max(1.0, max_magnitude(weight)))
        return self._replace(
            pose=clamp_magnitude(self.pose, pose_limit),
            activation=clamp_magnitude(self.activation, limit),
            weight=weight,
            shift=None if self.shift is None else clamp_magnitude(self.shift, vote_limit),
        )


def supports(votes: Votes) -> Support:
    """Whether the compiled loops can route these votes."""
    if not HAS_NUMBA:
        return Support(False, NO_NUMBA)
    reason = needs_reference(votes)
    reason = reason or device_mismatch(vote_operands(votes), torch.device("cpu"))
    if reason is not None:
        return Support(False, reason)
    if not isinstance(votes, ProductVotes):
        return Support(False, "the votes are given, not made of poses and matrices")
    if not votes.field.local and padded_windows(votes.field) is None:
        field_name = type(votes.field).__name__
        return Support(False, f"parents of {field_name} compete in a way of their own")
    num_products = votes.children.pose.shape[-1] * votes.weight.shape[-1]
    if num_products > MAX_PRODUCTS:
        return Support(
            False, f"a vote takes {num_products} products; the compiled loops take {MAX_PRODUCTS}"
        )
    # Children of a window may share matrices: count those that are used.
    if votes.weight.shape[1:].numel() * votes.count < MIN_WEIGHTS:
        reason = f"fewer than {MIN_WEIGHTS} weights do not pay for compiling loops"
        return Support(True, reason, worth_it=False)
    return Support(True, "compiled loops: votes are computed where they are used, never stored")


@fast_path("em_routing", "numba", supports, rank=10)
def run(
    votes: Any, *, beta_u: Tensor | float, beta_a: Tensor | float, temperatures: list[float]
) -> Routed:
    """EM routing of products of poses and matrices. The bias is one more shift."""
    weight = full_precision(votes.matrices)
    lead = votes.activation.shape[:-1]
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
    outputs = [output.flatten(0, 2) for output in _em_routing(problem)[:3]]
    return restore_positions(votes, lead, *outputs)


def _shapes(x: Problem) -> tuple[Tensor, ...]:
    """Empty outputs, and the state after every iteration by group; see `_loops.py`."""
    children, parents = x.weight.shape[:2]
    batch = len(x.pose)
    lead = (batch, *x.field.positions)
    state = (math.ceil(batch / LANES), len(x.temperatures), math.prod(lead[1:]) * parents)
    sizes = {
        "mean": (*lead, parents, x.dim),
        "activation": (*lead, parents),
        "coupling": (*lead, children, parents) if x.want_coupling else (0, 1, 1, children, parents),
        "means": (*state, x.dim, LANES),
        "variances": (*state, x.dim, LANES),
        "stats": (*state, 3, LANES),
    }
    return tuple(x.weight.new_empty(size) for size in sizes.values())


def _forward(x: Problem) -> tuple[Tensor, ...]:
    """The outputs and the states."""
    x = x.bounded()
    mean, activation, coupling, means, variances, stats = _shapes(x)
    batch = len(mean)
    groups = len(means) if x.want_coupling else 0
    R = means.new_empty(groups, means.shape[2], len(x.weight), LANES)
    _run_loop("forward_pass", x, means, variances, stats, R)

    mean.copy_(by_sample(means[:, -1], batch).view_as(mean))
    logit = by_sample(stats[:, -1, :, 2], batch)
    torch.sigmoid(logit.view_as(activation), out=activation)
    if x.want_coupling:
        by_parent = by_sample(R, batch).unflatten(1, activation.shape[1:])
        coupling.copy_(by_parent.transpose(-1, -2))
    return mean, activation, coupling, means, variances, stats


def _backward(
    x: Problem, saved: Sequence[Tensor], grads: Sequence[Tensor], _needed: Sequence[bool]
) -> Sequence[Tensor]:
    """Gradients of the operands."""
    means, variances, stats = saved
    grad_mean, grad_activation, grad_coupling = grads
    x = x.bounded()
    groups, batch = len(means), len(grad_mean)
    children, parents, inner, outer = x.weight.shape
    num_places = math.prod(x.activation.shape[1:])

    activation = stats[:, -1, :, 2].sigmoid()
    grad_logit = by_lane(grad_activation.flatten(1)) * activation * (1 - activation)
    num_shifts = 0 if x.shift is None else groups
    gradients = (
        means.new_zeros(groups, num_places, x.pose.shape[-1], LANES),
        means.new_zeros(groups, num_places, LANES),
        means.new_empty(groups, parents, children, inner, outer),
        means.new_empty(num_shifts, parents, children, x.dim),
        means.new_empty(groups, parents, 2, LANES),
    )
    _run_loop(
        "backward_pass",
        x,
        means,
        variances,
        stats,
        by_lane(grad_mean.flatten(1, 3)),
        grad_logit,
        by_lane(grad_coupling.transpose(-1, -2).flatten(1, 3)),
        gradients,
    )
    grad_pose, grad_child, grad_weight, grad_shift, grad_betas = gradients
    per_parent = grad_betas.sum(dim=(0, 3))
    return (
        by_sample(grad_pose, batch).view(x.pose.shape),
        by_sample(grad_child, batch).view(x.activation.shape),
        grad_weight.sum(dim=0).transpose(0, 1),
        per_parent[:, 0] * x.dim,
        per_parent[:, 1],
        grad_shift.sum(dim=0).transpose(0, 1),
    )


def _reference(x: Problem) -> tuple[Tensor, ...]:
    """The outputs in torch operations, all votes stored."""
    votes = ProductVotes(Capsules(x.pose, x.activation), x.field, x.weight, x.shift)
    routed: Any = em_routing(votes, None, x.beta_u, x.beta_a, len(x.temperatures), x.temperatures)
    mean, activation, coupling = routed
    return mean, activation, coupling if x.want_coupling else activation.new_empty(0)


_em_routing = define_operator(
    "em_routing_numba",
    Problem,
    num_outputs=6,
    forward=_forward,
    backward=_backward,
    shapes=_shapes,
    reference=_reference,
    num_saved=3,  # the states: means, variances and stats
)


def _run_loop(name: str, x: Problem, *arguments: Any) -> None:
    """Run a loop of `_loops.py` on all groups, by as many threads as torch uses."""
    from torchcaps.kernels.em import _loops  # importing numba takes half a second

    children, parents, inner, outer = x.weight.shape
    place, competition = _competitions(x)
    zeros = x.weight.new_zeros(1, *x.field.positions, children, parents)
    start = x.field.initial_coupling(zeros)[0].transpose(-1, -2).flatten(0, 2)
    shift = x.weight.new_zeros(1, 1, x.dim) if x.shift is None else x.shift
    operands = (
        ((0,) * x.rows, (0,) * inner, (0,) * outer),
        int(competition.max()) + 1,
        place,
        competition,
        start,
        by_lane(x.pose.flatten(1, 3)),
        by_lane(x.activation.flatten(1)),
        x.weight.transpose(0, 1),
        shift.expand(children, parents, x.dim).transpose(0, 1),
        x.beta_u * x.dim,
        x.beta_a,
        x.weight.new_tensor(x.temperatures),
    )
    layer = _loops.Layer(*as_arrays(operands))
    arrays = list(as_arrays(arguments))
    if name == "backward_pass":
        arrays[-1] = _loops.Gradients(*arrays[-1])
    parallel_for(getattr(_loops, name), len(arguments[0]), layer, *arrays)


def _competitions(x: Problem) -> tuple[Tensor, Tensor]:
    """Place of each child and number of the competition for it, both `[w * j, i]`."""
    children, parents = x.weight.shape[:2]
    space = x.pose.shape[1:4]
    num_places = math.prod(space)
    numbers = torch.arange(num_places).view(1, *space)
    place = x.field.gather(numbers)[0].flatten(0, 1).repeat_interleave(parents, dim=0)
    if x.convention == "all":
        return place, place
    if x.convention == "patch":
        return place, torch.arange(children).expand_as(place)
    parent = torch.arange(len(place)).unsqueeze(1)
    if x.convention == "space":  # each parent type by itself
        return place, place + parent % parents * num_places
    return place, parent // parents * children + torch.arange(children)
