"""Compiled loops of routing by agreement: a lane of a vector register belongs to one sample. Needs numba.

Every sum is made by one thread in one order, so the outcome does not depend on the number of threads. Votes are made
anew wherever they are needed, for LANES samples of one child at a time: they never leave the cache of a core. All
arrays are flat. Letters: g groups of LANES samples, i children, j parents, d dimensions of a parent, k of a child:

    pose [g, i, k, lane]   weight [i, j, d, k]   reached, grad_s, sums [g, j, d, lane]   coupling [g, i, j, lane]

k is a multiple of BLOCK.
"""

# mypy: allow-untyped-defs
import numba

from torchcaps.kernels.dynamic import _vectors
from torchcaps.kernels.simd import _vectors as vectors
from torchcaps.kernels.simd.lanes import BLOCK, LANES, keep_compiled

# Children whose contributions are summed up before they join the total: a long sum in one go loses digits. Their
# matrices stay in the cache for all groups.
CHUNK = 32

compiled = numba.njit(nogil=True, error_model="numpy")


@compiled
def uniform_pass(first, last, sizes, pose, weight, sums):
    """sums = sum_i u_ij for the groups from `first` to before `last`; sizes are (i, j, d, k)."""
    children, parents, dim, in_dim = sizes
    rows, per_group = parents * dim, parents * dim * LANES
    part = vectors.scratch(per_group, weight.dtype)
    sums[first * per_group : last * per_group] = 0
    for chunk in range(0, children, CHUNK):
        for g in range(first, last):
            part[:] = 0
            for i in range(chunk, min(chunk + CHUNK, children)):
                child = (g * children + i) * in_dim * LANES
                _vectors.add_votes(
                    weight, i * rows * in_dim, pose, child, in_dim // BLOCK, rows, part, 0
                )
            sums[g * per_group : (g + 1) * per_group] += part


@compiled
def routed_pass(first, last, sizes, leaky, pose, weight, reached, sums, coupling):
    """sums = sum_i c_ij u_ij with c = softmax <u, reached>; the coupling is kept where that array is not empty."""
    children, parents, dim, in_dim = sizes
    per_group, row, matrix = parents * dim * LANES, dim * LANES, dim * in_dim
    votes, c = (
        vectors.scratch(per_group, weight.dtype),
        vectors.scratch((parents + leaky) * LANES, weight.dtype),
    )
    part = vectors.scratch(per_group, weight.dtype)
    sums[first * per_group : last * per_group] = 0
    for chunk in range(0, children, CHUNK):
        for g in range(first, last):
            part[:] = 0
            for i in range(chunk, min(chunk + CHUNK, children)):
                child, pairs = (
                    (g * children + i) * in_dim * LANES,
                    (g * children + i) * parents * LANES,
                )
                for j in range(parents):
                    _vectors.vote(
                        weight,
                        (i * parents + j) * matrix,
                        pose,
                        child,
                        in_dim // BLOCK,
                        dim,
                        votes,
                        j * row,
                        reached,
                        g * per_group + j * row,
                        c,
                        j * LANES,
                    )
                _couple(parents, leaky, c)
                for j in range(parents):
                    vectors.accumulate(c, j * LANES, votes, j * row, dim, part, j * row)
                if coupling.size:
                    coupling[pairs : pairs + parents * LANES] = c[: parents * LANES]
            sums[g * per_group : (g + 1) * per_group] += part


@compiled
def backward_pass(first, last, sizes, leaky, pose, weight, against, grad_c, factors, grad_reached):
    """Coupling, then gradient of the logits, both `[g, i, j, lane]`, and that of `reached`; grad_c may be empty.

    against: grad_s, then reached.
    """
    children, parents, dim, in_dim = sizes
    per_group, row, matrix, logits = (
        parents * dim * LANES,
        dim * LANES,
        dim * in_dim,
        factors.size // 2,
    )
    reached = against.size // 2
    votes, c = (
        vectors.scratch(per_group, weight.dtype),
        vectors.scratch((parents + leaky) * LANES, weight.dtype),
    )
    part = vectors.scratch(per_group, weight.dtype)
    grad_reached[first * per_group : last * per_group] = 0
    for chunk in range(0, children, CHUNK):
        for g in range(first, last):
            part[:] = 0
            for i in range(chunk, min(chunk + CHUNK, children)):
                child, pairs = (
                    (g * children + i) * in_dim * LANES,
                    (g * children + i) * parents * LANES,
                )
                grads = logits + pairs
                for j in range(parents):
                    at = g * per_group + j * row
                    _vectors.vote_twice(
                        weight,
                        (i * parents + j) * matrix,
                        pose,
                        child,
                        in_dim // BLOCK,
                        dim,
                        votes,
                        j * row,
                        against,
                        reached + at,
                        c,
                        j * LANES,
                        against,
                        at,
                        factors,
                        grads + j * LANES,
                    )
                _couple(parents, leaky, c)
                factors[pairs : pairs + parents * LANES] = c[: parents * LANES]
                if grad_c.size:
                    factors[grads : grads + parents * LANES] += grad_c[
                        pairs : pairs + parents * LANES
                    ]
                vectors.softmax_gradient(c, 0, factors, grads, parents)
                for j in range(parents):
                    vectors.accumulate(
                        factors, grads + j * LANES, votes, j * row, dim, part, j * row
                    )
            grad_reached[g * per_group : (g + 1) * per_group] += part


@compiled
def gradient_pass(
    first, last, sizes, groups, pose, weight, factors, against, grad_pose, grad_weight
):
    """From dL/du_ij = against_0 + sum_n factors_n against_n to gradients of poses and, added to what is there, weights.

    For the children from `first` to before `last`. factors `[n, g, i, j, lane]`, n from 1, and against
    `[n, g, j, d, lane]`.
    """
    children, parents, dim, in_dim = sizes
    rows, each = parents * dim, in_dim * LANES
    u = vectors.scratch(rows * groups * LANES, weight.dtype)  # [j, d, g, lane]
    poses = vectors.scratch(in_dim * groups * LANES, weight.dtype)  # [k, g, lane]
    for i in range(first, last):
        for g in range(groups):
            child = (g * children + i) * each
            grad_pose[child : child + each] = 0
            for block in range(0, in_dim, BLOCK):
                _spread(g, i, block, sizes, groups, factors, against, weight, u, grad_pose)
            for k in range(in_dim):
                to, of = (k * groups + g) * LANES, child + k * LANES
                poses[to : to + LANES] = pose[of : of + LANES]
        _add_weights(u, groups, rows, poses, in_dim, grad_weight, i * rows * in_dim)


@compiled
def _spread(g, i, block, sizes, groups, factors, against, weight, u, grad_pose):
    """dL/du of one child and group, and from it the gradient of a block of its pose."""
    children, parents, dim, in_dim = sizes
    pairs, step, rows = groups * children * parents, groups * parents * dim, _vectors.ROWS
    steps, terms, whole = (
        (in_dim, pairs, step, groups),
        against.size // (step * LANES) - 1,
        dim // rows,
    )
    grad = ((g * children + i) * in_dim + block) * LANES
    for j in range(parents):
        factor, row = ((g * children + i) * parents + j) * LANES, j * dim
        matrix, at, to = (
            (i * parents + j) * dim * in_dim + block,
            (g * parents * dim + row) * LANES,
            row * groups + g,
        )
        _vectors.spread_rows(
            whole,
            steps,
            terms,
            weight,
            matrix,
            factors,
            factor,
            against,
            at,
            u,
            to * LANES,
            grad_pose,
            grad,
        )
        done = whole * rows
        matrix, at, to = matrix + done * in_dim, at + done * LANES, to + done * groups
        _vectors.spread_row(
            dim - done,
            steps,
            terms,
            weight,
            matrix,
            factors,
            factor,
            against,
            at,
            u,
            to * LANES,
            grad_pose,
            grad,
        )


@compiled
def _add_weights(u, groups, rows, poses, in_dim, out, to):
    """out += sum over samples of dL/du `[rows, g, lane]` times a child's poses `[k, g, lane]`: tile by tile."""
    tile, side = vectors.scratch(LANES, out.dtype), vectors.TILE
    for r in range(0, rows, side):
        for k in range(0, in_dim, side):
            here, there = min(side, rows - r), min(side, in_dim - k)
            vectors.multiply_tile(
                u,
                r * groups * LANES,
                groups,
                here,
                poses,
                k * groups * LANES,
                groups,
                there,
                groups,
                tile,
                0,
            )
            for m in range(here):
                for n in range(there):
                    out[to + (r + m) * in_dim + k + n] += tile[m * side + n]


@compiled
def _couple(parents, leaky, c):
    """Softmax over parents, if leaky with one more logit, zero."""
    if leaky:
        c[parents * LANES :] = 0
    vectors.softmax(c, 0, parents + leaky)


keep_compiled(
    (uniform_pass, routed_pass, backward_pass, gradient_pass),
    (__file__, *(str(module.__file__) for module in (_vectors, vectors))),
)
