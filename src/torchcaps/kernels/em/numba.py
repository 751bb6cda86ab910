"""Matrix votes and EM routing in compiled loops: votes are made in registers wherever they are needed, never stored.

Samples are laid out in groups of LANES, one to each lane of a vector register (see `_loops.py`, which needs numba and
is imported at the first call). A thread routes a group through all passes. What is kept for the backward pass is the
state of every parent after every pass; the couplings are made anew from it. Letters: b batch, g groups, w windows,
i children of a window, j parents.
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
from torchcaps.kernels.dynamic.passes import outcome
from torchcaps.kernels.lanes import LANES, as_arrays, by_lane, by_sample, parallel_for
from torchcaps.kernels.numerics import largest, within
from torchcaps.kernels.operator import Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.support import (
    HAS_NUMBA,
    NO_NUMBA,
    device_mismatch,
    needs_reference,
    operands,
    padded_windows,
)
from torchcaps.types import Capsules, Routed

# Weights below which compiled loops gain less than the seconds that compiling them takes.
WORTH = 1 << 11
# Products of a vote's matrices above which they are not written out in code: 8 x 8 matrices still are.
MOST_PRODUCTS = 512


class Problem(NamedTuple):
    """Operands of an operator. Outcomes: mu `[b, *windows, j, H]`, a `[b, *windows, j]`, coupling `[..., i, j]`.

    pose `[b, h, w, n, rows * inner]`, activation `[b, h, w, n]`, weight `[i, j, inner, outer]`, betas `[j]`,
    shift `[1 or i, 1 or j, H]`; all of one type. The coupling is empty unless wanted.
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
    def windows(self) -> ConvField:
        """How they lie on the map."""
        height, width = self.pose.shape[1:3]
        return ConvField(height, width, self.kernel, self.stride, convention=self.convention)

    def bounded(self) -> Problem:
        """The same, so bounded that squares of votes stay finite."""
        most, vote = steady_limit(self.weight.dtype), factor_limit(self.weight.dtype)
        weight = within(self.weight, most)
        pose = within(self.pose, vote / (weight.shape[2] * max(1.0, largest(weight))))
        shift = None if self.shift is None else within(self.shift, vote)
        return self._replace(
            pose=pose, activation=within(self.activation, most), weight=weight, shift=shift
        )


def supports(votes: Votes) -> Support:
    """Whether the compiled loops can take these votes."""
    reason = (
        NO_NUMBA
        if not HAS_NUMBA
        else needs_reference(votes) or device_mismatch(operands(votes), torch.device("cpu"))
    )
    if (
        reason is None
        and isinstance(votes, ProductVotes)
        and not votes.field.local
        and not padded_windows(votes.field)
    ):
        reason = f"parents of {type(votes.field).__name__} compete in a way of their own"
    if reason is not None or not isinstance(votes, ProductVotes):
        return Support(False, reason or "the votes are given, not made of poses and matrices")
    weight = votes.weight
    products = votes.children.pose.shape[-1] * weight.shape[-1]
    if products > MOST_PRODUCTS:
        return Support(
            False,
            f"a vote takes {products} products; at most {MOST_PRODUCTS} are written out in code",
        )
    if weight.shape[1:].numel() * votes.count < WORTH:  # children of a window may share matrices
        return Support(
            True, f"fewer than {WORTH} weights do not pay for compiling loops", worth_it=False
        )
    return Support(True, "compiled loops: votes are made in registers and never stored")


@fast_path("em_routing", "numba", supports, rank=10)
def run(
    votes: Any, *, beta_u: Tensor | float, beta_a: Tensor | float, temperatures: list[float]
) -> Routed:
    """EM routing of products of poses and matrices; the bias is one more shift."""
    weight, windows = full_precision(votes.matrices), padded_windows(votes.field)
    lead, shift = votes.activation.shape[:-1], votes.shift
    if windows is None:
        pose, activation = (
            x.flatten(0, len(lead) - 1)[:, None, None] for x in (votes.pose, votes.activation)
        )
        windows = ConvField(1, 1, 1, convention=votes.field.convention)
    else:
        pose, activation = (votes.field.pad(x) for x in votes.children)
    if votes.bias is not None:
        added = full_precision(votes.bias).unsqueeze(0)
        shift = added if shift is None else full_precision(shift) + added
    betas = (
        torch.as_tensor(b, dtype=weight.dtype, device=weight.device).expand(votes.parents)
        for b in (beta_u, beta_a)
    )
    tensors: Any = (
        None if x is None else x.to(weight.dtype) for x in (pose, activation, weight, *betas, shift)
    )
    settings: Any = (
        windows.kernel,
        windows.stride,
        windows.convention,
        temperatures,
        votes.context.needs_coupling,
    )
    mu, length, coupling, *_ = _routed(Problem(*tensors, *settings))
    flat = (x.flatten(0, 2) if x.dim() > 2 else x for x in (mu, length, coupling))
    return outcome(votes, lead, *flat)


def _shapes(x: Problem) -> tuple[Tensor, ...]:
    """Of the outcomes and, by group of samples, of the states after every iteration; see `_loops.py`."""
    children, parents, inner, outer = x.weight.shape
    lead, dim = (len(x.pose), *x.windows.positions), x.pose.shape[-1] // inner * outer
    groups = -(-len(x.pose) // LANES)
    state = (groups, len(x.temperatures), math.prod(lead[1:]), parents)
    coupling = (*lead, children, parents) if x.want_coupling else (0, 1, 1, children, parents)
    sizes = (
        (*lead, parents, dim),
        (*lead, parents),
        coupling,
        (*state, dim, LANES),
        (*state, dim, LANES),
        (*state, 3, LANES),
    )
    return tuple(x.weight.new_empty(size) for size in sizes)


def _forward(x: Problem) -> tuple[Tensor, ...]:
    x = x.bounded()
    mu, length, coupling, mean, variance, stats = _shapes(x)
    links = (len(mean) if x.want_coupling else 0, *mean.shape[2:4], len(x.weight), LANES)
    R = mean.new_empty(links)
    _run("forward_pass", x, mean, variance, stats, R)
    mu.copy_(by_sample(mean[:, -1], len(mu)).view_as(mu))
    torch.sigmoid(by_sample(stats[:, -1, ..., 2, :], len(mu)).view_as(length), out=length)
    if x.want_coupling:
        coupling.copy_(by_sample(R, len(mu)).transpose(-1, -2).view_as(coupling))
    return mu, length, coupling, mean, variance, stats


def _backward(
    x: Problem, kept: Sequence[Tensor], grads: Sequence[Tensor], _wanted: Sequence[bool]
) -> Sequence[Tensor]:
    (mean, variance, stats), (grad_mu, grad_length, grad_coupling) = kept, grads
    x = x.bounded()
    groups, batch, (children, parents, inner, outer) = len(mean), len(grad_mu), x.weight.shape
    dim = grad_mu.shape[-1]
    length = stats[:, -1, ..., 2, :].sigmoid()
    grad_logit = by_lane(grad_length.flatten(1, 2)) * length * (1 - length)
    into = (
        mean.new_zeros(groups, math.prod(x.pose.shape[1:4]), x.pose.shape[-1], LANES),
        mean.new_zeros(groups, math.prod(x.pose.shape[1:4]), LANES),
        mean.new_empty(groups, parents, children, inner, outer),
        mean.new_empty(groups if x.shift is not None else 0, parents, children, dim),
        mean.new_empty(groups, parents, 2, LANES),
    )
    _run(
        "backward_pass",
        x,
        mean,
        variance,
        stats,
        by_lane(grad_mu.flatten(1, 2)),
        grad_logit,
        by_lane(grad_coupling.flatten(1, 2).transpose(-1, -2)),
        into,
    )
    grad_pose, grad_activation, grad_weight, grad_shift, grad_betas = into
    per_parent = grad_betas.sum(dim=(0, 3))
    return (
        by_sample(grad_pose, batch).view(x.pose.shape),
        by_sample(grad_activation, batch).view(x.activation.shape),
        grad_weight.sum(dim=0).transpose(0, 1),
        per_parent[:, 0] * dim,
        per_parent[:, 1],
        grad_shift.sum(dim=0).transpose(0, 1),
    )


def _reference(x: Problem) -> tuple[Tensor, ...]:
    """Mean, activation and coupling in torch's own operations, all votes stored."""
    votes = ProductVotes(Capsules(x.pose, x.activation), x.windows, x.weight, x.shift)
    routed: Any = em_routing(votes, None, x.beta_u, x.beta_a, len(x.temperatures), x.temperatures)
    mu, length, coupling = routed
    return mu, length, coupling if x.want_coupling else length.new_empty(0)


_routed = operator(
    "em_routing_numba", Problem, 6, Parts(_forward, _backward, _shapes, _reference, kept=3)
)


def _run(name: str, x: Problem, *arguments: Any) -> None:
    """Run a loop of `_loops.py` on all groups, shared out among as many threads as torch uses."""
    from torchcaps.kernels.em import _loops  # numba takes half a second to import

    (children, parents, inner, outer), windows = x.weight.shape, x.windows
    rows = x.pose.shape[-1] // inner
    dim = rows * outer
    places = math.prod(x.pose.shape[1:4])
    place = windows.gather(torch.arange(places).view(1, *x.pose.shape[1:4]))[0].flatten(0, 1)
    slot = {
        "all": place,
        "space": place,
        "type": torch.arange(place.numel()).view_as(place),
        "patch": torch.arange(children).expand_as(place),
    }[x.convention]
    none = x.weight.new_zeros(1, *windows.positions, children, parents)
    shift = x.weight.new_zeros(1, 1, dim) if x.shift is None else x.shift
    layer = (
        ((0,) * rows, (0,) * inner, (0,) * outer),
        int(slot.max()) + 1,
        parents if x.convention == "space" else 1,
        place,
        slot,
        by_lane(x.pose.flatten(1, 3)),
        by_lane(x.activation.flatten(1)),
        x.weight.transpose(0, 1),
        shift.expand(children, parents, dim).transpose(0, 1),
        windows.initial_coupling(none)[0, ..., 0].flatten(0, 1),
        x.beta_u * dim,
        x.beta_a,
        x.weight.new_tensor(x.temperatures),
    )
    others = [
        _loops.Grads(*as_arrays(argument))
        if isinstance(argument, tuple)
        else as_arrays((argument,))[0]
        for argument in arguments
    ]
    parallel_for(getattr(_loops, name), len(arguments[0]), _loops.Layer(*as_arrays(layer)), *others)
