"""Compiled loops of routing by agreement: a lane of a vector register belongs to one sample. Needs numba.

Every sum is made by one thread in one order, so the outcome does not depend on the number of threads. Votes are made
anew wherever they are needed, for LANES samples of one child at a time: they never leave the cache of a core. All
arrays are flat. Letters: g groups of LANES samples, i children, j parents, d dimensions of a parent, k of a child:

    pose [g, i, k, lane]   weight [i, j, d, k]   reached, grad_s, sums [g, j, d, lane]   coupling [g, i, j, lane]
"""

# mypy: allow-untyped-defs
import numba
import numpy as np

from torchcaps.kernels.simd import vectors
from torchcaps.kernels.simd.lanes import LANES, keep_compiled

# Children whose contributions are summed up before they join the total: a long sum in one go loses digits.
CHUNK = 32

compiled = numba.njit(nogil=True, error_model="numpy")


@compiled
def uniform_pass(first, last, sizes, pose, weight, sums):
    """sums = sum_i u_ij for the groups from `first` to before `last`; sizes are (i, j, d, k)."""
    children, parents, dim, in_dim = sizes
    rows, per_group = parents * dim, parents * dim * LANES
    part = np.zeros(per_group, weight.dtype)
    sums[first * per_group : last * per_group] = 0
    for g in range(first, last):
        for i in range(children):
            child = (g * children + i) * in_dim * LANES
            _add_product(weight, i * rows * in_dim, rows, in_dim, 1, in_dim, pose, child, part, 0)
            _flush(i, children, part, sums, g * per_group)


@compiled
def routed_pass(first, last, sizes, leaky, pose, weight, reached, sums, coupling):
    """sums = sum_i c_ij u_ij with c = softmax <u, reached>; the coupling is kept where that array is not empty."""
    children, parents, dim, _ = sizes
    per_group, row = parents * dim * LANES, dim * LANES
    votes, c = vectors.scratch(per_group, weight.dtype), vectors.scratch((parents + leaky) * LANES, weight.dtype)
    part = np.zeros(per_group, weight.dtype)
    sums[first * per_group : last * per_group] = 0
    for g in range(first, last):
        for i in range(children):
            _couple(g, i, sizes, leaky, pose, weight, reached, votes, c)
            for j in range(parents):
                vectors.accumulate(c, j * LANES, votes, j * row, dim, part, j * row)
            _flush(i, children, part, sums, g * per_group)
            if coupling.size:
                pairs = (g * children + i) * parents * LANES
                coupling[pairs : pairs + parents * LANES] = c[: parents * LANES]


@compiled
def backward_pass(first, last, sizes, leaky, pose, weight, reached, grad_s, grad_c, factors, grad_reached):
    """Coupling, then gradient of the logits, both `[g, i, j, lane]`, and that of `reached`; grad_c may be empty."""
    children, parents, dim, _ = sizes
    per_group, row = parents * dim * LANES, dim * LANES
    logits = factors.size // 2
    votes, c = vectors.scratch(per_group, weight.dtype), vectors.scratch((parents + leaky) * LANES, weight.dtype)
    part = np.zeros(per_group, weight.dtype)
    grad_reached[first * per_group : last * per_group] = 0
    for g in range(first, last):
        for i in range(children):
            pairs = (g * children + i) * parents * LANES
            _couple(g, i, sizes, leaky, pose, weight, reached, votes, c)
            factors[pairs : pairs + parents * LANES] = c[: parents * LANES]
            for j in range(parents):
                vectors.dot(votes, j * row, grad_s, g * per_group + j * row, dim, factors, logits + pairs + j * LANES)
            if grad_c.size:
                for n in range(pairs, pairs + parents * LANES):
                    factors[logits + n] += grad_c[n]
            vectors.softmax_gradient(c, 0, factors, logits + pairs, parents)
            for j in range(parents):
                vectors.accumulate(factors, logits + pairs + j * LANES, votes, j * row, dim, part, j * row)
            _flush(i, children, part, grad_reached, g * per_group)


@compiled
def gradient_pass(first, last, sizes, groups, pose, weight, factors, against, grad_pose, grad_weight):
    """From dL/du_ij = sum_n factors_n against_n to the gradients of poses and, added to what is there, of weights.

    For the children from `first` to before `last`. factors `[n, g, i, j, lane]`, but the first of them is one vector
    for all; against `[n, g, j, d, lane]`.
    """
    children, parents, dim, in_dim = sizes
    rows = parents * dim
    u, by_row = vectors.scratch(rows * LANES, weight.dtype), vectors.scratch(rows * groups * LANES, weight.dtype)
    for i in range(first, last):
        for g in range(groups):
            _combine(g, i, sizes, groups, factors, against, u)
            child = (g * children + i) * in_dim * LANES
            grad_pose[child : child + in_dim * LANES] = 0
            _add_product(weight, i * rows * in_dim, in_dim, 1, in_dim, rows, u, 0, grad_pose, child)
            for r in range(rows):
                for lane in range(LANES):
                    by_row[(r * groups + g) * LANES + lane] = u[r * LANES + lane]
        _add_weights(by_row, groups, rows, pose, i * in_dim * LANES, children, in_dim, grad_weight, i * rows * in_dim)


@compiled
def _combine(g, i, sizes, groups, factors, against, u):
    """u = dL/du of one child and group, `[j, d, lane]`."""
    children, parents, dim, _ = sizes
    per_group, row, pairs = parents * dim * LANES, dim * LANES, groups * children * parents
    terms, step = against.size // (groups * per_group), groups * parents * dim
    u[:] = 0
    vectors.accumulate(factors, 0, against, g * per_group, parents * dim, u, 0)
    for j in range(parents):
        factor, at = LANES + ((g * children + i) * parents + j) * LANES, (groups + g) * per_group + j * row
        vectors.accumulate_terms(factors, factor, pairs, against, at, step, terms - 1, dim, u, j * row)


@compiled
def _add_weights(by_row, groups, rows, pose, child, children, in_dim, out, to):
    """out += sum over samples of `by_row` `[rows, g, lane]` times the child's poses: tile by tile."""
    tile, side = vectors.scratch(LANES, out.dtype), vectors.TILE
    for r in range(0, rows, side):
        for k in range(0, in_dim, side):
            here, there = min(side, rows - r), min(side, in_dim - k)
            vectors.multiply_tile(
                by_row, r * groups * LANES, groups, 1, here,
                pose, child + k * LANES, 1, children * in_dim, there, groups, tile, 0,
            )  # fmt: skip
            for m in range(here):
                for n in range(there):
                    out[to + (r + m) * in_dim + k + n] += tile[m * side + n]


@compiled
def _add_product(w, at, rows, row, column, n, x, x0, out, to):
    """out[r] += sum_n w(r, n) x[n] for r < rows; see `multiply_rows`."""
    whole = rows - rows % vectors.ROWS
    for r in range(0, whole, vectors.ROWS):
        vectors.multiply_rows(w, at + r * row, row, column, n, x, x0, out, to + r * LANES)
    for r in range(whole, rows):
        vectors.multiply_row(w, at + r * row, row, column, n, x, x0, out, to + r * LANES)


@compiled
def _couple(g, i, sizes, leaky, pose, weight, reached, votes, c):
    """Votes of a child and group; c = softmax over parents of <votes, reached>, if leaky with one more logit, zero."""
    children, parents, dim, in_dim = sizes
    rows, row = parents * dim, dim * LANES
    votes[:] = 0
    child = (g * children + i) * in_dim * LANES
    _add_product(weight, i * rows * in_dim, rows, in_dim, 1, in_dim, pose, child, votes, 0)
    for j in range(parents):
        vectors.dot(votes, j * row, reached, (g * parents + j) * row, dim, c, j * LANES)
    if leaky:
        c[parents * LANES :] = 0
    vectors.softmax(c, 0, parents + leaky)


@compiled
def _flush(i, children, part, out, to):
    """After CHUNK children, and after the last: out += part, and part begins anew."""
    if (i + 1) % CHUNK == 0 or i + 1 == children:
        for n in range(part.size):
            out[to + n] += part[n]
            part[n] = 0


keep_compiled((uniform_pass, routed_pass, backward_pass, gradient_pass), (__file__, vectors.__file__))
