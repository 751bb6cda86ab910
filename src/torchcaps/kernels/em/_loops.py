"""Compiled loops of EM routing: a lane of a vector register belongs to one sample. Needs numba.

A group of LANES samples is routed from its first to its last pass by one thread, so that the outcome does not depend on
the number of threads. All arrays are flat; vectors have one number of each sample. g groups, t passes, w windows,
i children of a window, j parents, y x n places and types of the map, H numbers of a vote:

    pose [g, y, x, n, rows * inner, lane]   activation [g, y, x, n, lane]   weight [j, i, inner, outer]
    shift [j, i, H]   start [w, i]   coupling [g, w, j, i, lane]   window [w]   slot [w, j]
    state [g, t, w, j, 2 H + 3, lane]: mean H, variance without its least H, sum of r, sum of log variances, logit
    grad_state [g, w, j, 2 H + 1, lane]: of mean, variance and logit; it is used up from pass to pass
"""

# mypy: allow-untyped-defs
from collections import namedtuple

import numba
import numpy as np

from torchcaps.kernels.em import _vectors
from torchcaps.kernels.simd import vectors
from torchcaps.kernels.simd.lanes import LANES, keep_compiled

compiled = numba.njit(nogil=True, error_model="numpy")
# Made part of its caller before anything is compiled: otherwise numba compiles it twice.
inlined = numba.njit(nogil=True, error_model="numpy", inline="always")


# Sizes of a layer, and what went in. Places on the map count children: row by row, then columns, then types. form: see
# `form_of`; together: windows whose parents compete; runs: rows of a window; step: places from one of them to the next;
# across: children in one of them; places: children of the map; slots: competitions at a time; slot_step: competitions
# from that for a row of a window to that for the next; window: place of a window's first child; slot: competition for
# it by a parent; beta_u is multiplied by H.
Layer = namedtuple(
    "Layer",
    "form passes windows together runs step across places parents dim slots slot_step window slot pose activation "
    "weight shift start beta_u beta_a heat",
)
# Gradients of all that went in; those of weights `[g, j, i, inner, outer]` and shifts, of costs `[g, j, 2]`.
Grads = namedtuple("Grads", "pose activation weight shift betas")
# What the passes of a backward share: states and their gradients, that of the last coupling (or nothing), R and
# dL/dlog R of each pass but the first, and what dL/dV is multiplied together from.
Backward = namedtuple("Backward", "state grad_state grad_kept factors slopes slots betas grad_activation")


@compiled
def forward_pass(first, last, layer, state, kept):
    """States of all passes of the groups from `first` to before `last`; the last coupling unless `kept` is empty."""
    links = _links(layer)
    coupling = np.empty(links if layer.passes > 1 else 0, state.dtype)
    slots, total = np.empty(layer.slots * LANES, state.dtype), np.empty(layer.slots * LANES, state.dtype)
    for g in range(first, last):
        for t in range(layer.passes):
            if t:
                _expect(layer, g, t, state, coupling, 0, slots, total)
            _maximise(layer, g, t, coupling, state)
        if kept.size:
            kept[g * links : (g + 1) * links] = coupling


@compiled
def backward_pass(first, last, layer, state, grad_state, grad_kept, grads):
    """Gradients of poses and activations, added to what is there; those of weights, shifts and costs for each group."""
    terms, kind, together = 2 * layer.passes - 1, state.dtype, layer.together
    factors = np.empty((terms - 1) * _links(layer), kind)
    slopes = np.empty(layer.windows * layer.parents * terms * 2 * layer.dim * LANES, kind)
    slots, total = np.empty(layer.slots * LANES, kind), np.empty(layer.slots * LANES, kind)
    wide_weight, wide_shift = np.empty(layer.weight.size * LANES, kind), np.empty(layer.shift.size * LANES, kind)
    wide_betas = np.empty(layer.parents * 2 * LANES, kind)
    work = Backward(state, grad_state, grad_kept, factors, slopes, slots, wide_betas, grads.activation)
    for g in range(first, last):
        for wide in (wide_weight, wide_shift, wide_betas):
            wide[:] = 0
        for t in range(layer.passes - 1, -1, -1):
            if t:
                _expect(layer, g, t, state, factors, _share(layer, t), slots, total)
            for w in range(0, layer.windows, together):
                slots[:] = 0
                _maximise_backward(layer, g, t, w, w + together, work)
                if t:
                    _expect_backward(layer, g, t, w, w + together, work)
        _spread_all(layer, g, work, grads.pose, wide_weight, wide_shift)
        for wide, out in ((wide_weight, grads.weight), (wide_shift, grads.shift), (wide_betas, grads.betas)):
            _sum_lanes(wide, out, g)


@inlined
def _maximise(layer, g, t, coupling, state):
    """M-step of every parent."""
    children = layer.runs * layer.across
    r, far = np.empty(children * LANES, state.dtype), np.empty(LANES, state.dtype)
    sums, centre = np.empty((2 * layer.dim + 1) * LANES, state.dtype), np.empty(layer.dim * LANES, state.dtype)
    for parent in range(layer.windows * layer.parents):
        child, j = _children(layer, g, parent), parent % layer.parents
        _responsibility(layer, g, t, parent, coupling, 0, r, 0)
        here = _state(layer, g, t, parent)
        centre[:] = 0
        if t:
            before = _state(layer, g, t - 1, parent)
            centre[:] = state[before : before + centre.size]
        for _ in range(2):
            _vectors.moments(layer, child, j, r, 0, centre, 0, sums, 0)
            _vectors.fit(
                sums, 0, centre, 0, layer.dim, layer.beta_u, j, layer.beta_a, j, layer.heat, t, state, here, far, 0
            )
            if not far.max() > 0:
                break
            centre[:] = state[here : here + centre.size]


@inlined
def _expect(layer, g, t, state, coupling, c0, slots, total):
    """E-step before pass t: R, from the state of the pass before."""
    children = layer.runs * layer.across
    factors = np.empty((3 * layer.dim + 1) * LANES, state.dtype)
    for parent in range(layer.windows * layer.parents):
        child, j = _children(layer, g, parent), parent % layer.parents
        _vectors.expectation(state, _state(layer, g, t - 1, parent), layer.dim, factors, 0)
        _vectors.form(layer, child, j, factors, 0, coupling, c0 + parent * children * LANES)
    for w in range(0, layer.windows, layer.together):
        _softmax(layer, w, w + layer.together, coupling, c0, slots, total)


@inlined
def _softmax(layer, first, last, x, x0, top, total):
    """Softmax over the parents that compete for a child, for the windows from `first` to before `last`."""
    top[:] = -np.inf
    total[:] = 0
    row, each = layer.across * LANES, layer.parents * layer.runs
    for n in range(first * each, last * each):
        vectors.peak(x, x0 + n * row, top, _slot(layer, n), layer.across)
    for n in range(first * each, last * each):
        vectors.exponentiate(top, _slot(layer, n), x, x0 + n * row, total, _slot(layer, n), layer.across)
    vectors.invert(total, 0, layer.slots)
    for n in range(first * each, last * each):
        vectors.multiply(x, x0 + n * row, total, _slot(layer, n), x, x0 + n * row, layer.across)


@inlined
def _maximise_backward(layer, g, t, first, last, work):
    """dL/dR of each link in the place of dL/dlog R, and summed over competing parents, times R, into `slots`."""
    children = layer.runs * layer.across
    row, terms = layer.across * LANES, 2 * layer.passes - 1
    factors, share, grad = work.factors, _share(layer, t), _share(layer, t) + _links(layer)
    constants, r = np.empty((3 * layer.dim + 1) * LANES, factors.dtype), np.empty(layer.runs * row, factors.dtype)
    for parent in range(first * layer.parents, last * layer.parents):
        child, j = _children(layer, g, parent), parent % layer.parents
        slope = (parent * terms + max(0, 2 * t - 1)) * 2 * layer.dim * LANES
        _vectors.fit_backward(
            work.state, _state(layer, g, t, parent), work.grad_state, _grad_state(layer, g, parent),
            work.state, _state(layer, g, -1, parent), layer.dim, layer.beta_u, j, layer.heat,
            t, constants, 0, work.slopes, slope, work.betas, 2 * j * LANES,
        )  # fmt: skip
        _vectors.form(layer, child, j, constants, 0, r, 0)
        for k in range(layer.runs):
            n, place, own = parent * layer.runs + k, (child + k * layer.step) * LANES, k * row
            at = n * row
            if t == 0:
                for i in range(k * layer.across, (k + 1) * layer.across):
                    start = parent // layer.parents * children + i
                    vectors.scale(layer.start, start, r, i * LANES, r, i * LANES, 1)
                work.grad_activation[place : place + row] += r[own : own + row]
                continue
            vectors.accumulate_products(r, own, factors, share + at, work.grad_activation, place, layer.across)
            vectors.multiply(r, own, layer.activation, place, factors, grad + at, layer.across)
            if work.grad_kept.size and t == layer.passes - 1:
                kept = g * _links(layer) + at
                factors[grad + at : grad + at + row] += work.grad_kept[kept : kept + row]
            slot = _slot(layer, n)
            vectors.accumulate_products(factors, grad + at, factors, share + at, work.slots, slot, layer.across)


@inlined
def _expect_backward(layer, g, t, first, last, work):
    """From dL/dR to dL/dlog R, in place, and to the gradient of the state before."""
    row, terms = layer.across * LANES, 2 * layer.passes - 1
    factors, share, grad = work.factors, _share(layer, t), _share(layer, t) + _links(layer)
    sums = np.empty((2 * layer.dim + 1) * LANES, factors.dtype)
    for parent in range(first * layer.parents, last * layer.parents):
        for n in range(parent * layer.runs, (parent + 1) * layer.runs):
            at = n * row
            vectors.softmax_below(factors, share + at, work.slots, _slot(layer, n), factors, grad + at, layer.across)
        child, j = _children(layer, g, parent), parent % layer.parents
        before = _state(layer, g, t - 1, parent)
        _vectors.moments(layer, child, j, factors, grad + parent * layer.runs * row, work.state, before, sums, 0)
        _vectors.expectation_backward(
            work.state, before, sums, 0, work.state, _state(layer, g, -1, parent), layer.dim,
            work.grad_state, _grad_state(layer, g, parent), work.slopes,
            (parent * terms + 2 * t) * 2 * layer.dim * LANES,
        )  # fmt: skip


@inlined
def _spread_all(layer, g, work, grad_pose, wide_weight, wide_shift):
    """Gradients of poses, weights and shifts from dL/dV, which is made link by link."""
    terms = 2 * layer.passes - 1
    row, factors = layer.runs * layer.across * LANES, work.factors
    own = np.empty(terms * row, factors.dtype)
    for parent in range(layer.windows * layer.parents):
        _responsibility(layer, g, 0, parent, factors, 0, own, 0)
        for t in range(1, layer.passes):
            share, to = _share(layer, t), 2 * t * row
            _responsibility(layer, g, t, parent, factors, share, own, to - row)
            grad = share + _links(layer) + parent * row
            own[to : to + row] = factors[grad : grad + row]
        _vectors.spread(
            layer, _children(layer, g, parent), parent % layer.parents, terms, own, 0, work.slopes,
            parent * terms * 2 * layer.dim * LANES, work.state,
            _state(layer, g, -1, parent), grad_pose, 0, wide_weight, 0, wide_shift, 0,
        )  # fmt: skip


@inlined
def _responsibility(layer, g, t, parent, coupling, c0, r, r0):
    """r = R a from r0 on, of the children of a parent's window. The first R is the same for all parents of a window."""
    children, row, child = layer.runs * layer.across, layer.across * LANES, _children(layer, g, parent)
    for k in range(layer.runs):
        place, to = (child + k * layer.step) * LANES, k * row
        if t:
            at = c0 + (parent * layer.runs + k) * row
            vectors.multiply(coupling, at, layer.activation, place, r, r0 + to, layer.across)
        elif parent % layer.parents == 0:
            for i in range(k * layer.across, (k + 1) * layer.across):
                start = parent // layer.parents * children + i
                vectors.scale(layer.start, start, layer.activation, place - to + i * LANES, r, r0 + i * LANES, 1)


@compiled
def _children(layer, g, parent):
    """Place of the first child of a parent; parents are numbered window by window."""
    return g * layer.places + layer.window[parent // layer.parents]


@compiled
def _slot(layer, n):
    """Competition for the first child of the n-th row of windows, which are numbered parent by parent."""
    return (layer.slot[n // layer.runs] + n % layer.runs * layer.slot_step) * LANES


@compiled
def _links(layer):
    """Numbers for the links of a group: each parent with each child of its window."""
    return layer.windows * layer.parents * layer.runs * layer.across * LANES


@compiled
def _share(layer, t):
    """Where R of pass t lies among `factors`; its gradient follows."""
    return (2 * t - 2) * _links(layer)


@compiled
def _state(layer, g, t, parent):
    """Where the state of a parent after pass t begins; of the last pass for t = -1."""
    passes = g * layer.passes + t % layer.passes
    return (passes * layer.windows * layer.parents + parent) * (2 * layer.dim + 3) * LANES


@compiled
def _grad_state(layer, g, parent):
    return (g * layer.windows * layer.parents + parent) * (2 * layer.dim + 1) * LANES


@compiled
def _sum_lanes(wide, out, g):
    """out[g] = sums over the lanes of `wide`."""
    count = wide.size // LANES
    for n in range(count):
        total = wide[n * LANES]
        for lane in range(1, LANES):
            total += wide[n * LANES + lane]
        out[g * count + n] = total


keep_compiled((forward_pass, backward_pass), (__file__, *(str(module.__file__) for module in (_vectors, vectors))))
