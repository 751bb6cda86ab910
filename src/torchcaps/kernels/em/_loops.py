"""Compiled loops of EM routing. Needs numba.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, procedure 1, as in
`functional.routing.em`. A vote of child i for parent j is V_ij = M_i W_ij + shift_ij, of the
child's pose matrix M_i and learned numbers. It has the dimensions h. Each iteration t is an M-step,
from couplings R_ij and activations a_i of children to the state of parents, and, but for the last
one, an E-step, from states to couplings:

    M:  r_ij = R_ij a_i;  S_j = sum_i r_ij
        mean_jh = sum_i r_ij V_ijh / S_j
        variance_jh = sum_i r_ij (V_ijh - mean_jh)^2 / S_j
        logit_j = lambda_t (beta_a - (H beta_u + sum_h log(variance_jh) / 2) S_j)
    E:  a_j = sigmoid(logit_j)
        R_ij = a_j N(V_ij; mean_j, variance_j) / (the sum of these over competing parents)

where H is the number of dimensions, lambda_t the inverse temperature and N the density of a normal
distribution. The E-step computes with logarithms, less what competing parents have in common.

A parent sees the children of its window, a part of a map. Windows overlap, so a child of the map is
a child of several windows. Competitions say which parents share the votes of a child: R sums to one
over the pairs (j, i) of one competition.

A vote is computed where it is used and never stored: the votes of a layer are larger than the
cache, and an M-step or an E-step would read all of them. The innermost loops run over LANES
samples, which lie next to each other in memory, so that the compiler vectorizes them. One thread
routes such a group of samples through all iterations.

Letters: g group of samples, n sample in a group, t iteration, j parent, of all windows and types, i
child of a window, h dimension of a vote. Of matrices: p row of a pose, k its column, q column of a
vote, so that h = (p, q).

    pose [g, place, (p, k), n]    activation [g, place, n], place: of a child on the map
    weight [type, i, k, q]        shift [type, i, h], type: of a parent, j modulo their number
    mean, variance [g, t, j, h, n]
    stats [g, t, j, 3, n]         S, sum_h log variance and logit, in float64
    R [j, i, n]

`variance` leaves out the constant VAR_MIN, which is added wherever it is used. In names, `R` and
`coupling` are R, `r` is r, and `grad_x` is dL/dx of a loss L.
"""

# mypy: allow-untyped-defs
import math
from collections import namedtuple

import numpy as np

from torchcaps.functional.routing.em import EPSILON, VAR_MIN
from torchcaps.kernels._compile import compiled, compiled_loop, compiled_sum, exp
from torchcaps.kernels.lanes import LANES, keep_compiled

# Squared distance of a mean from the center, in variances, beyond which sums of squares lose
# digits.
FAR = 1.0
# Children that are summed before their sum is added to the total: a single one is so much smaller
# than the total of many that it would lose digits.
PART = 32
# Rows of `stats`.
MASS = 0  # S
LOG_VAR = 1  # sum_h log variance
LOGIT = 2

# Operands of a layer.
#   sizes: tuples as long as the sizes of p, k and q; the length of a tuple belongs to its type, so
#       that the compiler knows it and unrolls loops over it.
#   num_competitions: their number.
#   place, competition: numbers [j, i].
#   first_R: R of the first M-step [j, i].
#   pose, activation, weight, shift: see above.
#   beta_u, beta_a: [type]; beta_u is multiplied by H.
#   temperatures: lambda [t].
Layer = namedtuple(
    "Layer",
    "sizes num_competitions place competition first_R "
    "pose activation weight shift beta_u beta_a temperatures",
)
# States of the parents after every iteration, [g, t, j, ...], and what `take` takes of them: those of
# one iteration, or of one parent too. The same of gradients.
State = namedtuple("State", "mean variance stats")
# Gradients of operands. Those of poses and activations are added to zeros, in the layout of these.
# Those of weights [g, type, i, k, q], shifts [g, type, i, h], of no groups if there are none, and
# betas [g, type, 2, n] are written by each group for itself.
Gradients = namedtuple("Gradients", "pose activation weight shift betas")


@compiled_loop
def forward_pass(first, last, layer, states, coupling):
    """Route the groups from `first` to before `last`.

    Writes the states and, unless it has no groups, the coupling of the last iteration,
    `[g, j, i, n]`.
    """
    iterations = states.mean.shape[1]
    parents, children = layer.place.shape
    R = np.empty((parents, children, LANES), states.mean.dtype)
    for g in range(first, last):
        R[:] = np.expand_dims(layer.first_R, -1)
        for t in range(iterations):
            if t:
                e_step(layer, g, take(states, (g, t - 1)), R)
            m_step(layer, g, t, R, states)
        if len(coupling):
            coupling[g] = R


@compiled
def take(states, index):
    """The states at one index."""
    return State(states.mean[index], states.variance[index], states.stats[index])


@compiled
def m_step(layer, g, t, R, states):
    """M-step t of every parent: writes its state.

    The votes are read once, for sums of d and d^2 with d = V - center. The center is the mean of
    the iteration before. Where the new mean is far from it, the sums are repeated around that.
    """
    parents, children, _ = R.shape
    r = np.empty_like(R[0])  # [i, n]
    center = np.zeros_like(states.mean[0, 0, 0])  # [h, n]
    first_moment = np.empty_like(center)
    second_moment = np.empty_like(center)
    total = np.empty_like(center[0])  # S [n]
    for j in range(parents):
        for i in range(children):
            for n in range(LANES):
                r[i, n] = R[j, i, n] * layer.activation[g, layer.place[j, i], n]
        center[:] = 0
        if t:
            center[:] = states.mean[g, t - 1, j]
        state = take(states, (g, t, j))
        for _ in range(2):
            sum_moments(layer, g, j, r, center, first_moment, second_moment, total)
            is_far = update_state(layer, t, j, center, first_moment, second_moment, total, state)
            if not is_far:
                break
            center[:] = state.mean


@compiled_loop(inline="always")  # otherwise no loop around it is vectorized
def vote(layer, g, j, i, p, q, n):
    """V_ijh of sample n."""
    inner = len(layer.sizes[1])
    place = layer.place[j, i]
    parent_type = j % len(layer.weight)
    total = layer.shift[parent_type, i, p * len(layer.sizes[2]) + q]
    for k in range(inner):
        total += layer.pose[g, place, p * inner + k, n] * layer.weight[parent_type, i, k, q]
    return total


@compiled
def sum_moments(layer, g, j, factor, center, first_moment, second_moment, total):
    """Sums over the children of parent j of f d and f d^2, where d = V - center, and of f.

    factor: f [i, n].
    center: [h, n].
    first_moment, second_moment: written, sums of f d and of f d^2 [h, n].
    total: written, sum of f [n].
    """
    first_moment[:] = 0
    second_moment[:] = 0
    total[:] = 0
    part = (np.empty_like(first_moment), np.empty_like(second_moment), np.empty_like(total))
    for start in range(0, len(factor), PART):
        children = range(start, min(start + PART, len(factor)))
        sum_part(layer, g, j, children, factor, center, *part)
        first_moment += part[0]
        second_moment += part[1]
        total += part[2]


@compiled
def sum_part(layer, g, j, children, factor, center, first_moment, second_moment, total):
    """`sum_moments` over these children alone."""
    rows = len(layer.sizes[0])
    outer = len(layer.sizes[2])
    first_moment[:] = 0
    second_moment[:] = 0
    total[:] = 0
    for i in children:
        for n in range(LANES):
            total[n] += factor[i, n]
        for p in range(rows):
            for q in range(outer):
                h = p * outer + q
                for n in range(LANES):
                    d = vote(layer, g, j, i, p, q, n) - center[h, n]
                    weighted = factor[i, n] * d
                    first_moment[h, n] += weighted
                    second_moment[h, n] += weighted * d


@compiled
def update_state(layer, t, j, center, first_moment, second_moment, total, state):
    """Write the state of parent j from the moments of `sum_moments` with the factor r.

    Returns:
        Whether the mean is far from the center, in any dimension of any sample.
    """
    mean, variance, stats = state
    parent_type = j % len(layer.weight)
    # Constants in the type of the arrays: others would turn float32 into float64.
    number = mean.dtype.type
    one = number(1)
    two = number(2)
    half = number(0.5)
    zero = number(0)
    var_min = number(VAR_MIN)
    epsilon = number(EPSILON)
    far = number(FAR)
    is_far = False
    stats[MASS] = total
    stats[LOG_VAR] = 0
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (total[n] + epsilon)
            mean[h, n] = (center[h, n] * total[n] + first_moment[h, n]) * inverse
            # From squares around the center to squares around the mean.
            offset = mean[h, n] - center[h, n]
            squares = second_moment[h, n] - two * offset * first_moment[h, n]
            squares += offset * offset * total[n]
            variance[h, n] = max(squares * inverse, zero)
            is_far |= offset * offset > far * (variance[h, n] + var_min)
            stats[LOG_VAR, n] += math.log(variance[h, n] + var_min)
    for n in range(LANES):
        cost = (layer.beta_u[parent_type] + half * stats[LOG_VAR, n]) * total[n]
        stats[LOGIT, n] = layer.temperatures[t] * (layer.beta_a[parent_type] - cost)
    return is_far


@compiled
def e_step(layer, g, state, R):
    """E-step: writes R from the state after the iteration before."""
    parents = len(R)
    number = R.dtype.type
    one = number(1)
    half = number(0.5)
    var_min = number(VAR_MIN)
    # log a_j + log N(V; mean, variance) is a polynomial of d = V - mean, without a linear term.
    linear = np.zeros_like(state.mean[0])  # [h, n]
    square = np.empty_like(linear)
    constant = np.empty_like(linear[0])  # [n]
    constants = np.empty((parents, LANES))
    common = np.full(LANES, -np.inf)
    for j in range(parents):
        for n in range(LANES):
            # log sigmoid(logit), without overflow.
            logit = state.stats[j, LOGIT, n]
            log_activation = min(logit, 0.0) - math.log1p(math.exp(-abs(logit)))
            constants[j, n] = log_activation - 0.5 * state.stats[j, LOG_VAR, n]
            common[n] = max(common[n], constants[j, n])
    for j in range(parents):
        # Small numbers lose fewer digits.
        for n in range(LANES):
            constant[n] = constants[j, n] - common[n]
        for h in range(len(square)):
            for n in range(LANES):
                square[h, n] = -half * (one / (state.variance[j, h, n] + var_min))
        sum_quadratics(layer, g, j, state.mean[j], linear, square, constant, R[j])
    softmax(layer, R)


@compiled
def sum_quadratics(layer, g, j, center, linear, square, constant, out):
    """out_i = constant + sum_h (linear_h d_h + square_h d_h^2), where d = V_ij - center.

    center, linear, square: of parent j [h, n].
    constant: of parent j [n].
    out: written, [i, n].
    """
    rows = len(layer.sizes[0])
    outer = len(layer.sizes[2])
    for i in range(len(out)):
        out[i] = constant
        for p in range(rows):
            for q in range(outer):
                h = p * outer + q
                for n in range(LANES):
                    d = vote(layer, g, j, i, p, q, n) - center[h, n]
                    out[i, n] += (square[h, n] * d + linear[h, n]) * d


@compiled
def softmax(layer, x):
    """x = exp(x) / sum of exp(x) over a competition, in place of x [j, i, n]."""
    parents, children, _ = x.shape
    largest = np.full((layer.num_competitions, LANES), -np.inf, x.dtype)
    total = np.zeros_like(largest)
    for j in range(parents):
        for i in range(children):
            competition = layer.competition[j, i]
            for n in range(LANES):
                largest[competition, n] = max(largest[competition, n], x[j, i, n])
    for j in range(parents):
        for i in range(children):
            competition = layer.competition[j, i]
            for n in range(LANES):
                x[j, i, n] = exp(x[j, i, n] - largest[competition, n])
                total[competition, n] += x[j, i, n]
    for j in range(parents):
        for i in range(children):
            competition = layer.competition[j, i]
            for n in range(LANES):
                x[j, i, n] /= total[competition, n]


@compiled_loop
def backward_pass(first, last, layer, states, grad_mean, grad_logit, grad_coupling, gradients):
    """Gradients of the operands for the groups from `first` to before `last`.

    states: as `forward_pass` wrote them.
    grad_mean [g, j, h, n], grad_logit [g, j, n]: of the last state. They are used up: each
        iteration replaces them by those of the state before.
    grad_coupling: of the last coupling [g, j, i, n], or of no groups.
    gradients: written, see `Gradients`.
    """
    mean = states.mean
    iterations, parents, dim = mean.shape[1:4]
    R = np.empty((iterations, parents, layer.place.shape[1], LANES), mean.dtype)
    # dL/dr of each iteration, then dL/dR, then dL/dlog R.
    grad_R = np.empty_like(R)
    # dL/dV_ij is a sum of lines over the iterations: r (intercept + slope d) of the M-step, which
    # is line 0, and dL/dlog R (intercept + slope d) of the E-step, line 1; d = V - the last mean.
    intercept = np.zeros((2, iterations, parents, dim, LANES), mean.dtype)
    slope = np.zeros_like(intercept)
    grad_variance = np.empty((parents, dim, LANES), mean.dtype)
    for g in range(first, last):
        center = mean[g, iterations - 1]
        grad_states = State(grad_mean[g], grad_variance, grad_logit[g])
        grad_variance[:] = 0
        gradients.betas[g] = 0
        gradients.weight[g] = 0
        gradients.shift[g : g + 1] = 0
        R[0] = np.expand_dims(layer.first_R, -1)
        for t in range(1, iterations):
            e_step(layer, g, take(states, (g, t - 1)), R[t])
        for t in range(iterations - 1, -1, -1):
            for j in range(parents):
                m_step_backward(
                    layer,
                    (g, t, j),
                    take(states, (g, t, j)),
                    take(grad_states, j),
                    center[j],
                    (intercept[0, t, j], slope[0, t, j]),
                    gradients.betas[g],
                    grad_R[t, j],
                )
            activation_backward(layer, g, R[t], grad_R[t], gradients.activation[g])
            if t == 0:  # the first R is a constant
                grad_R[0] = 0
                break
            if t == iterations - 1 and len(grad_coupling):
                grad_R[t] += grad_coupling[g]
            softmax_backward(layer, R[t], grad_R[t])
            for j in range(parents):
                e_step_backward(
                    layer,
                    (g, j),
                    grad_R[t, j],
                    take(states, (g, t - 1, j)),
                    take(grad_states, j),
                    center[j],
                    (intercept[1, t, j], slope[1, t, j]),
                )
        votes_backward(layer, g, center, R, grad_R, intercept, slope, gradients)


@compiled
def m_step_backward(layer, indices, state, grad_state, center, line, grad_betas, grad_r):
    """Backward of the M-step of a parent: dL/dr and the line of dL/dV from dL/dstate.

    indices: (g, t, j).
    state, grad_state: of this parent; the gradient of its stats is that of the logit.
    center: the last mean [h, n].
    line: written, (intercept, slope) [h, n].
    grad_betas: dL/d(H beta_u) and dL/dbeta_a are added, [type, 2, n].
    grad_r: written, dL/dr [i, n], a polynomial of V - mean.
    """
    g, t, j = indices
    mean, variance, stats = state
    grad_mean, grad_variance, grad_logit = grad_state
    intercept, slope = line
    parent_type = j % len(layer.weight)
    number = mean.dtype.type
    one = number(1)
    two = number(2)
    half = number(0.5)
    var_min = number(VAR_MIN)
    epsilon = number(EPSILON)
    linear = np.empty_like(mean)
    square = np.empty_like(mean)
    constant = np.empty_like(grad_logit)
    for n in range(LANES):
        grad_gain = layer.temperatures[t] * grad_logit[n]
        grad_betas[parent_type, 0, n] -= grad_gain * stats[MASS, n]
        grad_betas[parent_type, 1, n] += grad_gain
        constant[n] = -grad_gain * (layer.beta_u[parent_type] + half * stats[LOG_VAR, n])
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (stats[MASS, n] + epsilon)
            grad_log = -half * layer.temperatures[t] * grad_logit[n] * stats[MASS, n]
            grad_var = grad_variance[h, n] + grad_log / (variance[h, n] + var_min)
            # The weights r / (S + EPSILON) do not sum to one: the variance depends on the mean.
            grad_mu = grad_mean[h, n] - two * epsilon * grad_var * inverse * mean[h, n]
            linear[h, n] = grad_mu * inverse
            square[h, n] = grad_var * inverse
            constant[n] -= square[h, n] * variance[h, n]
            slope[h, n] = two * square[h, n]
            intercept[h, n] = linear[h, n] + slope[h, n] * (center[h, n] - mean[h, n])
    sum_quadratics(layer, g, j, mean, linear, square, constant, grad_r)


@compiled
def activation_backward(layer, g, R, grad, grad_activation):
    """Backward of r_ij = R_ij a_i: replaces dL/dr by dL/dR, and adds to dL/da [place, n]."""
    parents, children, _ = R.shape
    for j in range(parents):
        for i in range(children):
            place = layer.place[j, i]
            for n in range(LANES):
                grad_activation[place, n] += R[j, i, n] * grad[j, i, n]
                grad[j, i, n] *= layer.activation[g, place, n]


@compiled
def softmax_backward(layer, R, grad):
    """From dL/dR to dL/dlog R = R (dL/dR - sum of R dL/dR over a competition), in place."""
    parents, children, _ = R.shape
    average = np.zeros((layer.num_competitions, LANES), R.dtype)
    for j in range(parents):
        for i in range(children):
            competition = layer.competition[j, i]
            for n in range(LANES):
                average[competition, n] += R[j, i, n] * grad[j, i, n]
    for j in range(parents):
        for i in range(children):
            competition = layer.competition[j, i]
            for n in range(LANES):
                grad[j, i, n] = R[j, i, n] * (grad[j, i, n] - average[competition, n])


@compiled
def e_step_backward(layer, indices, grad_log_R, state, grad_state, center, line):
    """Backward of the E-step of a parent: dL/dstate and the line of dL/dV from dL/dlog R.

    indices: (g, j).
    state: before the E-step; grad_state is written, in its form.
    center, line: see `m_step_backward`.
    """
    g, j = indices
    mean, variance, stats = state
    grad_mean, grad_variance, grad_logit = grad_state
    intercept, slope = line
    number = mean.dtype.type
    one = number(1)
    half = number(0.5)
    var_min = number(VAR_MIN)
    total = np.empty_like(grad_logit)
    sum_moments(layer, g, j, grad_log_R, mean, grad_mean, grad_variance, total)
    for h in range(len(mean)):
        for n in range(LANES):
            inverse = one / (variance[h, n] + var_min)
            grad_mean[h, n] *= inverse
            grad_variance[h, n] = half * inverse * (grad_variance[h, n] * inverse - total[n])
            slope[h, n] = -inverse
            intercept[h, n] = (mean[h, n] - center[h, n]) * inverse
    for n in range(LANES):
        # d log sigmoid(x) / dx = 1 / (1 + exp(x))
        grad_logit[n] = total[n] / (one + math.exp(stats[LOGIT, n]))


@compiled
def votes_backward(layer, g, center, R, grad_R, intercept, slope, gradients):
    """From dL/dV_ij of each pair to the gradients of poses, weights and shifts.

    center: the last means [j, h, n].
    R, grad_R: R and dL/dlog R of all iterations [t, j, i, n].
    intercept, slope: lines of dL/dV [2, t, j, h, n], see `backward_pass`.
    gradients: see `Gradients`.
    """
    rows = len(layer.sizes[0])
    inner = len(layer.sizes[1])
    outer = len(layer.sizes[2])
    weight = layer.weight
    parents, children = layer.place.shape
    constant = np.empty_like(center[0])  # [h, n]
    linear = np.empty_like(center[0])
    grad_vote = np.empty_like(center[0])
    for j in range(parents):
        parent_type = j % len(weight)
        for i in range(children):
            place = layer.place[j, i]
            sum_lines(
                j, i, layer.activation[g, place], R, grad_R, intercept, slope, constant, linear
            )
            for p in range(rows):
                for q in range(outer):
                    h = p * outer + q
                    for n in range(LANES):
                        d = vote(layer, g, j, i, p, q, n) - center[j, h, n]
                        grad_vote[h, n] = constant[h, n] + linear[h, n] * d
                for k in range(inner):
                    for n in range(LANES):
                        gradient = gradients.pose[g, place, p * inner + k, n]
                        for q in range(outer):
                            gradient += grad_vote[p * outer + q, n] * weight[parent_type, i, k, q]
                        gradients.pose[g, place, p * inner + k, n] = gradient
            add_weight_gradient(
                layer.sizes, layer.pose[g, place], grad_vote, gradients.weight[g, parent_type, i]
            )
            if len(gradients.shift):
                add_shift_gradient(grad_vote, gradients.shift[g, parent_type, i])


@compiled
def sum_lines(j, i, activation, R, grad_R, intercept, slope, constant, linear):
    """dL/dV_ij as one line constant + linear d, whose coefficients [h, n] are written."""
    iterations = len(R)
    constant[:] = 0
    linear[:] = 0
    for t in range(iterations):
        for h in range(len(constant)):
            for n in range(LANES):
                r = R[t, j, i, n] * activation[n]
                constant[h, n] += r * intercept[0, t, j, h, n]
                constant[h, n] += grad_R[t, j, i, n] * intercept[1, t, j, h, n]
                linear[h, n] += r * slope[0, t, j, h, n]
                linear[h, n] += grad_R[t, j, i, n] * slope[1, t, j, h, n]


@compiled_sum
def add_weight_gradient(sizes, pose, grad_vote, gradient):
    """Add M^T dL/dV, summed over samples, to dL/dW [k, q], for a pose M [(p, k), n]."""
    rows = len(sizes[0])
    inner = len(sizes[1])
    outer = len(sizes[2])
    for k in range(inner):
        for q in range(outer):
            total = gradient.dtype.type(0)
            for n in range(LANES):
                for p in range(rows):
                    total += pose[p * inner + k, n] * grad_vote[p * outer + q, n]
            gradient[k, q] += total


@compiled_sum
def add_shift_gradient(grad_vote, gradient):
    """Add dL/dV [h, n], summed over samples, to dL/dshift [h]."""
    for h in range(len(grad_vote)):
        total = grad_vote.dtype.type(0)
        for n in range(LANES):
            total += grad_vote[h, n]
        gradient[h] += total


keep_compiled(forward_pass, backward_pass)
