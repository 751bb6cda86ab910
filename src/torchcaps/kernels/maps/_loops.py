"""Compiled loops of routing by agreement on maps. Needs numba.

Source: Sabour, Frosst, Hinton, "Dynamic Routing Between Capsules", arXiv 1710.09829, procedure 1, as
in `functional.routing.dynamic`. With V_j, the sum of the v_j of the iterations before:

    c_i = softmax over j of <u_ij, V_j>;  s_j = bias_j + sum_i c_ij u_ij;  v_j = squash(s_j)

The votes of POSITIONS positions are copied to the cache of a core, where they are routed through
all iterations, and back. The innermost loops run over these positions, which lie next to each other
in memory.

Letters: b batch, i children, j parents, d dimensions, p positions, t iterations, g groups and n
positions of a group.

    votes [b, i, j, d, p]   bias [j, d]   v_out [b, j, d, p]   length_out [b, j, p]
    coupling [b, i, j, p], or of no samples
    u [i, j, d, n]   c [i, j, n]   s, v, V [j, d, n]   length [j, n]
"""

# mypy: allow-untyped-defs
import math

import numpy as np

from torchcaps.functional.squash import EPSILON
from torchcaps.kernels._compile import compiled, exp
from torchcaps.kernels.lanes import POSITIONS, keep_compiled


@compiled
def forward_pass(first, last, iterations, votes, bias, v_out, length_out, coupling):
    """Parents of the groups of positions from `first` to before `last`, and their last couplings."""
    _, children, parents, dim, positions = votes.shape
    groups = -(-positions // POSITIONS)
    u = np.zeros((children, parents, dim, POSITIONS), votes.dtype)
    c = np.empty((children, parents, POSITIONS), votes.dtype)
    s, v, V = np.empty_like(u[0]), np.empty_like(u[0]), np.empty_like(u[0])
    length = np.empty_like(c[0])
    for g in range(first, last):
        b, start = g // groups, g % groups * POSITIONS
        stop = min(start + POSITIONS, positions)
        u[..., : stop - start] = votes[b, ..., start:stop]
        V[:] = 0
        for t in range(iterations):
            couple(t, u, V, c)
            add_votes(c, u, bias, s)
            squash(s, v, length)
            V += v
        v_out[b, ..., start:stop] = v[..., : stop - start]
        length_out[b, :, start:stop] = length[:, : stop - start]
        if len(coupling):
            coupling[b, ..., start:stop] = c[..., : stop - start]


@compiled
def backward_pass(first, last, iterations, votes, bias, grads, grad_votes, grad_bias):
    """Gradients of the votes and, of each group, of the bias `[g, j, d]`; grads: of v, length and coupling."""
    _, children, parents, dim, positions = votes.shape
    groups = -(-positions // POSITIONS)
    grad_v, grad_length, grad_coupling = grads
    u = np.zeros((children, parents, dim, POSITIONS), votes.dtype)
    c = np.empty((iterations, children, parents, POSITIONS), votes.dtype)
    s = np.empty((iterations, parents, dim, POSITIONS), votes.dtype)
    V = np.zeros((iterations + 1, parents, dim, POSITIONS), votes.dtype)
    grad_u, grad_c = np.empty_like(u), np.empty_like(c[0])
    grad_s, grad_V = np.zeros_like(s[0]), np.empty_like(s[0])
    length, slope = np.empty_like(c[0, 0]), np.zeros_like(c[0, 0])
    for g in range(first, last):
        b, start = g // groups, g % groups * POSITIONS
        stop = min(start + POSITIONS, positions)
        count = stop - start
        u[..., :count] = votes[b, ..., start:stop]
        for t in range(iterations):
            couple(t, u, V[t], c[t])
            add_votes(c[t], u, bias, s[t])
            squash(s[t], V[t + 1], length)
            V[t + 1] += V[t]

        grad_s[:] = 0
        slope[:] = 0
        grad_s[..., :count] = grad_v[b, ..., start:stop]
        slope[:, :count] = grad_length[b, :, start:stop]
        grad_c[:] = 0
        if len(grad_coupling):
            grad_c[..., :count] = grad_coupling[b, ..., start:stop]
        grad_u[:] = 0
        grad_V[:] = 0
        grad_bias[g] = 0
        for t in range(iterations - 1, -1, -1):
            squash_backward(s[t], slope, grad_s)
            for j in range(parents):
                for d in range(dim):
                    grad_bias[g, j, d] += grad_s[j, d].sum()
            if t:
                couple_backward(u, c[t], grad_s, grad_c)
                add_links(u, c[t], grad_s, grad_c, V[t], grad_u, grad_V)
            else:
                add_shares(c[0], grad_s, grad_u)
            # What the later iterations say of the parents of the one before.
            grad_s[:] = grad_V
            grad_c[:] = 0
            slope[:] = 0
        grad_votes[b, ..., start:stop] = grad_u[..., :count]


@compiled
def couple(t, u, V, c):
    """c_i = softmax over j of <u_ij, V_j>; equal couplings in the first iteration."""
    children, parents, dim, _ = u.shape
    c[:] = 0 if t else 1.0 / parents
    if t:
        largest, total = np.empty_like(c[0, 0]), np.empty_like(c[0, 0])
        for i in range(children):
            for j in range(parents):
                for d in range(dim):
                    for n in range(POSITIONS):
                        c[i, j, n] += u[i, j, d, n] * V[j, d, n]
            softmax(c[i], largest, total)


@compiled
def softmax(x, largest, total):
    """x_j = exp(x_j) / sum_k exp(x_k)."""
    largest[:] = -np.inf
    total[:] = 0
    for j in range(len(x)):
        for n in range(POSITIONS):
            largest[n] = max(largest[n], x[j, n])
    for j in range(len(x)):
        for n in range(POSITIONS):
            x[j, n] = exp(x[j, n] - largest[n])
            total[n] += x[j, n]
    for j in range(len(x)):
        for n in range(POSITIONS):
            x[j, n] /= total[n]


@compiled
def add_votes(c, u, bias, s):
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
    """`functional.squash.safe_norm` of one vector: in units of its largest magnitude, where that exceeds one."""
    scale[:] = 1
    norm[:] = EPSILON
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
    """v_j = g s_j with g = 1 / (1 / |s_j| + |s_j|), and its length g |s_j|."""
    one = s.dtype.type(1)
    scale, norm = np.empty_like(length[0]), np.empty_like(length[0])
    for j in range(len(s)):
        safe_norm(s[j], scale, norm)
        for n in range(POSITIONS):
            factor = one / (one / norm[n] + norm[n])
            length[j, n] = factor * norm[n]
            norm[n] = factor
        for d in range(s.shape[1]):
            for n in range(POSITIONS):
                v[j, d, n] = norm[n] * s[j, d, n]


@compiled
def squash_backward(s, grad_length, grad):
    """From the gradient of v_j and of its length to that of s_j, in place; see `numerics.squash_backward`."""
    one, two = s.dtype.type(1), s.dtype.type(2)
    scale, norm = np.empty_like(s[0, 0]), np.empty_like(s[0, 0])
    along, g = np.empty_like(norm), np.empty_like(norm)
    for j in range(len(s)):
        safe_norm(s[j], scale, norm)
        along[:] = 0
        for d in range(s.shape[1]):
            for n in range(POSITIONS):
                along[n] += s[j, d, n] / norm[n] * grad[j, d, n]
        for n in range(POSITIONS):
            g[n] = one / (one / norm[n] + norm[n])
            along[n] *= g[n] * (g[n] / norm[n] - g[n] * norm[n])
            along[n] += two * g[n] * g[n] / norm[n] * grad_length[j, n]
        for d in range(s.shape[1]):
            for n in range(POSITIONS):
                grad[j, d, n] = g[n] * grad[j, d, n] + along[n] * (s[j, d, n] / norm[n])


@compiled
def couple_backward(u, c, grad_s, grad):
    """dL/db_ij = c_ij (dL/dc_ij - sum_k c_ik dL/dc_ik), where dL/dc_ij is <u_ij, dL/ds_j> and what is there before."""
    children, parents, dim, _ = u.shape
    mean = np.empty_like(c[0, 0])
    for i in range(children):
        mean[:] = 0
        for j in range(parents):
            for d in range(dim):
                for n in range(POSITIONS):
                    grad[i, j, n] += u[i, j, d, n] * grad_s[j, d, n]
            for n in range(POSITIONS):
                mean[n] += c[i, j, n] * grad[i, j, n]
        for j in range(parents):
            for n in range(POSITIONS):
                grad[i, j, n] = c[i, j, n] * (grad[i, j, n] - mean[n])


@compiled
def add_links(u, c, grad_s, grad_b, V, grad_u, grad_V):
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
def add_shares(c, grad_s, grad_u):
    """Add c_ij dL/ds_j to dL/du_ij."""
    children, parents, dim, _ = grad_u.shape
    for i in range(children):
        for j in range(parents):
            for d in range(dim):
                for n in range(POSITIONS):
                    grad_u[i, j, d, n] += c[i, j, n] * grad_s[j, d, n]


keep_compiled(forward_pass, backward_pass)
