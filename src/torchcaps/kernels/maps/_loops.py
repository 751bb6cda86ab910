"""Compiled loops of routing by agreement on maps: a lane of a vector register belongs to one position. Needs numba.

LANES positions of a sample are routed through all passes, and back, while their votes lie in the cache of a core. All
arrays are flat, of whole groups of LANES positions. Letters: b batch, i children, j parents, d dimensions, p positions:

    votes [b, i, j, d, p]   v [b, j, d, p]   length [b, j, p]   coupling [b, i, j, p], or empty   bias [j, d]

`sizes` are of i, j, d and p.
"""

# mypy: allow-untyped-defs
import numba

from torchcaps.kernels.maps import _vectors
from torchcaps.kernels.simd import _vectors as vectors
from torchcaps.kernels.simd.lanes import LANES, keep_compiled

compiled = numba.njit(nogil=True, error_model="numpy")


@compiled
def forward_pass(first, last, sizes, passes, votes, bias, v, length, coupling):
    """Parents of the groups from `first` to before `last`, and the couplings of the last pass."""
    children, parents, dim, positions = sizes
    per, rows, links = positions // LANES, parents * dim, children * parents
    u, c = (
        vectors.scratch(children * rows * LANES, v.dtype),
        vectors.scratch(links * LANES, v.dtype),
    )
    s, squashed = vectors.scratch(rows * LANES, v.dtype), vectors.scratch(rows * LANES, v.dtype)
    reached, long = (
        vectors.scratch(rows * LANES, v.dtype),
        vectors.scratch(parents * LANES, v.dtype),
    )
    for g in range(first, last):
        b, at = g // per, g % per * LANES
        _vectors.collect(
            votes, b * children * rows * positions + at, positions, u, 0, children * rows
        )
        reached[:] = 0
        for t in range(passes):
            _pass(t, sizes, u, reached, bias, c, s)
            _squash(parents, dim, s, squashed, long)
            reached += squashed
        _vectors.place(squashed, 0, v, b * rows * positions + at, positions, rows)
        _vectors.place(long, 0, length, b * parents * positions + at, positions, parents)
        if coupling.size:
            _vectors.place(c, 0, coupling, b * links * positions + at, positions, links)


@compiled
def backward_pass(first, last, sizes, passes, votes, bias, grads, grad_votes, grad_bias):
    """Gradients of votes and, of each group, of the bias `[g, j, d, lane]`, from those of v, length and coupling."""
    (children, parents, dim, positions), (grad_v, grad_length, grad_coupling) = sizes, grads
    per, rows, links, kind = positions // LANES, parents * dim, children * parents, votes.dtype
    each = rows * LANES
    u, grad_u = vectors.scratch(children * each, kind), vectors.scratch(children * each, kind)
    s, c = vectors.scratch(passes * each, kind), vectors.scratch(passes * links * LANES, kind)
    reached, grad_s = vectors.scratch((passes + 1) * each, kind), vectors.scratch(each, kind)
    later, grad_b = vectors.scratch(each, kind), vectors.scratch(links * LANES, kind)
    length = vectors.scratch(parents * LANES, kind)
    for g in range(first, last):
        b, at = g // per, g % per * LANES
        _vectors.collect(
            votes, b * children * rows * positions + at, positions, u, 0, children * rows
        )
        _passes(passes, sizes, u, bias, reached, s, c)
        _vectors.collect(grad_v, b * rows * positions + at, positions, grad_s, 0, rows)
        _vectors.collect(grad_length, b * parents * positions + at, positions, length, 0, parents)
        grad_b[:] = 0
        if grad_coupling.size:
            _vectors.collect(grad_coupling, b * links * positions + at, positions, grad_b, 0, links)
        grad_u[:] = 0
        later[:] = 0
        grad_bias[g * each : (g + 1) * each] = 0
        for t in range(passes - 1, -1, -1):
            for j in range(parents):
                row = j * dim * LANES
                _vectors.squash_gradient(s, t * each + row, length, j * LANES, dim, grad_s, row)
            grad_bias[g * each : (g + 1) * each] += grad_s
            _spread(t, sizes, u, reached, c, grad_s, grad_b, grad_u, later)
            grad_s[:] = later  # what all later passes say of this one's parents
            grad_b[:] = 0
            length[:] = 0
        _vectors.place(
            grad_u, 0, grad_votes, b * children * rows * positions + at, positions, children * rows
        )


@compiled
def _passes(passes, sizes, u, bias, reached, s, c):
    """What the way back needs of every pass: parents reached before it, its sums of votes and its couplings."""
    children, parents, dim, _ = sizes
    each, of_links = parents * dim * LANES, children * parents * LANES
    squashed, length = vectors.scratch(each, u.dtype), vectors.scratch(parents * LANES, u.dtype)
    reached[:each] = 0
    for t in range(passes):
        before, here = reached[t * each : (t + 1) * each], s[t * each : (t + 1) * each]
        _pass(t, sizes, u, before, bias, c[t * of_links : (t + 1) * of_links], here)
        _squash(parents, dim, here, squashed, length)
        reached[(t + 1) * each : (t + 2) * each] = before + squashed


@compiled
def _pass(t, sizes, u, reached, bias, c, s):
    """Couplings by the parents reached so far, equal ones in the first pass, and the sums of votes."""
    children, parents, dim, _ = sizes
    if bias.size:
        _vectors.fill(bias, 0, s, 0, parents * dim)
    else:
        s[:] = 0
    c[:] = 0 if t else 1.0 / parents
    for i in range(children):
        row = i * parents * LANES
        if t:
            for j in range(parents):
                at = (i * parents + j) * dim * LANES
                _vectors.add_dot(u, at, reached, j * dim * LANES, dim, c, row + j * LANES)
            vectors.softmax(c, row, parents)
        for j in range(parents):
            vectors.accumulate(
                c, row + j * LANES, u, (i * parents + j) * dim * LANES, dim, s, j * dim * LANES
            )


@compiled
def _squash(parents, dim, s, v, length):
    """Each parent by itself."""
    for j in range(parents):
        _vectors.squash(s, j * dim * LANES, dim, v, j * dim * LANES, length, j * LANES)


@compiled
def _spread(t, sizes, u, reached, c, grad_s, grad_b, grad_u, later):
    """From the gradient of the sums of pass t, and of its couplings, to those of votes and of the parents before."""
    children, parents, dim, _ = sizes
    each, of_links = parents * dim * LANES, children * parents * LANES
    for i in range(children):
        row = i * parents * LANES
        for j in range(parents):
            at, to = (i * parents + j) * dim * LANES, j * dim * LANES
            if t == 0:
                vectors.accumulate(c, row + j * LANES, grad_s, to, dim, grad_u, at)
            else:
                _vectors.add_dot(u, at, grad_s, to, dim, grad_b, row + j * LANES)
        if t == 0:
            continue
        vectors.softmax_gradient(c, t * of_links + row, grad_b, row, parents)
        for j in range(parents):
            at, to, pair = (i * parents + j) * dim * LANES, j * dim * LANES, row + j * LANES
            _vectors.link(
                c,
                t * of_links + pair,
                grad_s,
                to,
                grad_b,
                pair,
                reached,
                t * each + to,
                u,
                at,
                dim,
                grad_u,
                at,
                later,
                to,
            )


keep_compiled(
    (forward_pass, backward_pass),
    (__file__, *(str(module.__file__) for module in (_vectors, vectors))),
)
