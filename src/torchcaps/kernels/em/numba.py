"""Matrix votes and EM routing in compiled loops: votes are made in registers wherever they are needed, never stored.

Samples are laid out in groups of LANES, one to each lane of a vector register (see `_loops.py`, which needs numba and
is imported at the first call). A thread routes a group through all passes. What is kept for the backward pass is the
state of every parent after every pass; the couplings are made anew from it. Letters: b batch, g groups, w windows,
i children of a window, j parents.
"""

from __future__ import annotations

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
from torchcaps.kernels.numerics import largest, within
from torchcaps.kernels.operator import Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.simd.lanes import LANES, by_lane, by_sample, flat, parallel_for
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
    """Of the outcome, and the state of every pass `[g, t, w, j, 2 H + 3, LANES]`; see `_loops.py`."""
    children, parents, inner, outer = x.weight.shape
    batch, height, width = x.pose.shape[:3]
    rows, columns = ((n - x.kernel) // x.stride + 1 for n in (height, width))
    lead, dim = (batch, rows, columns), x.pose.shape[-1] // inner * outer
    state = (-(-batch // LANES), len(x.temperatures), rows * columns, parents, 2 * dim + 3, LANES)
    coupling = (*lead, children, parents) if x.want_coupling else (0,)
    return tuple(
        x.weight.new_empty(size)
        for size in ((*lead, parents, dim), (*lead, parents), coupling, state)
    )


def _forward(x: Problem) -> tuple[Tensor, ...]:
    x = x.bounded()
    mu, length, coupling, state = _shapes(x)
    start, batch, dim = _start(x), len(mu), mu.shape[-1]
    links = (len(state), *state.shape[2:4], len(x.weight), LANES)
    kept = state.new_empty(links if x.want_coupling and len(x.temperatures) > 1 else 0)
    _run("forward_pass", x, start, state, kept)
    last = state[:, -1]
    mu.copy_(by_sample(last[..., :dim, :], batch).view_as(mu))
    torch.sigmoid(by_sample(last[..., -1, :], batch).reshape(length.shape), out=length)
    if x.want_coupling:
        found = by_sample(kept, batch) if kept.numel() else start.unsqueeze(1)
        coupling.copy_(found.transpose(-1, -2).unflatten(-3, coupling.shape[1:3]))
    return mu, length, coupling, state


def _backward(
    x: Problem, kept: Sequence[Tensor], grads: Sequence[Tensor], _wanted: Sequence[bool]
) -> Sequence[Tensor]:
    (state,), (grad_mu, grad_length, grad_coupling) = kept, grads
    x = x.bounded()
    groups, batch, dim, (children, parents, inner, outer) = (
        len(state),
        len(grad_mu),
        grad_mu.shape[-1],
        x.weight.shape,
    )
    through = state.new_empty(0)
    if x.want_coupling and len(x.temperatures) > 1:
        through = by_lane(grad_coupling.flatten(1, 2).transpose(-1, -2))
    grad_state = state.new_zeros(
        groups, *state.shape[2:4], 2 * dim + 1, LANES
    )  # of mean, variance, logit at the end
    length = state[:, -1, ..., -1, :].sigmoid()
    grad_state[..., :dim, :] = by_lane(grad_mu.flatten(1, 2))
    grad_state[..., -1, :] = by_lane(grad_length.flatten(1, 2)) * length * (1 - length)
    grad_pose, grad_activation = (
        state.new_zeros(groups, *of.shape[1:], LANES) for of in (x.pose, x.activation)
    )
    grad_weight = state.new_empty(groups, parents, children, inner, outer)
    grad_shift = state.new_empty(groups, parents, children, dim if x.shift is not None else 0)
    grad_betas = state.new_empty(groups, parents, 2)
    into = (grad_pose, grad_activation, grad_weight, grad_shift, grad_betas)
    _run("backward_pass", x, _start(x), state, grad_state, through, into)
    per_parent = grad_betas.sum(dim=0)
    return (
        by_sample(grad_pose, batch),
        by_sample(grad_activation, batch),
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
    "em_routing_numba", Problem, 4, Parts(_forward, _backward, _shapes, _reference, kept=1)
)


def _start(x: Problem) -> Tensor:
    """R before the first M-step, `[w, i]`: the same for all parents."""
    nothing = x.weight.new_zeros(1, *x.windows.positions, *x.weight.shape[:2])
    return x.windows.initial_coupling(nothing)[0, ..., 0].flatten(0, 1)


def _run(name: str, x: Problem, start: Tensor, *arguments: Any) -> None:
    """Run a loop of `_loops.py` on all groups, shared out among as many threads as torch uses."""
    from torchcaps.kernels.em import _loops, _vectors  # numba takes half a second to import

    (children, parents, inner, outer), windows, per_place = (
        x.weight.shape,
        x.windows,
        x.pose.shape[3],
    )
    rows, step, across = (
        x.pose.shape[-1] // inner,
        windows.width * per_place,
        windows.kernel * per_place,
    )
    down, right = (torch.arange(n) * windows.stride for n in windows.positions)
    window = (down[:, None] * step + right * per_place).flatten()
    places, each = windows.height * step, torch.arange(parents) * (x.convention == "space")
    over_map = x.convention in (
        "all",
        "space",
    )  # there is a competition for each place; otherwise for each of a window
    slot, dim = (window[:, None] + each * places) * over_map, rows * outer
    shift = (
        x.weight.new_empty(0)
        if x.shift is None
        else x.shift.expand(children, parents, dim).transpose(0, 1)
    )
    layer = _loops.Layer(
        form=_vectors.form_of(rows, inner, outer, x.shift is not None),
        passes=len(x.temperatures),
        windows=len(window),
        together=1 if x.convention == "type" else len(window),
        runs=windows.kernel,
        step=step,
        across=across,
        places=places,
        parents=parents,
        dim=dim,
        slots=(int(each.max()) + 1) * places if over_map else windows.kernel * across,
        slot_step=step if over_map else across,
        window=flat(window),
        slot=flat(slot),
        pose=flat(by_lane(x.pose)),
        activation=flat(by_lane(x.activation)),
        weight=flat(x.weight.transpose(0, 1)),
        shift=flat(shift),
        start=flat(start),
        beta_u=flat(x.beta_u * dim),
        beta_a=flat(x.beta_a),
        heat=flat(x.weight.new_tensor(x.temperatures)),
    )
    given = (_loops.Grads(*map(flat, x)) if isinstance(x, tuple) else flat(x) for x in arguments)
    parallel_for(getattr(_loops, name), len(arguments[0]), layer, *given)
