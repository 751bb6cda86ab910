"""Compiled loops of routing by agreement on linear votes. Needs numba.

The equations are those of `passes.py`. A vote u_ij = weight_ij pose_i is computed where it is used:
the votes of a batch are larger than the cache, and each pass would read all of them. A pass goes
through the children. For one child and LANES samples it computes the votes of all parents, which
stay in the cache of a core, then the couplings, then its part of the sum over children.

The innermost loops run over samples, which lie next to each other in memory, so that the compiler
vectorizes them. Their number is read from an array: loops of a small constant length are unrolled
before they can be vectorized. Loops over the dimensions of a pose or over terms are unrolled within
them. A thread takes some blocks of children; each block has a sum of its own, so that
the number of threads does not change a bit of the result.

Letters: g group of samples, n sample in a group, i child, j parent, d and k dimensions of a parent
and of a child, h block of children.

    pose [g, i, k, n]    weight [i, j, d, k]    V, grad_s [g, j, d, n]
    c, grad_b [g, i, j, n]                      sums [h, g, j, d, n]
    u [j, d, n]: votes of one child
"""

# mypy: allow-untyped-defs
from collections import namedtuple

import numpy as np

from torchcaps.kernels._compile import compiled, compiled_loop, softmax
from torchcaps.kernels.lanes import BLOCK, keep_compiled

# Samples whose products are added at once; a divisor of LANES.
UNROLLED = 8

# What all loops take.
#   inner, outer: tuples as long as the pose of a child and of a parent; the length of a tuple
#       belongs to its type, so that the compiler knows it and unrolls loops over it.
#   leaky: whether one more parent of logit 0 competes.
#   pose, weight: see above.
Layer = namedtuple("Layer", "inner outer leaky pose weight")


@compiled_loop
def forward_pass(first, last, layer, V, c, sums):
    """A pass on the blocks of children from `first` to before `last`.

    Writes c of these children and the sum over them of c_ij u_ij.
    """
    u = np.empty_like(V[0])
    for h in range(first, last):
        sums[h] = 0
        for g in range(len(V)):
            for i in range(h * BLOCK, min((h + 1) * BLOCK, len(layer.weight))):
                couple(layer, g, i, V[g], u, c[g, i])
                add_votes(u, c[g, i], sums[h, g])


@compiled_loop
def backward_pass(first, last, layer, V, grad_s, grad_coupling, c, grad_b, sums):
    """Backward of a pass on the blocks of children from `first` to before `last`.

    grad_coupling: gradient of the couplings themselves, [g, i, j, n], or of no groups.

    Writes c, dL/db and the sum over these children of dL/db_ij u_ij.
    """
    groups, parents, _, lanes = V.shape
    u = np.empty_like(V[0])
    total = np.empty(lanes, V.dtype)
    for h in range(first, last):
        sums[h] = 0
        for g in range(groups):
            for i in range(h * BLOCK, min((h + 1) * BLOCK, len(layer.weight))):
                couple(layer, g, i, V[g], u, c[g, i])
                agree(layer, u, grad_s[g], grad_b[g, i])
                if len(grad_coupling):
                    grad_b[g, i] += grad_coupling[g, i]
                grad_b[g, i] *= c[g, i]
                total[:] = 0
                for j in range(parents):
                    total += grad_b[g, i, j]
                for j in range(parents):
                    grad_b[g, i, j] -= c[g, i, j] * total
                add_votes(u, grad_b[g, i], sums[h, g])


@compiled_loop
def votes_backward(first, last, layer, terms, factors, vectors, rows, grad_pose, grad_weight):
    """Gradients of poses and weights of the blocks of children from `first` to before `last`.

    dL/du_ij is the sum over terms t of factor_tij times vector_tj.

    terms: a tuple as long as the number of terms.
    factors: [t, g, i, j, n].
    vectors: [t, g, j, d, n].
    rows: the same vectors, [t, g, n, j, d].
    grad_pose: written, [g, i, k, n].
    grad_weight: written, [i, k, (j, d)].
    """
    _, groups, parents, dim, lanes = vectors.shape
    grad_u = np.empty((parents, dim, lanes), factors.dtype)
    grad_rows = np.empty((lanes, parents * dim), factors.dtype)  # the same by sample
    for i in range(first * BLOCK, min(last * BLOCK, len(layer.weight))):
        grad_weight[i] = 0
        for g in range(groups):
            for j in range(parents):
                for d in range(dim):
                    for n in range(lanes):
                        total = factors.dtype.type(0)
                        for t in range(len(terms)):
                            total += factors[t, g, i, j, n] * vectors[t, g, j, d, n]
                        grad_u[j, d, n] = total
            pose_backward(layer, i, grad_u, grad_pose[g, i])
            for n in range(lanes):
                for j in range(parents):
                    for d in range(dim):
                        total = factors.dtype.type(0)
                        for t in range(len(terms)):
                            total += factors[t, g, i, j, n] * rows[t, g, n, j, d]
                        grad_rows[n, j * dim + d] = total
            weight_backward(layer.pose[g, i], grad_rows, grad_weight[i])


@compiled
def couple(layer, g, i, V, u, c):
    """Votes of child i for all parents, `u [j, d, n]`, and their couplings, `c [j, n]`."""
    pose = layer.pose
    weight = layer.weight
    parents, dim, lanes = u.shape
    for j in range(parents):
        for d in range(dim):
            for n in range(lanes):
                vote = u.dtype.type(0)
                for k in range(len(layer.inner)):
                    vote += weight[i, j, d, k] * pose[g, i, k, n]
                u[j, d, n] = vote
    agree(layer, u, V, c)
    softmax(layer.leaky, c)


@compiled
def agree(layer, u, vectors, out):
    """Products <u_j, vector_j> of votes of a child and vectors `[j, d, n]`: writes `out [j, n]`."""
    parents, lanes = out.shape
    for j in range(parents):
        for n in range(lanes):
            total = u.dtype.type(0)
            for d in range(len(layer.outer)):
                total += u[j, d, n] * vectors[j, d, n]
            out[j, n] = total


@compiled
def add_votes(u, factor, out):
    """Add factor_j u_j, of the votes of a child, to `out [j, d, n]`; factor `[j, n]`."""
    parents, dim, lanes = u.shape
    for j in range(parents):
        for d in range(dim):
            for n in range(lanes):
                out[j, d, n] += factor[j, n] * u[j, d, n]


@compiled
def pose_backward(layer, i, grad_u, grad_pose):
    """dL/dpose of child i, `[k, n]`, from the gradient of its votes `[j, d, n]`."""
    inner, lanes = grad_pose.shape
    grad_pose[:] = 0
    for j in range(len(grad_u)):
        for k in range(inner):
            for n in range(lanes):
                total = grad_pose[k, n]
                for d in range(len(layer.outer)):
                    total += layer.weight[i, j, d, k] * grad_u[j, d, n]
                grad_pose[k, n] = total


@compiled
def weight_backward(pose, grad_rows, grad_weight):
    """Add the sum over samples of pose times dL/du to `grad_weight [k, (j, d)]`.

    pose: `[k, n]`.
    grad_rows: `[n, (j, d)]`.
    """
    inner, links = grad_weight.shape
    for start in range(0, len(grad_rows), UNROLLED):
        for k in range(inner):
            for link in range(links):
                total = grad_weight[k, link]
                for n in range(UNROLLED):
                    total += pose[k, start + n] * grad_rows[start + n, link]
                grad_weight[k, link] = total


keep_compiled(forward_pass, backward_pass, votes_backward)
