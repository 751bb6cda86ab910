"""Compiled loops of EM routing. Needs numba.

The innermost loops run over LANES samples, which lie next to each other in memory; a group of so many is routed from
its first to its last iteration by one thread. A vote is made where it is needed and never stored. As in
`functional.routing.em`, with r_ij = R_ij a_i and d = V_ijh - center_jh:

    M:  S_j = sum_i r_ij;  mu_jh = sum_i r_ij V_ijh / S_j;  var_jh likewise;  logit_j = lambda (beta_a - cost)
    E:  R_i = softmax over the competing parents of  log a_j + log N(V_ij; mu_j, var_j)

Letters: g groups, t iterations, w windows, i children of a window, j parents, h numbers of a vote, n samples.

    pose [g, place, row * inner, n]   activation [g, place, n]   weight [j, i, inner, outer]   shift [j, i, h]
    place [w, i]: of a child on the map   slot [w, i]: competition for a child   start [w, i]: the first R
    mean, variance [g, t, w, j, h, n]   stats [g, t, w, j, 3, n]: S, sum of log variances, logit   R [t, w, j, i, n]

`variance` is that without the VAR_MIN that is added to it.
"""

# mypy: allow-untyped-defs
import math
from collections import namedtuple

import numpy as np

from torchcaps.functional.routing.em import EPSILON, VAR_MIN
from torchcaps.kernels._compile import compiled, compiled_sum, exp
from torchcaps.kernels.lanes import LANES, keep_compiled

# Squared distance of a mean from the center, in variances, from which sums of squares would lose digits.
FAR = 16.0

# What goes in. sizes: rows, inner and outer size of the matrices, as lengths of tuples: those are types to numba, and
# constants in the code that it makes. num_slots: competitions; rivals: 1, or the number of parents if those of each
# type compete by themselves.
Layer = namedtuple(
    "Layer",
    "sizes num_slots rivals place slot pose activation weight shift start beta_u beta_a heat",
)
# Gradients of what goes in, added to those of poses and activations `[g, place, ...]`; of each group for weights
# `[g, j, i, inner, outer]`, shifts `[g, j, i, h]` (or of no groups) and betas `[g, j, 2]`.
Grads = namedtuple("Grads", "pose activation weight shift betas")


@compiled
def forward_pass(first, last, layer, mean, variance, stats, coupling):
    """States of all iterations of the groups from `first` to before `last`; the last R unless of no groups."""
    iterations, windows, parents = mean.shape[1:4]
    R = np.empty((windows, parents, layer.place.shape[1], LANES), mean.dtype)
    for g in range(first, last):
        start_coupling(layer, R)
        maximize(layer, g, 0, R, mean, variance, stats)
        for t in range(1, iterations):
            expect(layer, g, mean[g, t - 1], variance[g, t - 1], stats[g, t - 1], R)
            maximize(layer, g, t, R, mean, variance, stats)
        if len(coupling):
            coupling[g] = R


@compiled
def start_coupling(layer, R):
    """R before the first M-step, the same for all parents."""
    windows, parents, children, _ = R.shape
    for w in range(windows):
        for j in range(parents):
            for i in range(children):
                R[w, j, i] = layer.start[w, i]


@compiled
def maximize(layer, g, t, R, mean, variance, stats):
    """M-step of every parent."""
    windows, parents = mean.shape[2:4]
    r = np.empty_like(R[0, 0])
    center = np.zeros_like(mean[0, 0, 0, 0])
    firsts, seconds = np.empty_like(center), np.empty_like(center)
    total = np.empty_like(center[0])
    for w in range(windows):
        for j in range(parents):
            for i in range(len(r)):
                for n in range(LANES):
                    r[i, n] = R[w, j, i, n] * layer.activation[g, layer.place[w, i], n]
            center[:] = 0
            if t:
                center[:] = mean[g, t - 1, w, j]
            for _ in range(2):
                moments(layer, g, w, j, r, center, firsts, seconds, total)
                is_far = fit(
                    layer.beta_u[j],
                    layer.beta_a[j],
                    layer.heat[t],
                    center,
                    firsts,
                    seconds,
                    total,
                    mean[g, t, w, j],
                    variance[g, t, w, j],
                    stats[g, t, w, j],
                )
                if not is_far:
                    break
                center[:] = mean[g, t, w, j]


@compiled
def expect(layer, g, mean, variance, stats, R):
    """E-step: R from the state of the iteration before, `[w, j, ...]`."""
    windows, parents, dim, _ = mean.shape
    half, least = mean.dtype.type(0.5), mean.dtype.type(VAR_MIN)
    linear, square = np.zeros_like(mean[0, 0]), np.empty_like(mean[0, 0])
    constant = np.empty_like(linear[0])
    for w in range(windows):
        for j in range(parents):
            for n in range(LANES):
                logit = stats[w, j, 2, n]
                log_a = min(logit, 0) - math.log1p(math.exp(-abs(logit)))
                constant[n] = log_a - half * stats[w, j, 1, n]
            for h in range(dim):
                for n in range(LANES):
                    square[h, n] = -half / (variance[w, j, h, n] + least)
            quadratic(layer, g, w, j, mean[w, j], linear, square, constant, R[w, j])
    softmax(layer, R)


@compiled
def softmax(layer, x):
    """x = exp(x) / the sum over the parents that compete for a child."""
    windows, parents, children, _ = x.shape
    largest = np.full((layer.num_slots, layer.rivals, LANES), -np.inf, x.dtype)
    total = np.zeros_like(largest)
    for w in range(windows):
        for j in range(parents):
            rival = j % layer.rivals
            for i in range(children):
                slot = layer.slot[w, i]
                for n in range(LANES):
                    largest[slot, rival, n] = max(largest[slot, rival, n], x[w, j, i, n])
    for w in range(windows):
        for j in range(parents):
            rival = j % layer.rivals
            for i in range(children):
                slot = layer.slot[w, i]
                for n in range(LANES):
                    x[w, j, i, n] = exp(x[w, j, i, n] - largest[slot, rival, n])
                    total[slot, rival, n] += x[w, j, i, n]
    for w in range(windows):
        for j in range(parents):
            rival = j % layer.rivals
            for i in range(children):
                slot = layer.slot[w, i]
                for n in range(LANES):
                    x[w, j, i, n] /= total[slot, rival, n]


@compiled
def moments(layer, g, w, j, factor, center, firsts, seconds, total):
    """Over children, with a factor f of each: sums of f d and f d^2 `[h, n]`, and of f."""
    rows, inner, outer = len(layer.sizes[0]), len(layer.sizes[1]), len(layer.sizes[2])
    pose, weight, shift = layer.pose, layer.weight, layer.shift
    firsts[:] = 0
    seconds[:] = 0
    total[:] = 0
    for i in range(len(factor)):
        place = layer.place[w, i]
        for n in range(LANES):
            total[n] += factor[i, n]
        for p in range(rows):
            for q in range(outer):
                h = p * outer + q
                for n in range(LANES):
                    vote = shift[j, i, h]
                    for k in range(inner):
                        vote += pose[g, place, p * inner + k, n] * weight[j, i, k, q]
                    d = vote - center[h, n]
                    weighed = factor[i, n] * d
                    firsts[h, n] += weighed
                    seconds[h, n] += weighed * d


@compiled
def quadratic(layer, g, w, j, center, linear, square, constant, out):
    """out = constant + sum_h (linear_h d_h + square_h d_h^2) of each child."""
    rows, inner, outer = len(layer.sizes[0]), len(layer.sizes[1]), len(layer.sizes[2])
    pose, weight, shift = layer.pose, layer.weight, layer.shift
    for i in range(len(out)):
        place = layer.place[w, i]
        out[i] = constant
        for p in range(rows):
            for q in range(outer):
                h = p * outer + q
                for n in range(LANES):
                    vote = shift[j, i, h]
                    for k in range(inner):
                        vote += pose[g, place, p * inner + k, n] * weight[j, i, k, q]
                    d = vote - center[h, n]
                    out[i, n] += (square[h, n] * d + linear[h, n]) * d


@compiled
def fit(beta_u, beta_a, heat, center, firsts, seconds, total, mean, variance, stats):
    """State of a parent from its moments; whether its mean is too far from the center for exact sums of squares.

    beta_u is multiplied by the number of dimensions.
    """
    kind = mean.dtype.type
    one, two, half, none = kind(1), kind(2), kind(0.5), kind(0)
    is_far = False
    log = np.zeros_like(total)
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (total[n] + kind(EPSILON))
            mean[h, n] = (center[h, n] * total[n] + firsts[h, n]) * inverse
            moved = mean[h, n] - center[h, n]
            squares = seconds[h, n] - two * moved * firsts[h, n] + moved * moved * total[n]
            variance[h, n] = max(squares * inverse, none)
            is_far |= moved * moved > kind(FAR) * (variance[h, n] + kind(VAR_MIN))
            log[n] += math.log(variance[h, n] + kind(VAR_MIN))
    for n in range(LANES):
        stats[0, n] = total[n]
        stats[1, n] = log[n]
        stats[2, n] = heat * (beta_a - (half * log[n] + beta_u) * total[n])
    return is_far


@compiled
def backward_pass(
    first, last, layer, mean, variance, stats, grad_mean, grad_logit, grad_coupling, grads
):
    """Gradients of what went in; those of mean `[g, w, j, h, n]` and logit `[g, w, j, n]` are used up."""
    _, iterations, windows, parents, dim, _ = mean.shape
    links = (windows, parents, layer.place.shape[1], LANES)
    # R and, behind it, dL/dlog R of each iteration; none of the first one, whose R is fixed.
    factors = np.empty((2, iterations, *links), mean.dtype)
    # dL/dV is the sum of r, or dL/dlog R, times (intercept + slope (V - the last mean)).
    intercept = np.zeros((2, iterations, windows, parents, dim, LANES), mean.dtype)
    slope = np.zeros_like(intercept)
    grad_variance = np.empty_like(grad_mean[0])
    for g in range(first, last):
        center = mean[g, iterations - 1]
        grad_variance[:] = 0
        grads.betas[g] = 0
        grads.weight[g] = 0
        if len(grads.shift):
            grads.shift[g] = 0
        start_coupling(layer, factors[0, 0])
        for t in range(1, iterations):
            expect(layer, g, mean[g, t - 1], variance[g, t - 1], stats[g, t - 1], factors[0, t])
        for t in range(iterations - 1, -1, -1):
            R, grad_R = factors[0, t], factors[1, t]
            for w in range(windows):
                for j in range(parents):
                    fit_backward(
                        layer,
                        (g, t, w, j),
                        (mean[g, t, w, j], variance[g, t, w, j], stats[g, t, w, j]),
                        (grad_mean[g, w, j], grad_variance[w, j], grad_logit[g, w, j]),
                        center[w, j],
                        (intercept[0, t, w, j], slope[0, t, w, j]),
                        grads.betas[g, j],
                        grad_R[w, j],
                    )
            weigh_backward(layer, g, R, grad_R, grads.activation[g])
            if t == 0:
                break
            if t == iterations - 1 and len(grad_coupling):
                grad_R += grad_coupling[g]
            softmax_backward(layer, R, grad_R)
            for w in range(windows):
                for j in range(parents):
                    expect_backward(
                        layer,
                        (g, w, j),
                        grad_R[w, j],
                        (mean[g, t - 1, w, j], variance[g, t - 1, w, j], stats[g, t - 1, w, j]),
                        (grad_mean[g, w, j], grad_variance[w, j], grad_logit[g, w, j]),
                        center[w, j],
                        (intercept[1, t, w, j], slope[1, t, w, j]),
                    )
        factors[1, 0] = 0
        spread(layer, g, center, factors, intercept, slope, grads)


@compiled
def fit_backward(layer, index, state, grad_state, center, line, grad_betas, out):
    """Backward of the M-step of a parent: dL/dr of its children, and the line of dL/dV = r (intercept + slope ...).

    Added to grad_betas: dL/d(H beta_u), dL/dbeta_a.
    """
    (g, t, w, j), (mean, variance, stats) = index, state
    (grad_mean, grad_variance, grad_logit), (intercept, slope) = grad_state, line
    kind = mean.dtype.type
    one, two, half = kind(1), kind(2), kind(0.5)
    constant = np.empty_like(stats[0])
    linear, square = np.empty_like(mean), np.empty_like(mean)
    for n in range(LANES):
        steep = layer.heat[t] * grad_logit[n]
        grad_betas[0, n] -= steep * stats[0, n]
        grad_betas[1, n] += steep
        constant[n] = -steep * (half * stats[1, n] + layer.beta_u[j])
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (stats[0, n] + kind(EPSILON))
            grad = grad_variance[h, n] - half * layer.heat[t] * grad_logit[n] * stats[0, n] / (
                variance[h, n] + kind(VAR_MIN)
            )
            square[h, n] = grad * inverse
            # The weights of the variance sum to S / (S + EPSILON): the mean moves it.
            linear[h, n] = (
                grad_mean[h, n] - two * kind(EPSILON) * grad * inverse * mean[h, n]
            ) * inverse
            constant[n] -= square[h, n] * variance[h, n]
            slope[h, n] = two * square[h, n]
            intercept[h, n] = linear[h, n] + slope[h, n] * (center[h, n] - mean[h, n])
    quadratic(layer, g, w, j, mean, linear, square, constant, out)


@compiled
def expect_backward(layer, index, factor, state, grad_state, center, line):
    """Backward of the E-step of a parent, from dL/dlog R of its children: gradients of its state, and line of dL/dV."""
    (g, w, j), (mean, variance, stats) = index, state
    (grad_mean, grad_variance, grad_logit), (intercept, slope) = grad_state, line
    kind = mean.dtype.type
    one, half = kind(1), kind(0.5)
    total = np.empty_like(grad_logit)
    moments(layer, g, w, j, factor, mean, grad_mean, grad_variance, total)
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (variance[h, n] + kind(VAR_MIN))
            grad_mean[h, n] *= inverse
            grad_variance[h, n] = half * inverse * (grad_variance[h, n] * inverse - total[n])
            slope[h, n] = -inverse
            intercept[h, n] = (mean[h, n] - center[h, n]) * inverse
    for n in range(LANES):
        # d log sigmoid(x) / dx = sigmoid(-x)
        grad_logit[n] = total[n] / (one + kind(math.exp(stats[2, n])))


@compiled
def weigh_backward(layer, g, R, grad, grad_activation):
    """Backward of r_ij = R_ij a_i: dL/dR in the place of dL/dr, and dL/da added to that of the map."""
    windows, parents, children, _ = R.shape
    for w in range(windows):
        for j in range(parents):
            for i in range(children):
                place = layer.place[w, i]
                for n in range(LANES):
                    grad_activation[place, n] += R[w, j, i, n] * grad[w, j, i, n]
                    grad[w, j, i, n] *= layer.activation[g, place, n]


@compiled
def softmax_backward(layer, R, grad):
    """dL/dlog R = R (dL/dR - sum over competing parents of R dL/dR), in the place of dL/dR."""
    windows, parents, children, _ = R.shape
    mean = np.zeros((layer.num_slots, layer.rivals, LANES), R.dtype)
    for w in range(windows):
        for j in range(parents):
            rival = j % layer.rivals
            for i in range(children):
                slot = layer.slot[w, i]
                for n in range(LANES):
                    mean[slot, rival, n] += R[w, j, i, n] * grad[w, j, i, n]
    for w in range(windows):
        for j in range(parents):
            rival = j % layer.rivals
            for i in range(children):
                slot = layer.slot[w, i]
                for n in range(LANES):
                    grad[w, j, i, n] = R[w, j, i, n] * (grad[w, j, i, n] - mean[slot, rival, n])


@compiled
def spread(layer, g, center, factors, intercept, slope, grads):
    """From dL/dV, made link by link, to the gradients of poses, weights and shifts."""
    rows, inner, outer = len(layer.sizes[0]), len(layer.sizes[1]), len(layer.sizes[2])
    pose, weight, shift = layer.pose, layer.weight, layer.shift
    _, _, windows, parents, children, _ = factors.shape
    constant, linear = np.empty_like(center[0, 0]), np.empty_like(center[0, 0])
    grad_vote = np.empty_like(center[0, 0])
    for w in range(windows):
        for j in range(parents):
            for i in range(children):
                place = layer.place[w, i]
                sum_lines(
                    w, j, i, layer.activation[g, place], factors, intercept, slope, constant, linear
                )
                for p in range(rows):
                    for q in range(outer):
                        h = p * outer + q
                        for n in range(LANES):
                            vote = shift[j, i, h]
                            for k in range(inner):
                                vote += pose[g, place, p * inner + k, n] * weight[j, i, k, q]
                            d = vote - center[w, j, h, n]
                            grad_vote[h, n] = constant[h, n] + linear[h, n] * d
                    for k in range(inner):
                        for n in range(LANES):
                            grad = grads.pose[g, place, p * inner + k, n]
                            for q in range(outer):
                                grad += grad_vote[p * outer + q, n] * weight[j, i, k, q]
                            grads.pose[g, place, p * inner + k, n] = grad
                add_weight_gradient(layer.sizes, pose[g, place], grad_vote, grads.weight[g, j, i])
                if len(grads.shift):
                    add_lanes(grad_vote, grads.shift[g, j, i])


@compiled
def sum_lines(w, j, i, activation, factors, intercept, slope, constant, linear):
    """The lines of dL/dV of a link: those of r = R a, and of dL/dlog R."""
    _, iterations, _, _, dim, _ = intercept.shape
    constant[:] = 0
    linear[:] = 0
    for t in range(iterations):
        for h in range(dim):
            for n in range(LANES):
                r = factors[0, t, w, j, i, n] * activation[n]
                grad = factors[1, t, w, j, i, n]
                constant[h, n] += r * intercept[0, t, w, j, h, n]
                constant[h, n] += grad * intercept[1, t, w, j, h, n]
                linear[h, n] += r * slope[0, t, w, j, h, n]
                linear[h, n] += grad * slope[1, t, w, j, h, n]


@compiled_sum
def add_weight_gradient(sizes, pose, grad_vote, out):
    """Add the pose, transposed, times dL/dV, summed over samples."""
    rows, inner, outer = len(sizes[0]), len(sizes[1]), len(sizes[2])
    for k in range(inner):
        for q in range(outer):
            total = out.dtype.type(0)
            for n in range(LANES):
                for p in range(rows):
                    total += pose[p * inner + k, n] * grad_vote[p * outer + q, n]
            out[k, q] += total


@compiled_sum
def add_lanes(x, out):
    """Add the sums over samples."""
    for h in range(len(x)):
        total = x.dtype.type(0)
        for n in range(LANES):
            total += x[h, n]
        out[h] += total


keep_compiled(forward_pass, backward_pass)
