"""Compiled loops of EM routing: a lane of a vector register belongs to one sample. Needs numba.

A group of LANES samples is routed from its first to its last pass by one thread, so that the outcome does not depend on
the number of threads. All arrays are flat; vectors have one number of each sample. g groups, t passes, w windows,
i children of a window, j parents, y x n places and types of the map, H numbers of a vote:

    pose [g, y, x, n, rows * inner, lane]   activation [g, y, x, n, lane]   weight [j, i, inner, outer]
    shift [j, i, H]   start [w, i]   coupling [g, w, j, i, lane]
    state [g, t, w, j, 2 H + 3, lane]: mean H, variance without its least H, sum of r, sum of log variances, logit
    grad_state [g, w, j, 2 H + 1, lane]: of mean, variance and logit; it is used up from pass to pass
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from torchcaps.kernels.em import _vectors
from torchcaps.kernels.em._vectors import (
    expectation,
    expectation_backward,
    fit,
    fit_backward,
    full_form,
    moments,
    spread,
    square_form,
)  # fmt: skip
from torchcaps.kernels.simd import each, vectors
from torchcaps.kernels.simd.cache import keep_compiled
from torchcaps.kernels.simd.each import accumulate_products, exponentiate, invert, multiply, peak, scale, softmax_below
from torchcaps.kernels.simd.lanes import LANES

ALL, TYPE, SPACE, PATCH = range(4)  # conventions, see `functional.Windows`

compiled = numba.njit(nogil=True, error_model="numpy")
# Made part of its caller before anything is compiled: otherwise numba compiles it twice.
inlined = numba.njit(nogil=True, error_model="numpy", inline="always")


class Layer(NamedTuple):
    """Sizes of a layer, and what went in. Places on the map count children: row by row, then columns, then types."""

    form: Any  # see `form_of`
    passes: int
    windows: int
    columns: int  # of windows
    down: int  # places from a window to the one below
    right: int
    runs: int  # rows of a window
    step: int  # places from a row of a window to the next
    across: int  # children in a row of a window
    places: int  # children of the map
    parents: int
    dim: int  # H
    convention: int
    pose: Any
    activation: Any
    weight: Any
    shift: Any
    start: Any
    beta_u: Any  # multiplied by H
    beta_a: Any
    heat: Any


class Backward(NamedTuple):
    """What the passes of a backward share: states and their gradients, and what dL/dV is multiplied together from."""

    state: Any
    grad_state: Any
    grad_kept: Any  # of the last coupling, or empty
    factors: Any  # R and dL/dlog R of each pass but the first
    slopes: Any
    slots: Any
    betas: Any
    grad_activation: Any


@compiled
def forward_pass(first, last, layer, state, kept):
    """States of all passes of the groups from `first` to before `last`; the last coupling unless `kept` is empty."""
    links = _links(layer)
    coupling = np.empty(links if layer.passes > 1 else 0, state.dtype)
    slots, total = np.empty(_slots(layer), state.dtype), np.empty(_slots(layer), state.dtype)
    for g in range(first, last):
        for t in range(layer.passes):
            if t:
                _expect(layer, g, t, state, coupling, 0, slots, total)
            _maximise(layer, g, t, coupling, state)
        if kept.size:
            _copy(coupling, 0, kept, g * links, links)


@compiled
def backward_pass(
    first, last, layer, state, grad_state, grad_kept, grad_pose, grad_activation, grad_weight, grad_shift, grad_betas
):
    """Gradients of all that went in, added to what is there; those of weights, shifts and costs for each group.

    grad_weight `[g, j, i, inner, outer]`, grad_shift likewise, grad_betas `[g, j, 2]`.
    """
    terms, kind = 2 * layer.passes - 1, state.dtype
    factors = np.empty((terms - 1) * _links(layer), kind)
    slopes = np.empty(layer.windows * layer.parents * terms * 2 * layer.dim * LANES, kind)
    slots, total = np.empty(_slots(layer), kind), np.empty(_slots(layer), kind)
    wide_weight, wide_shift = np.empty(layer.weight.size * LANES, kind), np.empty(layer.shift.size * LANES, kind)
    wide_betas = np.empty(layer.parents * 2 * LANES, kind)
    work = Backward(state, grad_state, grad_kept, factors, slopes, slots, wide_betas, grad_activation)
    for g in range(first, last):
        for wide in (wide_weight, wide_shift, wide_betas):
            _fill(wide, 0)
        for t in range(layer.passes - 1, -1, -1):
            if t:
                _expect(layer, g, t, state, factors, _share(layer, t), slots, total)
            for w in range(0, layer.windows, _together(layer)):
                _fill(slots, 0)
                _maximise_backward(layer, g, t, w, w + _together(layer), work)
                if t:
                    _expect_backward(layer, g, t, w, w + _together(layer), work)
        _spread_all(layer, g, work, grad_pose, wide_weight, wide_shift)
        _sum_lanes(wide_weight, grad_weight, g)
        _sum_lanes(wide_shift, grad_shift, g)
        _sum_lanes(wide_betas, grad_betas, g)


@inlined
def _maximise(layer, g, t, coupling, state):
    """M-step of every parent."""
    children, size = layer.runs * layer.across, (2 * layer.dim + 3) * LANES
    r, far = np.empty(children * LANES, state.dtype), np.empty(LANES, state.dtype)
    sums, centre = np.empty((2 * layer.dim + 1) * LANES, state.dtype), np.empty(layer.dim * LANES, state.dtype)
    for w in range(layer.windows):
        child = g * layer.places + _window(layer, w)
        for j in range(layer.parents):
            _responsibility(layer, g, t, w, j, coupling, 0, r, 0)
            here = _state(layer, g, t) + (w * layer.parents + j) * size
            if t:
                _copy(state, here - layer.windows * layer.parents * size, centre, 0, centre.size)
            else:
                _fill(centre, 0)
            for _ in range(2):
                moments(layer, child, j, r, 0, centre, 0, sums, 0)
                fit(sums, 0, centre, 0, layer.dim, layer.beta_u, layer.beta_a, j, layer.heat, t, state, here, far, 0)
                if not _any_positive(far):
                    break
                _copy(state, here, centre, 0, centre.size)


@inlined
def _expect(layer, g, t, state, coupling, c0, slots, total):
    """E-step before pass t: R, from the state of the pass before."""
    children, size = layer.runs * layer.across, (2 * layer.dim + 3) * LANES
    factors, before = np.empty((3 * layer.dim + 1) * LANES, state.dtype), _state(layer, g, t - 1)
    for w in range(layer.windows):
        child = g * layer.places + _window(layer, w)
        for j in range(layer.parents):
            parent = w * layer.parents + j
            expectation(state, before + parent * size, layer.dim, factors, 0)
            square_form(layer, child, j, factors, 0, coupling, c0 + parent * children * LANES)
    for w in range(0, layer.windows, _together(layer)):
        _softmax(layer, w, w + _together(layer), coupling, c0, slots, total)


@inlined
def _softmax(layer, first, last, x, x0, top, total):
    """Softmax over the parents that compete for a child, for the windows from `first` to before `last`."""
    _fill(top, -np.inf)
    _fill(total, 0)
    row = layer.across * LANES
    for w in range(first, last):
        for j in range(layer.parents):
            slot, step = _slot(layer, w, j)
            for k in range(layer.runs):
                at = x0 + ((w * layer.parents + j) * layer.runs + k) * row
                peak(x, at, top, (slot + k * step) * LANES, layer.across)
    for w in range(first, last):
        for j in range(layer.parents):
            slot, step = _slot(layer, w, j)
            for k in range(layer.runs):
                at, to = x0 + ((w * layer.parents + j) * layer.runs + k) * row, (slot + k * step) * LANES
                exponentiate(top, to, x, at, total, to, layer.across)
    invert(total, 0, total.size // LANES)
    for w in range(first, last):
        for j in range(layer.parents):
            slot, step = _slot(layer, w, j)
            for k in range(layer.runs):
                at = x0 + ((w * layer.parents + j) * layer.runs + k) * row
                multiply(x, at, total, (slot + k * step) * LANES, x, at, layer.across)


@inlined
def _maximise_backward(layer, g, t, first, last, work):
    """dL/dR of each link in the place of dL/dlog R, and summed over competing parents, times R, into `slots`."""
    children, size = layer.runs * layer.across, (2 * layer.dim + 3) * LANES
    row, run, terms = children * LANES, layer.across * LANES, 2 * layer.passes - 1
    factors, share, grad = work.factors, _share(layer, t), _share(layer, t) + _links(layer)
    constants, r = np.empty((3 * layer.dim + 1) * LANES, factors.dtype), np.empty(row, factors.dtype)
    for w in range(first, last):
        child = g * layer.places + _window(layer, w)
        for j in range(layer.parents):
            parent = w * layer.parents + j
            slope = (parent * terms + max(0, 2 * t - 1)) * 2 * layer.dim * LANES
            fit_backward(
                work.state, _state(layer, g, t) + parent * size, work.grad_state, _grad_state(layer, g, parent),
                work.state, _state(layer, g, layer.passes - 1) + parent * size, layer.dim, layer.beta_u, j, layer.heat,
                t, constants, 0, work.slopes, slope, work.betas, 2 * j * LANES,
            )  # fmt: skip
            full_form(layer, child, j, constants, 0, r, 0)
            slot, step = _slot(layer, w, j)
            for k in range(layer.runs):
                place, at = (child + k * layer.step) * LANES, parent * row + k * run
                if t == 0:
                    for i in range(k * layer.across, (k + 1) * layer.across):
                        scale(layer.start, w * children + i, r, i * LANES, r, i * LANES, 1)
                    _add(r, k * run, work.grad_activation, place, run)
                    continue
                accumulate_products(r, k * run, factors, share + at, work.grad_activation, place, layer.across)
                multiply(r, k * run, layer.activation, place, factors, grad + at, layer.across)
                if work.grad_kept.size and t == layer.passes - 1:
                    _add(work.grad_kept, g * _links(layer) + at, factors, grad + at, run)
                to = (slot + k * step) * LANES
                accumulate_products(factors, grad + at, factors, share + at, work.slots, to, layer.across)


@inlined
def _expect_backward(layer, g, t, first, last, work):
    """From dL/dR to dL/dlog R, in place, and to the gradient of the state before."""
    children, size = layer.runs * layer.across, (2 * layer.dim + 3) * LANES
    row, terms = children * LANES, 2 * layer.passes - 1
    factors, share, grad = work.factors, _share(layer, t), _share(layer, t) + _links(layer)
    sums = np.empty((2 * layer.dim + 1) * LANES, factors.dtype)
    for w in range(first, last):
        child = g * layer.places + _window(layer, w)
        for j in range(layer.parents):
            parent = w * layer.parents + j
            slot, step = _slot(layer, w, j)
            for k in range(layer.runs):
                at, to = parent * row + k * layer.across * LANES, (slot + k * step) * LANES
                softmax_below(factors, share + at, work.slots, to, factors, grad + at, layer.across)
            before = _state(layer, g, t - 1) + parent * size
            moments(layer, child, j, factors, grad + parent * row, work.state, before, sums, 0)
            expectation_backward(
                work.state, before, sums, 0, work.state, _state(layer, g, layer.passes - 1) + parent * size, layer.dim,
                work.grad_state, _grad_state(layer, g, parent), work.slopes,
                (parent * terms + 2 * t) * 2 * layer.dim * LANES,
            )  # fmt: skip


@inlined
def _spread_all(layer, g, work, grad_pose, wide_weight, wide_shift):
    """Gradients of poses, weights and shifts from dL/dV, which is made link by link."""
    children, size, terms = layer.runs * layer.across, (2 * layer.dim + 3) * LANES, 2 * layer.passes - 1
    row, factors = children * LANES, work.factors
    own = np.empty(terms * row, factors.dtype)
    for w in range(layer.windows):
        child = g * layer.places + _window(layer, w)
        for j in range(layer.parents):
            parent = w * layer.parents + j
            _responsibility(layer, g, 0, w, j, factors, 0, own, 0)
            for t in range(1, layer.passes):
                share = _share(layer, t)
                _responsibility(layer, g, t, w, j, factors, share, own, (2 * t - 1) * row)
                _copy(factors, share + _links(layer) + parent * row, own, 2 * t * row, row)
            spread(
                layer, child, j, terms, own, 0, work.slopes, parent * terms * 2 * layer.dim * LANES, work.state,
                _state(layer, g, layer.passes - 1) + parent * size, grad_pose, wide_weight, wide_shift,
            )  # fmt: skip


@inlined
def _responsibility(layer, g, t, w, j, coupling, c0, r, r0):
    """r = R a from r0 on, of the children of window w, for parent j. The first R is the same for all parents."""
    children = layer.runs * layer.across
    child, at = g * layer.places + _window(layer, w), c0 + (w * layer.parents + j) * children * LANES
    for k in range(layer.runs):
        place, to = (child + k * layer.step) * LANES, k * layer.across * LANES
        if t:
            multiply(coupling, at + to, layer.activation, place, r, r0 + to, layer.across)
        elif j == 0:
            for i in range(k * layer.across, (k + 1) * layer.across):
                scale(layer.start, w * children + i, layer.activation, place - to + i * LANES, r, r0 + i * LANES, 1)


@compiled
def _links(layer):
    """Numbers for the links of a group: each parent with each child of its window."""
    return layer.windows * layer.parents * layer.runs * layer.across * LANES


@compiled
def _share(layer, t):
    """Where R of pass t lies among `factors`; its gradient follows."""
    return (2 * t - 2) * _links(layer)


@compiled
def _state(layer, g, t):
    """Where the state after pass t begins."""
    return (g * layer.passes + t) * layer.windows * layer.parents * (2 * layer.dim + 3) * LANES


@compiled
def _grad_state(layer, g, parent):
    return (g * layer.windows * layer.parents + parent) * (2 * layer.dim + 1) * LANES


@compiled
def _window(layer, w):
    """Place of the first child of a window."""
    return w // layer.columns * layer.down + w % layer.columns * layer.right


@compiled
def _together(layer):
    """Windows whose parents compete."""
    return 1 if layer.convention == TYPE else layer.windows


@compiled
def _slots(layer):
    """Numbers for which there are competitions."""
    if layer.convention == ALL:
        return layer.places * LANES
    if layer.convention == SPACE:
        return layer.parents * layer.places * LANES
    return layer.runs * layer.across * LANES


@compiled
def _slot(layer, w, j):
    """Competition for the first child of a window by parent j, and how far it is to that of the next row."""
    if layer.convention == ALL:
        return _window(layer, w), layer.step
    if layer.convention == SPACE:
        return j * layer.places + _window(layer, w), layer.step
    return 0, layer.across


@compiled
def _any_positive(x):
    largest = x[0]
    for value in x:
        largest = max(largest, value)
    return largest > 0


@compiled
def _fill(x, value):
    for n in range(x.size):
        x[n] = value


@compiled
def _copy(source, s0, out, to, count):
    for n in range(count):
        out[to + n] = source[s0 + n]


@compiled
def _add(source, s0, out, to, count):
    for n in range(count):
        out[to + n] += source[s0 + n]


@compiled
def _sum_lanes(wide, out, g):
    """out[g] = sums over the lanes of `wide`."""
    count = wide.size // LANES
    for n in range(count):
        total = wide[n * LANES]
        for lane in range(1, LANES):
            total += wide[n * LANES + lane]
        out[g * count + n] = total


keep_compiled(
    (forward_pass, backward_pass), (__file__, *(str(module.__file__) for module in (_vectors, each, vectors)))
)
