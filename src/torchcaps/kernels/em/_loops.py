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
from torchcaps.kernels.simd import _vectors as vectors
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
Backward = namedtuple(
    "Backward", "state grad_state grad_kept factors slopes slots betas grad_activation"
)


@compiled
def forward_pass(first, last, layer, state, kept):
    """States of all passes of the groups from `first` to before `last`; the last coupling unless `kept` is empty."""
    links = _links(layer)
    coupling = vectors.scratch(links if layer.passes > 1 else 0, state.dtype)
    slots, total = (
        vectors.scratch(layer.slots * LANES, state.dtype),
        vectors.scratch(layer.slots * LANES, state.dtype),
    )
    for g in range(first, last):
        for t in range(layer.passes):
            if t:
                _expect(layer, g, t, state, coupling, slots, total)
            _maximize(layer, g, t, coupling, state)
        if kept.size:
            kept[g * links : (g + 1) * links] = coupling


@compiled
def backward_pass(first, last, layer, state, grad_state, grad_kept, grads):
    """Gradients of poses and activations, added to what is there; those of weights, shifts and costs for each group."""
    terms, kind, together = 2 * layer.passes - 1, state.dtype, layer.together
    factors = vectors.scratch((terms - 1) * _links(layer), kind)
    slopes = vectors.scratch(layer.windows * layer.parents * terms * 2 * layer.dim * LANES, kind)
    slots, total = (
        vectors.scratch(layer.slots * LANES, kind),
        vectors.scratch(layer.slots * LANES, kind),
    )
    grad_weight, grad_shift = (
        np.empty(layer.weight.size + LANES, kind),
        np.empty(layer.shift.size + LANES, kind),
    )
    betas = vectors.scratch(layer.parents * 2 * LANES, kind)
    work = Backward(state, grad_state, grad_kept, factors, slopes, slots, betas, grads.activation)
    for g in range(first, last):
        for sums in (grad_weight, grad_shift, betas):
            sums[:] = 0
        if layer.passes > 1:
            _last_forms(layer, g, work)
        for t in range(layer.passes - 1, 0, -1):
            for w in range(0, layer.windows, together):
                _softmax(layer, w, w + together, factors, _share(layer, t), slots, total)
                slots[:] = 0
                _maximize_backward(layer, g, t, w, w + together, work)
                _expect_backward(layer, g, t, w, w + together, work)
        _spread_all(layer, g, work, grads.pose, grad_weight, grad_shift)
        grads.weight[g * layer.weight.size : (g + 1) * layer.weight.size] = grad_weight[:-LANES]
        grads.shift[g * layer.shift.size : (g + 1) * layer.shift.size] = grad_shift[:-LANES]
        for n in range(layer.parents * 2):
            grads.betas[g * layer.parents * 2 + n] = betas[n * LANES : (n + 1) * LANES].sum()


@inlined
def _maximize(layer, g, t, coupling, state):
    """M-step of every parent."""
    children = layer.runs * layer.across
    r, far = vectors.scratch(children * LANES, state.dtype), vectors.scratch(LANES, state.dtype)
    sums, center = (
        vectors.scratch((2 * layer.dim + 1) * LANES, state.dtype),
        vectors.scratch(layer.dim * LANES, state.dtype),
    )
    for parent in range(layer.windows * layer.parents):
        child, j = _children(layer, g, parent), parent % layer.parents
        _responsibility(layer, g, t, parent, coupling, 0, r, 0)
        here = _state(layer, g, t, parent)
        center[:] = 0
        if t:
            before = _state(layer, g, t - 1, parent)
            center[:] = state[before : before + center.size]
        for _ in range(2):
            _vectors.moments(layer, child, j, r, 0, center, 0, sums, 0)
            _vectors.fit(
                sums,
                0,
                center,
                0,
                layer.dim,
                layer.beta_u,
                j,
                layer.beta_a,
                j,
                layer.heat,
                t,
                state,
                here,
                far,
                0,
            )
            if not far.max() > 0:
                break
            center[:] = state[here : here + center.size]


@inlined
def _expect(layer, g, t, state, coupling, slots, total):
    """E-step before pass t: R, from the state of the pass before."""
    children = layer.runs * layer.across
    factors = vectors.scratch((3 * layer.dim + 1) * LANES, state.dtype)
    for parent in range(layer.windows * layer.parents):
        child, j = _children(layer, g, parent), parent % layer.parents
        _vectors.expectation(state, _state(layer, g, t - 1, parent), layer.dim, factors, 0)
        _vectors.form(layer, child, j, factors, 0, coupling, parent * children * LANES)
    for w in range(0, layer.windows, layer.together):
        _softmax(layer, w, w + layer.together, coupling, 0, slots, total)


@inlined
def _softmax(layer, first, last, x, x0, top, total):
    """Softmax over the parents that compete for a child, for the windows from `first` to before `last`."""
    top[:] = -np.inf
    total[:] = 0
    row, each = layer.across * LANES, layer.parents * layer.runs
    for n in range(first * each, last * each):
        vectors.peak(x, x0 + n * row, top, _slot(layer, n), layer.across)
    for n in range(first * each, last * each):
        vectors.exponentiate(
            top, _slot(layer, n), x, x0 + n * row, total, _slot(layer, n), layer.across
        )
    vectors.invert(total, 0, layer.slots)
    for n in range(first * each, last * each):
        vectors.multiply(x, x0 + n * row, total, _slot(layer, n), x, x0 + n * row, layer.across)


@inlined
def _last_forms(layer, g, work):
    """log R of every pass, and dL/dr of the last: their factors are known, so each vote is made once for all."""
    children, each = layer.runs * layer.across, (3 * layer.dim + 1) * LANES
    constants = vectors.scratch(layer.passes * each, work.state.dtype)
    for parent in range(layer.windows * layer.parents):
        for t in range(1, layer.passes):
            _vectors.expectation(
                work.state, _state(layer, g, t - 1, parent), layer.dim, constants, (t - 1) * each
            )
        _fit_backward(
            layer, g, layer.passes - 1, parent, work, constants, (layer.passes - 1) * each
        )
        _vectors.forms(
            layer,
            _children(layer, g, parent),
            parent % layer.parents,
            layer.passes,
            constants,
            0,
            work.factors,
            parent * children * LANES,
            _links(layer) // LANES,
        )


@inlined
def _fit_backward(layer, g, t, parent, work, constants, c0):
    """Factors of dL/dr of a parent's children, with r = R a, and of dL/dV; the costs' gradients."""
    terms, j = 2 * layer.passes - 1, parent % layer.parents
    slope = (parent * terms + max(0, 2 * t - 1)) * 2 * layer.dim * LANES
    _vectors.fit_backward(
        work.state,
        _state(layer, g, t, parent),
        work.grad_state,
        _grad_state(layer, g, parent),
        work.state,
        _state(layer, g, -1, parent),
        layer.dim,
        layer.beta_u,
        j,
        layer.heat,
        t,
        constants,
        c0,
        work.slopes,
        slope,
        work.betas,
        2 * j * LANES,
    )


@inlined
def _maximize_backward(layer, g, t, first, last, work):
    """dL/dR of each link in the place of dL/dlog R, and summed over competing parents, times R, into `slots`."""
    children, row = layer.runs * layer.across, layer.across * LANES
    factors, share, grad = work.factors, _share(layer, t), _grad_share(layer, t)
    constants = vectors.scratch((3 * layer.dim + 1) * LANES, factors.dtype)
    for parent in range(first * layer.parents, last * layer.parents):
        child, j = _children(layer, g, parent), parent % layer.parents
        if t < layer.passes - 1:
            _fit_backward(layer, g, t, parent, work, constants, 0)
            _vectors.form(layer, child, j, constants, 0, factors, grad + parent * children * LANES)
        for k in range(layer.runs):
            n, place = parent * layer.runs + k, (child + k * layer.step) * LANES
            at, slot = n * row, _slot(layer, n)
            vectors.accumulate_products(
                factors, grad + at, factors, share + at, work.grad_activation, place, layer.across
            )
            vectors.multiply(
                factors, grad + at, layer.activation, place, factors, grad + at, layer.across
            )
            if work.grad_kept.size and t == layer.passes - 1:
                kept = g * _links(layer) + at
                factors[grad + at : grad + at + row] += work.grad_kept[kept : kept + row]
            vectors.accumulate_products(
                factors, grad + at, factors, share + at, work.slots, slot, layer.across
            )


@inlined
def _expect_backward(layer, g, t, first, last, work):
    """From dL/dR to dL/dlog R, in place, and to the gradient of the state before."""
    row, terms = layer.across * LANES, 2 * layer.passes - 1
    factors, share, grad = work.factors, _share(layer, t), _grad_share(layer, t)
    sums = vectors.scratch((2 * layer.dim + 1) * LANES, factors.dtype)
    for parent in range(first * layer.parents, last * layer.parents):
        for n in range(parent * layer.runs, (parent + 1) * layer.runs):
            at = n * row
            vectors.softmax_below(
                factors, share + at, work.slots, _slot(layer, n), factors, grad + at, layer.across
            )
        child, j = _children(layer, g, parent), parent % layer.parents
        before = _state(layer, g, t - 1, parent)
        _vectors.moments(
            layer, child, j, factors, grad + parent * layer.runs * row, work.state, before, sums, 0
        )
        _vectors.expectation_backward(
            work.state,
            before,
            sums,
            0,
            work.state,
            _state(layer, g, -1, parent),
            layer.dim,
            work.grad_state,
            _grad_state(layer, g, parent),
            work.slopes,
            (parent * terms + 2 * t) * 2 * layer.dim * LANES,
        )


@inlined
def _spread_all(layer, g, work, grad_pose, grad_weight, grad_shift):
    """Gradients of poses, weights, shifts and, by the first R, of activations; dL/dV is made link by link."""
    terms, children = 2 * layer.passes - 1, layer.runs * layer.across
    row, factors = children * LANES, work.factors
    own, first = vectors.scratch(terms * row, factors.dtype), vectors.scratch(row, factors.dtype)
    constants = vectors.scratch((3 * layer.dim + 1) * LANES, factors.dtype)
    for parent in range(layer.windows * layer.parents):
        child, start = _children(layer, g, parent), parent // layer.parents * children
        _responsibility(layer, g, 0, parent, factors, 0, own, 0)
        for t in range(1, layer.passes):
            to, grad = 2 * t * row, _grad_share(layer, t) + parent * row
            _responsibility(layer, g, t, parent, factors, _share(layer, t), own, to - row)
            own[to : to + row] = factors[grad : grad + row]
        _fit_backward(layer, g, 0, parent, work, constants, 0)
        _vectors.form(layer, child, parent % layer.parents, constants, 0, first, 0)
        _vectors.spread(
            layer,
            child,
            parent % layer.parents,
            terms,
            own,
            0,
            work.slopes,
            parent * terms * 2 * layer.dim * LANES,
            work.state,
            _state(layer, g, -1, parent),
            grad_pose,
            0,
            grad_weight,
            0,
            grad_shift,
            0,
        )
        for k in range(layer.runs):
            place, to = (child + k * layer.step) * LANES, k * layer.across * LANES
            for i in range(k * layer.across, (k + 1) * layer.across):
                vectors.scale(layer.start, start + i, first, i * LANES, first, i * LANES, 1)
            work.grad_activation[place : place + layer.across * LANES] += first[
                to : to + layer.across * LANES
            ]


@inlined
def _responsibility(layer, g, t, parent, coupling, c0, r, r0):
    """r = R a from r0 on, of the children of a parent's window. The first R is the same for all parents of a window."""
    children, row, child = (
        layer.runs * layer.across,
        layer.across * LANES,
        _children(layer, g, parent),
    )
    for k in range(layer.runs):
        place, to = (child + k * layer.step) * LANES, k * row
        if t:
            at = c0 + (parent * layer.runs + k) * row
            vectors.multiply(coupling, at, layer.activation, place, r, r0 + to, layer.across)
        elif parent % layer.parents == 0:
            for i in range(k * layer.across, (k + 1) * layer.across):
                start = parent // layer.parents * children + i
                vectors.scale(
                    layer.start,
                    start,
                    layer.activation,
                    place - to + i * LANES,
                    r,
                    r0 + i * LANES,
                    1,
                )


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
    """Where R of pass t lies among `factors`."""
    return (t - 1) * _links(layer)


@compiled
def _grad_share(layer, t):
    """Where dL/dlog R of pass t lies among `factors`: that of the last pass first, behind all R."""
    return (2 * layer.passes - 2 - t) * _links(layer)


@compiled
def _state(layer, g, t, parent):
    """Where the state of a parent after pass t begins; of the last pass for t = -1."""
    passes = g * layer.passes + t % layer.passes
    return (passes * layer.windows * layer.parents + parent) * (2 * layer.dim + 3) * LANES


@compiled
def _grad_state(layer, g, parent):
    return (g * layer.windows * layer.parents + parent) * (2 * layer.dim + 1) * LANES


keep_compiled(
    (forward_pass, backward_pass),
    (__file__, *(str(module.__file__) for module in (_vectors, vectors))),
)
