"""Compiled loops of EM routing: a lane of a vector register belongs to one sample. Needs numba.

A group of LANES samples is routed from its first to its last pass by one thread, so that the outcome does not depend on
the number of threads. All arrays are flat; vectors have one number of each sample. g groups, t passes, w windows,
i children of a window, j parents, y x n places and types of the map, H numbers of a vote:

    pose [g, y, x, n, rows * inner, lane]   activation [g, y, x, n, lane]   weight [j, i, inner, outer]
    shift [j, i, H]   start [w, i]   coupling [g, w, j, i, lane]
    state [g, t, w, j, 2 H + 3, lane]: mean H, variance without its least H, sum of r, sum of log variances, logit
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from torchcaps.kernels.cpu import em_vectors, vectors
from torchcaps.kernels.cpu.cache import keep_compiled
from torchcaps.kernels.cpu.em_vectors import (
    accumulate_products,
    expectation,
    expectation_backward,
    exponentiate,
    fit,
    fit_backward,
    full_form,
    invert,
    moments,
    multiply,
    peak,
    scale,
    softmax_below,
    spread,
    square_form,
)  # fmt: skip
from torchcaps.kernels.cpu.vectors import LANES

ALL, TYPE, SPACE, PATCH = range(4)  # conventions, see `Windows.share`

compiled = numba.njit(nogil=True, error_model="numpy")
# Made part of its caller before anything is compiled: otherwise numba compiles it twice.
inlined = numba.njit(nogil=True, error_model="numpy", inline="always")


class Shape(NamedTuple):
    """Sizes of a layer. Places on the map count children: row by row, column by column, type by type."""

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
    in_dim: int  # numbers of a child's pose
    numbers: int  # of a matrix of weights
    convention: int


@compiled
def forward_pass(first, last, form, shape, pose, activation, weight, shift, start, beta_u, beta_a, heat, state, kept):
    """States of all passes, for the groups from `first` to before `last`, and the last coupling unless `kept` is empty.

    beta_u is multiplied by H.
    """
    parents = shape.windows * shape.parents
    links = parents * shape.runs * shape.across * LANES
    coupling = np.empty(links if shape.passes > 1 else 0, weight.dtype)
    slots, total = np.empty(_slots(shape), weight.dtype), np.empty(_slots(shape), weight.dtype)
    per_pass = parents * (2 * shape.dim + 3) * LANES
    for g in range(first, last):
        for t in range(shape.passes):
            now = (g * shape.passes + t) * per_pass
            if t:
                _expect(form, shape, g, pose, weight, shift, state, now - per_pass, coupling, 0, slots, total)
            _maximise(
                form, shape, g, t, pose, activation, weight, shift, start, beta_u, beta_a, heat, coupling, state, now
            )
        if kept.size:
            _copy(coupling, 0, kept, g * links, links)


@compiled
def backward_pass(
    first, last, form, shape, pose, activation, weight, shift, start, beta_u, heat, state, grad_state, grad_kept,
    grad_pose, grad_activation, grad_weight, grad_shift, grad_betas,
):  # fmt: skip
    """Gradients of all that went in, added to what is there; those of weights, shifts and costs for each group.

    grad_state `[g, w, j, 2 H + 1, lane]`: of mean, variance and logit of the last pass; it is used up. grad_kept: of
    the last coupling, or empty. grad_weight `[g, j, i, inner, outer]`, grad_shift likewise, grad_betas `[g, j, 2]`.
    """
    parents, children = shape.windows * shape.parents, shape.runs * shape.across
    links, size = parents * children * LANES, 2 * shape.dim + 3
    per_pass, per_grad, terms = parents * size * LANES, parents * (2 * shape.dim + 1) * LANES, 2 * shape.passes - 1
    # R and dL/dlog R of each pass but the first: what dL/dV is multiplied together from.
    factors = np.empty((terms - 1) * links, weight.dtype)
    slopes = np.empty(parents * terms * 2 * shape.dim * LANES, weight.dtype)
    slots, total = np.empty(_slots(shape), weight.dtype), np.empty(_slots(shape), weight.dtype)
    wide_weight = np.empty(shape.parents * children * shape.numbers * LANES, weight.dtype)
    wide_shift = np.empty(shape.parents * children * shape.dim * LANES if len(form[3]) == 2 else 0, weight.dtype)
    wide_betas = np.empty(shape.parents * 2 * LANES, weight.dtype)
    for g in range(first, last):
        for wide in (wide_weight, wide_shift, wide_betas):
            _fill(wide, 0)
        begin = g * shape.passes * per_pass
        end = begin + (shape.passes - 1) * per_pass
        for t in range(shape.passes - 1, -1, -1):
            now = begin + t * per_pass
            if t:
                share = (2 * t - 2) * links
                _expect(form, shape, g, pose, weight, shift, state, now - per_pass, factors, share, slots, total)
            _pass_backward(
                form, shape, g, t, pose, activation, weight, shift, start, beta_u, heat, state, now, end, grad_state,
                g * per_grad, grad_kept, factors, slopes, slots, grad_activation, wide_betas,
            )  # fmt: skip
        _spread_all(
            form, shape, g, pose, activation, weight, shift, start, state, end, factors, slopes, grad_pose, wide_weight,
            wide_shift,
        )  # fmt: skip
        _sum_lanes(wide_weight, grad_weight, g)
        _sum_lanes(wide_shift, grad_shift, g)
        _sum_lanes(wide_betas, grad_betas, g)


@inlined
def _maximise(form, shape, g, t, pose, activation, weight, shift, start, beta_u, beta_a, heat, coupling, state, now):
    """M-step of every parent; state of this pass from `now` on, of the one before it right before."""
    children, size = shape.runs * shape.across, (2 * shape.dim + 3) * LANES
    r, far = np.empty(children * LANES, weight.dtype), np.empty(LANES, weight.dtype)
    sums, centre = np.empty((2 * shape.dim + 1) * LANES, weight.dtype), np.empty(shape.dim * LANES, weight.dtype)
    for w in range(shape.windows):
        child = g * shape.places + _window(shape, w)
        for j in range(shape.parents):
            parent = w * shape.parents + j
            _responsibility(shape, g, t, w, j, activation, start, coupling, 0, r, 0)
            here, before = now + parent * size, now + (parent - shape.windows * shape.parents) * size
            if t:
                _copy(state, before, centre, 0, centre.size)
            else:
                _fill(centre, 0)
            for _ in range(2):
                moments(
                    form, pose, child * shape.in_dim * LANES, weight, j * children * shape.numbers,
                    shift, j * children * shape.dim, shape.runs, shape.step, shape.across, r, 0, centre, 0, sums, 0,
                )  # fmt: skip
                fit(sums, 0, centre, 0, shape.dim, beta_u, beta_a, j, heat, t, state, here, far, 0)
                if not _any_positive(far):
                    break
                _copy(state, here, centre, 0, centre.size)


@inlined
def _expect(form, shape, g, pose, weight, shift, state, before, coupling, c0, slots, total):
    """E-step: R of the pass whose predecessor's state is at `before`."""
    children, size = shape.runs * shape.across, (2 * shape.dim + 3) * LANES
    row, factors = children * LANES, np.empty((3 * shape.dim + 1) * LANES, weight.dtype)
    for w in range(shape.windows):
        child = g * shape.places + _window(shape, w)
        for j in range(shape.parents):
            parent = w * shape.parents + j
            expectation(state, before + parent * size, shape.dim, factors, 0)
            square_form(
                form, pose, child * shape.in_dim * LANES, weight, j * children * shape.numbers,
                shift, j * children * shape.dim, shape.runs, shape.step, shape.across, factors, 0,
                coupling, c0 + parent * row,
            )  # fmt: skip
    for w in range(0, shape.windows, _together(shape)):
        _softmax(shape, w, w + _together(shape), coupling, c0, slots, total)


@inlined
def _softmax(shape, first, last, x, x0, top, total):
    """Softmax over the parents that compete for a child, for the windows from `first` to before `last`."""
    _fill(top, -np.inf)
    _fill(total, 0)
    row = shape.across * LANES
    for w in range(first, last):
        for j in range(shape.parents):
            slot, step = _slot(shape, w, j)
            for k in range(shape.runs):
                at = x0 + ((w * shape.parents + j) * shape.runs + k) * row
                peak(x, at, top, (slot + k * step) * LANES, shape.across)
    for w in range(first, last):
        for j in range(shape.parents):
            slot, step = _slot(shape, w, j)
            for k in range(shape.runs):
                at, to = x0 + ((w * shape.parents + j) * shape.runs + k) * row, (slot + k * step) * LANES
                exponentiate(top, to, x, at, total, to, shape.across)
    invert(total, 0, total.size // LANES)
    for w in range(first, last):
        for j in range(shape.parents):
            slot, step = _slot(shape, w, j)
            for k in range(shape.runs):
                at = x0 + ((w * shape.parents + j) * shape.runs + k) * row
                multiply(x, at, total, (slot + k * step) * LANES, x, at, shape.across)


@inlined
def _pass_backward(
    form, shape, g, t, pose, activation, weight, shift, start, beta_u, heat, state, now, end, grad_state, grad0,
    grad_kept, factors, slopes, slots, grad_activation, betas,
):  # fmt: skip
    """Backward of the M-step of pass t and of the E-step before it: dL/dlog R, and grad_state of the pass before."""
    children = shape.runs * shape.across
    links, together = shape.windows * shape.parents * children * LANES, _together(shape)
    share, grad = (2 * t - 2) * links, (2 * t - 1) * links
    for w in range(0, shape.windows, together):
        _fill(slots, 0)
        _maximise_backward(
            form, shape, g, t, w, w + together, pose, activation, weight, shift, start, beta_u, heat, state, now, end,
            grad_state, grad0, grad_kept, factors, share, grad, slopes, slots, grad_activation, betas,
        )  # fmt: skip
        if t:
            _expect_backward(
                form, shape, g, t, w, w + together, pose, weight, shift, state, now, end, grad_state, grad0, factors,
                share, grad, slopes, slots,
            )  # fmt: skip


@inlined
def _maximise_backward(
    form, shape, g, t, first, last, pose, activation, weight, shift, start, beta_u, heat, state, now, end, grad_state,
    grad0, grad_kept, factors, share, grad, slopes, slots, grad_activation, betas,
):  # fmt: skip
    """dL/dR of each link, and summed over competing parents, times R, into `slots`."""
    children, size, terms = shape.runs * shape.across, (2 * shape.dim + 3) * LANES, 2 * shape.passes - 1
    row, run = children * LANES, shape.across * LANES
    links = shape.windows * shape.parents * row
    constants, r = np.empty((3 * shape.dim + 1) * LANES, weight.dtype), np.empty(row, weight.dtype)
    for w in range(first, last):
        child = g * shape.places + _window(shape, w)
        for j in range(shape.parents):
            parent = w * shape.parents + j
            slope = (parent * terms + max(0, 2 * t - 1)) * 2 * shape.dim * LANES
            fit_backward(
                state, now + parent * size, grad_state, grad0 + parent * (2 * shape.dim + 1) * LANES,
                state, end + parent * size, shape.dim, beta_u, j, heat, t, constants, 0, slopes, slope,
                betas, 2 * j * LANES,
            )  # fmt: skip
            full_form(
                form, pose, child * shape.in_dim * LANES, weight, j * children * shape.numbers,
                shift, j * children * shape.dim, shape.runs, shape.step, shape.across, constants, 0, r, 0,
            )  # fmt: skip
            slot, step = _slot(shape, w, j)
            for k in range(shape.runs):
                place, at = (child + k * shape.step) * LANES, parent * row + k * run
                if t == 0:
                    for i in range(k * shape.across, (k + 1) * shape.across):
                        scale(start, w * children + i, r, i * LANES, r, i * LANES, 1)
                    _add(r, k * run, grad_activation, place, run)
                    continue
                accumulate_products(r, k * run, factors, share + at, grad_activation, place, shape.across)
                multiply(r, k * run, activation, place, factors, grad + at, shape.across)
                if grad_kept.size and t == shape.passes - 1:
                    _add(grad_kept, g * links + at, factors, grad + at, run)
                to = (slot + k * step) * LANES
                accumulate_products(factors, grad + at, factors, share + at, slots, to, shape.across)


@inlined
def _expect_backward(
    form, shape, g, t, first, last, pose, weight, shift, state, now, end, grad_state, grad0, factors, share, grad,
    slopes, slots,
):  # fmt: skip
    """From dL/dR to dL/dlog R, in place, and to the gradient of the state before."""
    children, size, terms = shape.runs * shape.across, (2 * shape.dim + 3) * LANES, 2 * shape.passes - 1
    row, before = children * LANES, now - shape.windows * shape.parents * size
    sums = np.empty((2 * shape.dim + 1) * LANES, weight.dtype)
    for w in range(first, last):
        child = g * shape.places + _window(shape, w)
        for j in range(shape.parents):
            parent = w * shape.parents + j
            slot, step = _slot(shape, w, j)
            for k in range(shape.runs):
                at = parent * row + k * shape.across * LANES
                softmax_below(factors, share + at, slots, (slot + k * step) * LANES, factors, grad + at, shape.across)
            moments(
                form, pose, child * shape.in_dim * LANES, weight, j * children * shape.numbers,
                shift, j * children * shape.dim, shape.runs, shape.step, shape.across, factors, grad + parent * row,
                state, before + parent * size, sums, 0,
            )  # fmt: skip
            expectation_backward(
                state, before + parent * size, sums, 0, state, end + parent * size, shape.dim, grad_state,
                grad0 + parent * (2 * shape.dim + 1) * LANES, slopes, (parent * terms + 2 * t) * 2 * shape.dim * LANES,
            )  # fmt: skip


@inlined
def _spread_all(
    form, shape, g, pose, activation, weight, shift, start, state, end, factors, slopes, grad_pose, wide_weight,
    wide_shift,
):  # fmt: skip
    """Gradients of poses, weights and shifts from dL/dV, which is made link by link."""
    children, size, terms = shape.runs * shape.across, (2 * shape.dim + 3) * LANES, 2 * shape.passes - 1
    row = children * LANES
    links = shape.windows * shape.parents * row
    own = np.empty(terms * row, weight.dtype)
    for w in range(shape.windows):
        child = (g * shape.places + _window(shape, w)) * shape.in_dim * LANES
        for j in range(shape.parents):
            parent = w * shape.parents + j
            _responsibility(shape, g, 0, w, j, activation, start, factors, 0, own, 0)
            for t in range(1, shape.passes):
                share = (2 * t - 2) * links
                _responsibility(shape, g, t, w, j, activation, start, factors, share, own, (2 * t - 1) * row)
                grad = (2 * t - 1) * links + parent * row
                _copy(factors, grad, own, 2 * t * row, row)
            spread(
                form, pose, child, weight, j * children * shape.numbers, shift, j * children * shape.dim,
                shape.runs, shape.step, shape.across, terms, own, 0, slopes, parent * terms * 2 * shape.dim * LANES,
                state, end + parent * size, grad_pose, child, wide_weight, j * children * shape.numbers * LANES,
                wide_shift, j * children * shape.dim * LANES,
            )  # fmt: skip


@inlined
def _responsibility(shape, g, t, w, j, activation, start, coupling, c0, r, r0):
    """r = R a from r0 on, of the children of window w, for parent j. The first R is the same for all parents."""
    children = shape.runs * shape.across
    child, at = g * shape.places + _window(shape, w), c0 + (w * shape.parents + j) * children * LANES
    for k in range(shape.runs):
        place, to = (child + k * shape.step) * LANES, k * shape.across * LANES
        if t:
            multiply(coupling, at + to, activation, place, r, r0 + to, shape.across)
        elif j == 0:
            for i in range(k * shape.across, (k + 1) * shape.across):
                scale(start, w * children + i, activation, place - to + i * LANES, r, r0 + i * LANES, 1)


@compiled
def _window(shape, w):
    """Place of the first child of a window."""
    return w // shape.columns * shape.down + w % shape.columns * shape.right


@compiled
def _together(shape):
    """Windows whose parents compete."""
    return 1 if shape.convention == TYPE else shape.windows


@compiled
def _slots(shape):
    """Numbers for which there are competitions."""
    if shape.convention == ALL:
        return shape.places * LANES
    if shape.convention == SPACE:
        return shape.parents * shape.places * LANES
    return shape.runs * shape.across * LANES


@compiled
def _slot(shape, w, j):
    """Competition for the first child of a window by parent j, and how far it is to that of the next row."""
    if shape.convention == ALL:
        return _window(shape, w), shape.step
    if shape.convention == SPACE:
        return j * shape.places + _window(shape, w), shape.step
    return 0, shape.across


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


keep_compiled((forward_pass, backward_pass), (__file__, em_vectors.__file__, vectors.__file__))
