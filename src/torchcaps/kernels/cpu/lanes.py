"""Compiled loops of routing by agreement: a lane of a vector register belongs to one sample. Needs numba.

Nothing is summed across lanes, so no sum is reordered and the outcome does not depend on the number of threads. Votes are
computed anew wherever they are needed, for LANES samples of one child at a time: they never leave the cache of a core.
All arrays are flat. Letters: g groups of LANES samples, i children, j parents, d dimensions of a parent, k of a child:

    pose [g, i, k, lane]   weight [i, j, d, k]   reached, grad_s, sums [g, j, d, lane]   coupling [g, i, j, lane]
"""

from __future__ import annotations

import numba
import numpy as np

from torchcaps.kernels.cpu.vectors import (
    LANES, ROWS, accumulate, dot, multiply_row, multiply_rows, softmax, softmax_gradient,
)  # fmt: skip

compiled = numba.njit(nogil=True, error_model="numpy")


@compiled
def uniform_pass(first, last, sizes, pose, weight, sums):  # type: ignore[no-untyped-def]
    """sums = sum_i u_ij for the groups from `first` to before `last`; sizes are (i, j, d, k)."""
    children, parents, dim, in_dim = sizes
    per_group = parents * dim * LANES
    sums[first * per_group : last * per_group] = 0
    for g in range(first, last):
        for i in range(children):
            child = (g * children + i) * in_dim * LANES
            _add_votes(weight, i * parents * dim * in_dim, parents * dim, in_dim, pose, child, sums, g * per_group)


@compiled
def routed_pass(first, last, sizes, leaky, pose, weight, reached, sums, coupling):  # type: ignore[no-untyped-def]
    """sums = sum_i c_ij u_ij with c = softmax <u, reached>; the coupling is kept where that array is not empty."""
    children, parents, dim, in_dim = sizes
    per_group, row = parents * dim * LANES, dim * LANES
    votes, c = np.empty(per_group, weight.dtype), np.empty((parents + leaky) * LANES, weight.dtype)
    sums[first * per_group : last * per_group] = 0
    for g in range(first, last):
        for i in range(children):
            votes[:] = 0
            child = (g * children + i) * in_dim * LANES
            _add_votes(weight, i * parents * dim * in_dim, parents * dim, in_dim, pose, child, votes, 0)
            _couple(votes, reached, g * per_group, parents, dim, leaky, c)
            for j in range(parents):
                accumulate(c, j * LANES, votes, j * row, dim, sums, g * per_group + j * row)
            if coupling.size:
                _copy(c, parents * LANES, coupling, (g * children + i) * parents * LANES)


@compiled
def backward_pass(first, last, sizes, leaky, pose, weight, reached, grad_s, grad_c, coupling, grad_logits, grad_reached):  # type: ignore[no-untyped-def]
    """Coupling, gradient of the logits `[g, i, j, lane]`, and of `reached`; grad_c is the coupling's own, or empty."""
    children, parents, dim, in_dim = sizes
    per_group, row = parents * dim * LANES, dim * LANES
    votes, c = np.empty(per_group, weight.dtype), np.empty((parents + leaky) * LANES, weight.dtype)
    grad_reached[first * per_group : last * per_group] = 0
    for g in range(first, last):
        for i in range(children):
            votes[:] = 0
            child, pairs = (g * children + i) * in_dim * LANES, (g * children + i) * parents * LANES
            _add_votes(weight, i * parents * dim * in_dim, parents * dim, in_dim, pose, child, votes, 0)
            _couple(votes, reached, g * per_group, parents, dim, leaky, c)
            _copy(c, parents * LANES, coupling, pairs)
            for j in range(parents):
                dot(votes, j * row, grad_s, g * per_group + j * row, dim, grad_logits, pairs + j * LANES)
            if grad_c.size:
                for n in range(pairs, pairs + parents * LANES):
                    grad_logits[n] += grad_c[n]
            softmax_gradient(c, 0, grad_logits, pairs, parents)
            for j in range(parents):
                accumulate(grad_logits, pairs + j * LANES, votes, j * row, dim, grad_reached, g * per_group + j * row)


@compiled
def votes_gradient(first, last, sizes, start, count, groups, factors, against, weight, grad_votes, grad_pose):  # type: ignore[no-untyped-def]
    """dL/du_ij = sum_n factors_n against_n, `[count, j, d, g, lane]`, and the poses' gradient `[g, i, k, lane]`.

    Children are the `count` from `start` on. factors `[n, g, i, j, lane]`, the first of them one vector for all;
    against `[n, g, j, d, lane]`.
    """
    children, parents, dim, in_dim = sizes
    per_group, row, pairs = parents * dim * LANES, dim * LANES, groups * children * parents * LANES
    u = np.empty(per_group, weight.dtype)
    for g in range(first, last):
        for i in range(start, start + count):
            u[:] = 0
            accumulate(factors, 0, against, g * per_group, parents * dim, u, 0)
            for n in range(1, against.size // (groups * per_group)):
                for j in range(parents):
                    factor = LANES + (n - 1) * pairs + ((g * children + i) * parents + j) * LANES
                    accumulate(factors, factor, against, (n * groups + g) * per_group + j * row, dim, u, j * row)
            child = (g * children + i) * in_dim * LANES
            grad_pose[child : child + in_dim * LANES] = 0
            _add_poses(weight, i * parents * dim * in_dim, parents * dim, in_dim, u, grad_pose, child)
            for r in range(parents * dim):
                to = (((i - start) * parents * dim + r) * groups + g) * LANES
                for lane in range(LANES):
                    grad_votes[to + lane] = u[r * LANES + lane]


@compiled
def _add_votes(weight, at, rows, in_dim, pose, child, out, to):  # type: ignore[no-untyped-def]
    """out += the child's votes for all parents, rows being parents x dimensions."""
    whole = rows - rows % ROWS
    for r in range(0, whole, ROWS):
        multiply_rows(weight, at + r * in_dim, in_dim, 1, in_dim, pose, child, out, to + r * LANES)
    for r in range(whole, rows):
        multiply_row(weight, at + r * in_dim, in_dim, 1, in_dim, pose, child, out, to + r * LANES)


@compiled
def _add_poses(weight, at, rows, in_dim, u, out, to):  # type: ignore[no-untyped-def]
    """out += the transposed weights of a child times `u`, the gradient of its votes."""
    whole = in_dim - in_dim % ROWS
    for k in range(0, whole, ROWS):
        multiply_rows(weight, at + k, 1, in_dim, rows, u, 0, out, to + k * LANES)
    for k in range(whole, in_dim):
        multiply_row(weight, at + k, 1, in_dim, rows, u, 0, out, to + k * LANES)


@compiled
def _couple(votes, reached, group, parents, dim, leaky, c):  # type: ignore[no-untyped-def]
    """c = softmax over parents of <votes, reached>; if leaky, over one more, whose logit is zero."""
    row = dim * LANES
    for j in range(parents):
        dot(votes, j * row, reached, group + j * row, dim, c, j * LANES)
    if leaky:
        c[parents * LANES :] = 0
    softmax(c, 0, parents + leaky)


@compiled
def _copy(source, count, out, to):  # type: ignore[no-untyped-def]
    for n in range(count):
        out[to + n] = source[n]
