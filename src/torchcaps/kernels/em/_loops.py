"""Compiled loops of EM routing. Needs numba.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, procedure 1, as in
`functional.routing.em`. With r_ij = R_ij a_i and d = V_ijh - center_jh:

    M:  S_j = sum_i r_ij;  mu_jh = sum_i r_ij V_ijh / S_j;  var_jh = sum_i r_ij (V_ijh - mu_jh)^2 / S_j
        logit_j = lambda (beta_a - (H beta_u + sum_h log(var_jh) / 2) S_j)
    E:  log R_ij = log a_j + log N(V_ij; mu_j, var_j), normalized over the parents that compete for child i

The innermost loops run over LANES samples, which lie next to each other in memory. One thread
routes such a group through all iterations. A vote V = M W + shift is computed where it is used and
never stored.

Letters: g groups, t iterations, j parents of all windows, i children of a window, h dimensions of a
vote, n samples of a group. Of matrices: p rows of a pose, k its columns, q columns of a vote.

    pose [g, place, (p, k), n]   activation [g, place, n]   weight [type, i, k, q]   shift [type, i, h]
    place [j, i]: of a child on the map        slot [j, i]: number of the competition for a child
    mean, variance [g, t, j, h, n]             stats [g, t, j, 3, n]: S, sum_h log var, logit
    R [j, i, n]                                start [j, i]: R before the first M-step

`variance` leaves out the constant VAR_MIN, which is added wherever it is used.
"""

# mypy: allow-untyped-defs
import math
from collections import namedtuple

import numpy as np

from torchcaps.functional.routing.em import EPSILON, VAR_MIN
from torchcaps.kernels._compile import compiled, compiled_sum, exp
from torchcaps.kernels.lanes import LANES, keep_compiled

# Squared distance of a mean from the center, in variances, beyond which sums of squares lose digits.
FAR = 16.0

# Operands of a layer. `sizes` holds the sizes of p, k and q as tuples of that length: the length of
# a tuple belongs to its type, so the compiler knows it. beta_u is multiplied by the size of h.
Layer = namedtuple(
    "Layer",
    "sizes num_slots place slot start pose activation weight shift beta_u beta_a temperatures",
)
# State of the parents after one iteration, or its gradient: without the axes g and t.
State = namedtuple("State", "mean variance stats")
# Gradients of poses and activations, added to what is there. Those of weights, shifts (of no groups
# if there are none) and betas [g, type, 2, n] are of one group each.
Gradients = namedtuple("Gradients", "pose activation weight shift betas")


@compiled
def forward_pass(first, last, layer, mean, variance, stats, coupling):
    """Route the groups from `first` to before `last`.

    Writes the state after every iteration and, unless it has no groups, the last coupling R.
    """
    iterations = mean.shape[1]
    parents, children = layer.place.shape
    R = np.empty((parents, children, LANES), mean.dtype)
    for g in range(first, last):
        start_coupling(layer, R)
        for t in range(iterations):
            if t:
                expect(layer, g, State(mean[g, t - 1], variance[g, t - 1], stats[g, t - 1]), R)
            maximize(layer, g, t, R, mean, variance, stats)
        if len(coupling):
            coupling[g] = R


@compiled
def start_coupling(layer, R):
    """Set the R of the first M-step."""
    for j in range(len(R)):
        for i in range(R.shape[1]):
            R[j, i] = layer.start[j, i]


@compiled
def maximize(layer, g, t, R, mean, variance, stats):
    """M-step of every parent. Sums of squares run around the mean of the iteration before.

    They are repeated around the new mean where that is far from the old one.
    """
    r = np.empty_like(R[0])
    center = np.zeros_like(mean[0, 0, 0])
    first_moment, second_moment = np.empty_like(center), np.empty_like(center)
    total = np.empty_like(center[0])
    for j in range(len(R)):
        for i in range(len(r)):
            for n in range(LANES):
                r[i, n] = R[j, i, n] * layer.activation[g, layer.place[j, i], n]
        center[:] = 0
        if t:
            center[:] = mean[g, t - 1, j]
        state = State(mean[g, t, j], variance[g, t, j], stats[g, t, j])
        for _ in range(2):
            add_moments(layer, g, j, r, center, first_moment, second_moment, total)
            is_far = fit(layer, t, j, center, first_moment, second_moment, total, state)
            if not is_far:
                break
            center[:] = state.mean


@compiled
def add_moments(layer, g, j, factor, center, first_moment, second_moment, total):
    """Sums over children of f d and f d^2 [h, n], and of f [n], for a factor f [i, n]."""
    rows, inner, outer = len(layer.sizes[0]), len(layer.sizes[1]), len(layer.sizes[2])
    pose, weight, shift = layer.pose, layer.weight, layer.shift
    kind = j % len(weight)
    first_moment[:] = 0
    second_moment[:] = 0
    total[:] = 0
    for i in range(len(factor)):
        place = layer.place[j, i]
        for n in range(LANES):
            total[n] += factor[i, n]
        for p in range(rows):
            for q in range(outer):
                h = p * outer + q
                for n in range(LANES):
                    vote = shift[kind, i, h]
                    for k in range(inner):
                        vote += pose[g, place, p * inner + k, n] * weight[kind, i, k, q]
                    d = vote - center[h, n]
                    weighted = factor[i, n] * d
                    first_moment[h, n] += weighted
                    second_moment[h, n] += weighted * d


@compiled
def fit(layer, t, j, center, first_moment, second_moment, total, state):
    """State of a parent from the moments around a center; whether its mean is far from that."""
    mean, variance, stats = state
    kind = j % len(layer.weight)
    number = mean.dtype.type
    one, two, half, zero = number(1), number(2), number(0.5), number(0)
    least, epsilon, far = number(VAR_MIN), number(EPSILON), number(FAR)
    is_far = False
    stats[0] = total
    stats[1] = 0
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (total[n] + epsilon)
            mean[h, n] = (center[h, n] * total[n] + first_moment[h, n]) * inverse
            # From squares around the center to squares around the mean.
            moved = mean[h, n] - center[h, n]
            squares = second_moment[h, n] - two * moved * first_moment[h, n]
            squares += moved * moved * total[n]
            variance[h, n] = max(squares * inverse, zero)
            is_far |= moved * moved > far * (variance[h, n] + least)
            stats[1, n] += math.log(variance[h, n] + least)
    for n in range(LANES):
        cost = (layer.beta_u[kind] + half * stats[1, n]) * total[n]
        stats[2, n] = layer.temperatures[t] * (layer.beta_a[kind] - cost)
    return is_far


@compiled
def expect(layer, g, state, R):
    """E-step: R from the state after the iteration before."""
    number = R.dtype.type
    one, half, zero = number(1), number(0.5), number(0)
    linear, square = np.zeros_like(state.mean[0]), np.empty_like(state.mean[0])
    constant = np.empty_like(linear[0])
    for j in range(len(R)):
        for n in range(LANES):
            logit = state.stats[j, 2, n]
            log_activation = min(logit, zero) - math.log1p(math.exp(-abs(logit)))
            constant[n] = log_activation - half * state.stats[j, 1, n]
        for h in range(len(square)):
            for n in range(LANES):
                square[h, n] = -half * (one / (state.variance[j, h, n] + number(VAR_MIN)))
        add_squares(layer, g, j, state.mean[j], linear, square, constant, R[j])
    softmax(layer, R)


@compiled
def add_squares(layer, g, j, center, linear, square, constant, out):
    """out_i = constant + sum_h (linear_h d_h + square_h d_h^2)."""
    rows, inner, outer = len(layer.sizes[0]), len(layer.sizes[1]), len(layer.sizes[2])
    pose, weight, shift = layer.pose, layer.weight, layer.shift
    kind = j % len(weight)
    for i in range(len(out)):
        place = layer.place[j, i]
        out[i] = constant
        for p in range(rows):
            for q in range(outer):
                h = p * outer + q
                for n in range(LANES):
                    vote = shift[kind, i, h]
                    for k in range(inner):
                        vote += pose[g, place, p * inner + k, n] * weight[kind, i, k, q]
                    d = vote - center[h, n]
                    out[i, n] += (square[h, n] * d + linear[h, n]) * d


@compiled
def softmax(layer, x):
    """x = exp(x) / sum of exp(x) over the parents that compete for a child, in place."""
    parents, children, _ = x.shape
    largest = np.full((layer.num_slots, LANES), -np.inf, x.dtype)
    total = np.zeros_like(largest)
    for j in range(parents):
        for i in range(children):
            slot = layer.slot[j, i]
            for n in range(LANES):
                largest[slot, n] = max(largest[slot, n], x[j, i, n])
    for j in range(parents):
        for i in range(children):
            slot = layer.slot[j, i]
            for n in range(LANES):
                x[j, i, n] = exp(x[j, i, n] - largest[slot, n])
                total[slot, n] += x[j, i, n]
    for j in range(parents):
        for i in range(children):
            slot = layer.slot[j, i]
            for n in range(LANES):
                x[j, i, n] /= total[slot, n]


@compiled
def backward_pass(
    first, last, layer, mean, variance, stats, grad_mean, grad_logit, grad_coupling, gradients
):
    """Gradients of the operands for the groups from `first` to before `last`.

    grad_mean `[g, j, h, n]` and grad_logit `[g, j, n]` belong to the last state. They are used up:
    each iteration replaces them by those of the state before.
    """
    iterations, parents, dim = mean.shape[1:4]
    links = (iterations, parents, layer.place.shape[1], LANES)
    R = np.empty(links, mean.dtype)
    # dL/dr of each iteration, then dL/dR, then dL/dlog R.
    grad_R = np.empty(links, mean.dtype)
    # dL/dV_ij is a sum of lines over the iterations: r (intercept + slope d) of the M-step, and
    # dL/dlog R (intercept + slope d) of the E-step, where d = V - the last mean.
    intercept = np.zeros((2, iterations, parents, dim, LANES), mean.dtype)
    slope = np.zeros_like(intercept)
    grad_variance = np.empty((parents, dim, LANES), mean.dtype)
    for g in range(first, last):
        center = mean[g, iterations - 1]
        grad_variance[:] = 0
        gradients.betas[g] = 0
        gradients.weight[g] = 0
        gradients.shift[g : g + 1] = 0
        start_coupling(layer, R[0])
        for t in range(1, iterations):
            expect(layer, g, State(mean[g, t - 1], variance[g, t - 1], stats[g, t - 1]), R[t])

        for t in range(iterations - 1, -1, -1):
            for j in range(parents):
                fit_backward(
                    layer,
                    (g, t, j),
                    State(mean[g, t, j], variance[g, t, j], stats[g, t, j]),
                    State(grad_mean[g, j], grad_variance[j], grad_logit[g, j]),
                    center[j],
                    (intercept[0, t, j], slope[0, t, j]),
                    gradients.betas[g],
                    grad_R[t, j],
                )
            weigh_backward(layer, g, R[t], grad_R[t], gradients.activation[g])
            if t == 0:  # the first R is a constant
                grad_R[0] = 0
                break
            if t == iterations - 1 and len(grad_coupling):
                grad_R[t] += grad_coupling[g]
            softmax_backward(layer, R[t], grad_R[t])
            for j in range(parents):
                expect_backward(
                    layer,
                    (g, j),
                    grad_R[t, j],
                    State(mean[g, t - 1, j], variance[g, t - 1, j], stats[g, t - 1, j]),
                    State(grad_mean[g, j], grad_variance[j], grad_logit[g, j]),
                    center[j],
                    (intercept[1, t, j], slope[1, t, j]),
                )
        votes_backward(layer, g, center, R, grad_R, intercept, slope, gradients)


@compiled
def fit_backward(layer, index, state, grad_state, center, line, grad_betas, grad_r):
    """Backward of the M-step of a parent: dL/dr and the line of dL/dV from dL/dstate.

    Adds dL/d(H beta_u) and dL/dbeta_a to grad_betas `[type, 2, n]`.
    """
    (g, t, j), (mean, variance, stats) = index, state
    (grad_mean, grad_variance, grad_logit), (intercept, slope) = grad_state, line
    kind = j % len(layer.weight)
    number = mean.dtype.type
    one, two, half = number(1), number(2), number(0.5)
    least, epsilon = number(VAR_MIN), number(EPSILON)
    linear, square = np.empty_like(mean), np.empty_like(mean)
    constant = np.empty_like(grad_logit)
    for n in range(LANES):
        grad_gain = layer.temperatures[t] * grad_logit[n]
        grad_betas[kind, 0, n] -= grad_gain * stats[0, n]
        grad_betas[kind, 1, n] += grad_gain
        constant[n] = -grad_gain * (layer.beta_u[kind] + half * stats[1, n])
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (stats[0, n] + epsilon)
            grad_log = -half * layer.temperatures[t] * grad_logit[n] * stats[0, n]
            grad_var = grad_variance[h, n] + grad_log / (variance[h, n] + least)
            # The weights r / (S + EPSILON) do not sum to one: the variance depends on the mean.
            grad_mu = grad_mean[h, n] - two * epsilon * grad_var * inverse * mean[h, n]
            linear[h, n] = grad_mu * inverse
            square[h, n] = grad_var * inverse
            constant[n] -= square[h, n] * variance[h, n]
            slope[h, n] = two * square[h, n]
            intercept[h, n] = linear[h, n] + slope[h, n] * (center[h, n] - mean[h, n])
    add_squares(layer, g, j, mean, linear, square, constant, grad_r)


@compiled
def weigh_backward(layer, g, R, grad, grad_activation):
    """Backward of r_ij = R_ij a_i: from dL/dr to dL/dR, in place, and to dL/da `[place, n]`."""
    parents, children, _ = R.shape
    for j in range(parents):
        for i in range(children):
            place = layer.place[j, i]
            for n in range(LANES):
                grad_activation[place, n] += R[j, i, n] * grad[j, i, n]
                grad[j, i, n] *= layer.activation[g, place, n]


@compiled
def softmax_backward(layer, R, grad):
    """From dL/dR to dL/dlog R = R (dL/dR - sum of R dL/dR over competing parents), in place."""
    parents, children, _ = R.shape
    average = np.zeros((layer.num_slots, LANES), R.dtype)
    for j in range(parents):
        for i in range(children):
            slot = layer.slot[j, i]
            for n in range(LANES):
                average[slot, n] += R[j, i, n] * grad[j, i, n]
    for j in range(parents):
        for i in range(children):
            slot = layer.slot[j, i]
            for n in range(LANES):
                grad[j, i, n] = R[j, i, n] * (grad[j, i, n] - average[slot, n])


@compiled
def expect_backward(layer, index, grad_log_R, state, grad_state, center, line):
    """Backward of the E-step of a parent: dL/dstate and the line of dL/dV from dL/dlog R."""
    (g, j), (mean, variance, stats) = index, state
    (grad_mean, grad_variance, grad_logit), (intercept, slope) = grad_state, line
    number = mean.dtype.type
    one, half = number(1), number(0.5)
    total = np.empty_like(grad_logit)
    add_moments(layer, g, j, grad_log_R, mean, grad_mean, grad_variance, total)
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (variance[h, n] + number(VAR_MIN))
            grad_mean[h, n] *= inverse
            grad_variance[h, n] = half * inverse * (grad_variance[h, n] * inverse - total[n])
            slope[h, n] = -inverse
            intercept[h, n] = (mean[h, n] - center[h, n]) * inverse
    for n in range(LANES):
        # d log sigmoid(x) / dx = 1 / (1 + exp(x))
        grad_logit[n] = total[n] / (one + math.exp(stats[2, n]))


@compiled
def votes_backward(layer, g, center, R, grad_R, intercept, slope, gradients):
    """From dL/dV of each link to the gradients of poses, weights and shifts."""
    rows, inner, outer = len(layer.sizes[0]), len(layer.sizes[1]), len(layer.sizes[2])
    pose, weight, shift = layer.pose, layer.weight, layer.shift
    constant, linear = np.empty_like(center[0]), np.empty_like(center[0])
    grad_vote = np.empty_like(center[0])
    for j in range(len(center)):
        kind = j % len(weight)
        for i in range(R.shape[2]):
            place = layer.place[j, i]
            sum_lines(
                j, i, layer.activation[g, place], R, grad_R, intercept, slope, constant, linear
            )
            for p in range(rows):
                for q in range(outer):
                    h = p * outer + q
                    for n in range(LANES):
                        vote = shift[kind, i, h]
                        for k in range(inner):
                            vote += pose[g, place, p * inner + k, n] * weight[kind, i, k, q]
                        d = vote - center[j, h, n]
                        grad_vote[h, n] = constant[h, n] + linear[h, n] * d
                for k in range(inner):
                    for n in range(LANES):
                        gradient = gradients.pose[g, place, p * inner + k, n]
                        for q in range(outer):
                            gradient += grad_vote[p * outer + q, n] * weight[kind, i, k, q]
                        gradients.pose[g, place, p * inner + k, n] = gradient
            add_weight_gradient(
                layer.sizes, pose[g, place], grad_vote, gradients.weight[g, kind, i]
            )
            if len(gradients.shift):
                add_samples(grad_vote, gradients.shift[g, kind, i])


@compiled
def sum_lines(j, i, activation, R, grad_R, intercept, slope, constant, linear):
    """dL/dV of a link as one line, constant + linear d."""
    constant[:] = 0
    linear[:] = 0
    for t in range(len(R)):
        for h in range(len(constant)):
            for n in range(LANES):
                r = R[t, j, i, n] * activation[n]
                constant[h, n] += r * intercept[0, t, j, h, n]
                constant[h, n] += grad_R[t, j, i, n] * intercept[1, t, j, h, n]
                linear[h, n] += r * slope[0, t, j, h, n]
                linear[h, n] += grad_R[t, j, i, n] * slope[1, t, j, h, n]


@compiled_sum
def add_weight_gradient(sizes, pose, grad_vote, gradient):
    """Add pose' dL/dV, summed over samples, to dL/dW `[k, q]`."""
    rows, inner, outer = len(sizes[0]), len(sizes[1]), len(sizes[2])
    for k in range(inner):
        for q in range(outer):
            total = gradient.dtype.type(0)
            for n in range(LANES):
                for p in range(rows):
                    total += pose[p * inner + k, n] * grad_vote[p * outer + q, n]
            gradient[k, q] += total


@compiled_sum
def add_samples(x, gradient):
    """Add x `[h, n]`, summed over samples."""
    for h in range(len(x)):
        total = x.dtype.type(0)
        for n in range(LANES):
            total += x[h, n]
        gradient[h] += total


keep_compiled(forward_pass, backward_pass)
