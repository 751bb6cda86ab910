"""Compiled loops of routing by agreement on maps. Needs numba.

Source: Sabour, Frosst, Hinton, "Dynamic Routing Between Capsules", arXiv 1710.09829, procedure 1,
as in `functional.routing.dynamic`. At each position of a map, children i route to parents j by
votes u_ij. With V_j, the sum of the v_j of the iterations before:

    c_i = softmax over j of <u_ij, V_j>;  s_j = bias_j + sum_i c_ij u_ij;  v_j = squash(s_j)

squash(s) = g s with g = 1 / (1/|s| + |s|). The loss L has the gradients

    dL/dc_ij = <u_ij, dL/ds_j>;  dL/db_ij = c_ij (dL/dc_ij - sum_k c_ik dL/dc_ik)
    dL/dV_j = sum_i dL/db_ij u_ij;  dL/du_ij = c_ij dL/ds_j + dL/db_ij V_j

where b_ij = <u_ij, V_j>.

Positions are independent. The votes of a group of POSITIONS positions are copied to the cache of a
core, routed through all iterations there, and the outputs are copied back. The innermost loops run
over these positions, which lie next to each other in memory, so that the compiler vectorizes them.
Positions that the last group of a sample lacks are computed too, and not copied back.

Letters: b sample, i child, j parent, d dimension, p position, t iteration, n position in a group.

    of all positions: votes [b, i, j, d, p]   bias [j, d]   v_out [b, j, d, p]
                      length_out [b, j, p]    coupling [b, i, j, p], or of no samples if not needed
    of a group:       u [i, j, d, n]   c [i, j, n]   s, v, V [j, d, n]   length [j, n]
"""

# mypy: allow-untyped-defs
import math

import numpy as np

from torchcaps.functional.squash import DOUBLE_EPSILON, EPSILON
from torchcaps.kernels._compile import compiled, compiled_loop, softmax
from torchcaps.kernels.lanes import POSITIONS, keep_compiled


@compiled_loop
def forward_pass(first, last, iterations, votes, bias, v_out, length_out, coupling):
    """Route the groups from `first` to before `last`.

    Writes v of the last iteration, its length and, unless it has no samples, the coupling.
    """
    _, children, parents, dim, positions = votes.shape
    sample_groups = -(-positions // POSITIONS)  # rounded up
    u = np.zeros((children, parents, dim, POSITIONS), votes.dtype)
    c = np.empty((children, parents, POSITIONS), votes.dtype)
    s = np.empty_like(u[0])
    v = np.empty_like(u[0])
    V = np.empty_like(u[0])
    length = np.empty_like(c[0])
    for group in range(first, last):
        b = group // sample_groups
        start = group % sample_groups * POSITIONS
        stop = min(start + POSITIONS, positions)
        count = stop - start
        u[..., :count] = votes[b, ..., start:stop]

        V[:] = 0
        for t in range(iterations):
            compute_coupling(t, u, V, c)
            sum_votes(c, u, bias, s)
            squash(s, v, length)
            V += v

        v_out[b, ..., start:stop] = v[..., :count]
        length_out[b, :, start:stop] = length[:, :count]
        if len(coupling):
            coupling[b, ..., start:stop] = c[..., :count]


@compiled_loop
def backward_pass(first, last, iterations, votes, bias, grads, grad_votes, grad_bias):
    """Gradients of the votes, and of the bias in each group from `first` to before `last`.

    grads: gradients of `v_out`, `length_out` and `coupling` of `forward_pass`.
    grad_votes: written, `[b, i, j, d, p]`.
    grad_bias: written, `[group, j, d]`; its sum over groups is the gradient of the bias.
    """
    _, children, parents, dim, positions = votes.shape
    sample_groups = -(-positions // POSITIONS)  # rounded up
    grad_v, grad_length, grad_coupling = grads
    u = np.zeros((children, parents, dim, POSITIONS), votes.dtype)
    c = np.empty((iterations, children, parents, POSITIONS), votes.dtype)
    s = np.empty((iterations, parents, dim, POSITIONS), votes.dtype)
    V = np.zeros((iterations + 1, parents, dim, POSITIONS), votes.dtype)  # before each iteration
    grad_u = np.empty_like(u)
    grad_c = np.empty_like(c[0])
    grad_s = np.zeros_like(s[0])  # dL/dv, then dL/ds
    grad_V = np.empty_like(s[0])
    length = np.empty_like(c[0, 0])
    group_grad_length = np.zeros_like(c[0, 0])
    for group in range(first, last):
        b = group // sample_groups
        start = group % sample_groups * POSITIONS
        stop = min(start + POSITIONS, positions)
        count = stop - start
        u[..., :count] = votes[b, ..., start:stop]

        repeat_iterations(u, bias, c, s, V, length)

        grad_s[:] = 0
        group_grad_length[:] = 0
        grad_s[..., :count] = grad_v[b, ..., start:stop]
        group_grad_length[:, :count] = grad_length[b, :, start:stop]
        grad_c[:] = 0
        if len(grad_coupling):
            grad_c[..., :count] = grad_coupling[b, ..., start:stop]
        grad_u[:] = 0
        grad_V[:] = 0
        grad_bias[group] = 0
        for t in range(iterations - 1, -1, -1):
            squash_backward(s[t], group_grad_length, grad_s)
            for j in range(parents):
                for d in range(dim):
                    grad_bias[group, j, d] += grad_s[j, d].sum()
            if t:
                coupling_backward(u, c[t], grad_s, grad_c)
                add_gradients(u, c[t], grad_s, grad_c, V[t], grad_u, grad_V)
            else:
                add_first_gradient(c[0], grad_s, grad_u)
            # v of the iteration before is a summand of the V of all iterations so far.
            grad_s[:] = grad_V
            grad_c[:] = 0
            group_grad_length[:] = 0
        grad_votes[b, ..., start:stop] = grad_u[..., :count]


@compiled
def repeat_iterations(u, bias, c, s, V, length):
    """Compute c, s and V of all iterations t; the forward pass stores none of them.

    c: written, `[t, i, j, n]`.
    s: written, `[t, j, d, n]`.
    V: V[0] is zero, the others are written, `[t + 1, j, d, n]`.
    length: memory `[j, n]`.
    """
    for t in range(len(c)):
        compute_coupling(t, u, V[t], c[t])
        sum_votes(c[t], u, bias, s[t])
        squash(s[t], V[t + 1], length)
        V[t + 1] += V[t]


@compiled
def compute_coupling(t, u, V, c):
    """c_i = softmax over j of <u_ij, V_j>; equal couplings in the first iteration."""
    children, parents, dim, _ = u.shape
    if t == 0:
        c[:] = 1.0 / parents
        return
    c[:] = 0
    for i in range(children):
        for j in range(parents):
            for d in range(dim):
                for n in range(POSITIONS):
                    c[i, j, n] += u[i, j, d, n] * V[j, d, n]
        softmax(False, c[i])


@compiled
def sum_votes(c, u, bias, s):
    """s_j = bias_j + sum_i c_ij u_ij."""
    children, parents, dim, _ = u.shape
    for j in range(parents):
        for d in range(dim):
            s[j, d] = bias[j, d]
    for i in range(children):
        for j in range(parents):
            for d in range(dim):
                for n in range(POSITIONS):
                    s[j, d, n] += c[i, j, n] * u[i, j, d, n]


@compiled
def safe_norm(s, scale, norm):
    """norm = sqrt(|s|^2 + EPSILON) of a vector s `[d, n]`, as `functional.squash.safe_norm`.

    Its squares are taken in units of its largest magnitude, where that exceeds one, so that they do
    not overflow.

    scale: memory `[n]` for the unit.
    norm: written, `[n]`.
    """
    scale[:] = 1
    norm[:] = DOUBLE_EPSILON if norm.itemsize == 8 else EPSILON
    for d in range(len(s)):
        for n in range(POSITIONS):
            scale[n] = max(scale[n], abs(s[d, n]))
    for d in range(len(s)):
        for n in range(POSITIONS):
            norm[n] += (s[d, n] / scale[n]) ** 2
    for n in range(POSITIONS):
        norm[n] = scale[n] * math.sqrt(norm[n])


@compiled
def squash(s, v, length):
    """v_j = g s_j with g = 1 / (1/|s_j| + |s_j|), and its length g |s_j|."""
    one = s.dtype.type(1)
    parents, dim, _ = s.shape
    scale = np.empty_like(length[0])
    norm = np.empty_like(length[0])  # |s_j|
    g = np.empty_like(length[0])
    for j in range(parents):
        safe_norm(s[j], scale, norm)
        for n in range(POSITIONS):
            g[n] = one / (one / norm[n] + norm[n])
            length[j, n] = g[n] * norm[n]
        for d in range(dim):
            for n in range(POSITIONS):
                v[j, d, n] = g[n] * s[j, d, n]


@compiled
def squash_backward(s, grad_length, grad):
    """From the gradients of v_j and of its length to that of s_j.

    `numerics.squash_backward` has the equation; `radial` is its term along s_j / |s_j|.

    grad_length: of the length of v_j, `[j, n]`.
    grad: dL/dv_j, replaced by dL/ds_j, `[j, d, n]`.
    """
    one = s.dtype.type(1)
    two = s.dtype.type(2)
    parents, dim, _ = s.shape
    scale = np.empty_like(s[0, 0])
    norm = np.empty_like(s[0, 0])  # |s_j|
    radial = np.empty_like(norm)
    g = np.empty_like(norm)
    for j in range(parents):
        safe_norm(s[j], scale, norm)
        radial[:] = 0
        for d in range(dim):
            for n in range(POSITIONS):
                radial[n] += s[j, d, n] / norm[n] * grad[j, d, n]
        for n in range(POSITIONS):
            g[n] = one / (one / norm[n] + norm[n])
            radial[n] *= g[n] * (g[n] / norm[n] - g[n] * norm[n])
            radial[n] += two * g[n] * g[n] / norm[n] * grad_length[j, n]
        for d in range(dim):
            for n in range(POSITIONS):
                grad[j, d, n] = g[n] * grad[j, d, n] + radial[n] * (s[j, d, n] / norm[n])


@compiled
def coupling_backward(u, c, grad_s, grad_c):
    """dL/db_ij = c_ij (dL/dc_ij - sum_k c_ik dL/dc_ik) with dL/dc_ij = <u_ij, dL/ds_j>.

    grad_c: what adds to dL/dc, replaced by dL/db, `[i, j, n]`.
    """
    children, parents, dim, _ = u.shape
    mean = np.empty_like(c[0, 0])  # sum_k c_ik dL/dc_ik, of one child
    for i in range(children):
        mean[:] = 0
        for j in range(parents):
            for d in range(dim):
                for n in range(POSITIONS):
                    grad_c[i, j, n] += u[i, j, d, n] * grad_s[j, d, n]
            for n in range(POSITIONS):
                mean[n] += c[i, j, n] * grad_c[i, j, n]
        for j in range(parents):
            for n in range(POSITIONS):
                grad_c[i, j, n] = c[i, j, n] * (grad_c[i, j, n] - mean[n])


@compiled
def add_gradients(u, c, grad_s, grad_b, V, grad_u, grad_V):
    """Add c_ij dL/ds_j + dL/db_ij V_j to dL/du_ij, and dL/db_ij u_ij to dL/dV_j."""
    children, parents, dim, _ = u.shape
    for i in range(children):
        for j in range(parents):
            for d in range(dim):
                for n in range(POSITIONS):
                    grad_u[i, j, d, n] += (
                        c[i, j, n] * grad_s[j, d, n] + grad_b[i, j, n] * V[j, d, n]
                    )
                    grad_V[j, d, n] += grad_b[i, j, n] * u[i, j, d, n]


@compiled
def add_first_gradient(c, grad_s, grad_u):
    """Add c_ij dL/ds_j to dL/du_ij: in the first iteration, c is constant."""
    children, parents, dim, _ = grad_u.shape
    for i in range(children):
        for j in range(parents):
            for d in range(dim):
                for n in range(POSITIONS):
                    grad_u[i, j, d, n] += c[i, j, n] * grad_s[j, d, n]


keep_compiled(forward_pass, backward_pass)
