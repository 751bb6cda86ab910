"""Vector instructions for the compiled loops of EM routing: votes are made in registers and used at once. Needs numba.

As in `simd/vectors.py`, a vector holds one number of each of LANES samples, and arrays are flat. The vote of a child,
V = M W (+ shift), is written out product by product: the sizes of the matrices are part of the code, taken from the
type of the layer's `form` (see `form_of`). Letters: p rows of a pose, r its columns, q columns of a vote, h = (p, q);
H numbers of h. A vector or matrix "of the child" is the n-th from the position given, n being the child's number.
"""

# mypy: allow-untyped-defs
from collections.abc import Iterator
from typing import Any

from torchcaps.functional.routing.em import EPSILON, VAR_MIN
from torchcaps.kernels.simd._vectors import Code, Value, Vectors, operation
from torchcaps.kernels.simd.lanes import LANES

# Squared distance of a mean from the center, in variances, from which sums of squares would lose digits.
FAR = 16.0


def form_of(rows: int, inner: int, outer: int, shifted: bool) -> tuple[tuple[int, ...], ...]:
    """Sizes of matrices as lengths of tuples: those are types to numba, and constants in the code that it makes."""
    return (0,) * rows, (0,) * inner, (0,) * outer, (0,) * (1 + shifted)


class _Votes(Code):
    """Votes for parent j of the children of a window. Arguments: the layer, the window's first child, j, and others."""

    def __init__(self, context: Any, builder: Any, signature: Any, values: Any) -> None:
        (layer, *_), (whole, child, parent, *rest) = signature.args, values
        super().__init__(context, builder, signature.replace(args=signature.args[3:]), rest)
        kinds = dict(zip(layer.fields, layer.types, strict=True))
        self.rows, self.inner, self.outer, shifted = (len(size) for size in kinds["form"])
        self.shifted, self.dim = shifted == 2, self.rows * self.outer
        found = {name: builder.extract_value(whole, n) for n, name in enumerate(layer.fields)}
        self.runs, self.step, self.across = (
            Value(self, found[name]) for name in ("runs", "step", "across")
        )
        self.links = self.runs * self.across
        self.first = Value(self, parent) * self.links  # child with a matrix
        self.child = Value(self, child) * (self.rows * self.inner)  # vectors before the pose
        start = self.constant(found["runs"].type, 0)
        arrays = (
            self.vectors(kinds[name], found[name], start) for name in ("pose", "weight", "shift")
        )
        self.pose, self.weight, self.shift = arrays
        self.pose = self.pose.after(self.child)

    def children(self) -> Iterator[tuple[Value, Value]]:
        """Loop over children: number in the window, and in the map from the window's first."""
        with self.loop(self.runs) as run, self.loop(self.across) as n:
            yield run * self.across + n, run * self.step + n

    def matrix(self, n: Value) -> list[list[Value]]:
        """The child's matrix of weights, each number in all lanes."""
        start = (self.first + n) * (self.inner * self.outer)
        return [
            [self.weight.lone(start + (r * self.outer + q)) for q in range(self.outer)]
            for r in range(self.inner)
        ]

    def places(self, n: Value, p: int, columns: int) -> list[Value]:
        """Numbers of the vectors in row p of the child's matrix of `columns`."""
        return [n * (self.rows * columns) + (p * columns + c) for c in range(columns)]

    def constants(self, x: Vectors, p: int) -> list[Value]:
        """Row p of H vectors that are the same for all children."""
        return [x[p * self.outer + q] for q in range(self.outer)]

    def vote(self, matrix: list[list[Value]], pose: list[Value], n: Value, p: int) -> list[Value]:
        """Row p of the child's vote, from that row of its pose."""
        start, votes = (self.first + n) * self.dim, []
        for q in range(self.outer):
            terms = [pose[r] * matrix[r][q] for r in range(self.inner)]
            total = self.shift.lone(start + (p * self.outer + q)) if self.shifted else terms.pop(0)
            votes.append(sum(terms, total))
        return votes

    def add_sums(self, vectors: list[Value], to: Vectors, n: Value) -> None:
        """Add the sum over the lanes of each vector to the numbers of the child."""
        start, none = (self.first + n) * len(vectors), Value(self, self.constant(self.vector, 0.0))
        for k in range(0, len(vectors), LANES):
            some = vectors[k : k + LANES]
            place = to.from_number(start + k)
            place[0] += self.lane_sums(some + [none] * (LANES - len(some)))


def _of_votes(write: Any) -> Any:
    """An operation on the votes for a parent, j, of a window's children, the first of which is `child`."""
    return operation(write, _Votes, ("layer", "child", "j"))


@_of_votes
def form(code: _Votes, factors: Vectors, out: Vectors) -> None:
    """out = constant + sum_h linear_h d_h + square_h d_h^2 of each child, d = V - center.

    factors: center, linear, square, constant.
    """
    for n, at in code.children():
        matrix, total = code.matrix(n), factors[3 * code.dim]
        for p in range(code.rows):
            row = [code.pose[place] for place in code.places(at, p, code.inner)]
            known = (code.constants(factors.after(k * code.dim), p) for k in range(3))
            total = _quadratic(total, code.vote(matrix, row, n, p), *known)
        out[n] = total


@_of_votes
def forms(code: _Votes, sets: Value, factors: Vectors, out: Vectors, step: Value) -> None:
    """`form` for several sets of factors, one after the other; out of a set is `step` vectors from the last one."""
    for n, at in code.children():
        matrix, votes = code.matrix(n), list[Value]()
        for p in range(code.rows):
            votes += code.vote(
                matrix, [code.pose[place] for place in code.places(at, p, code.inner)], n, p
            )
        with code.loop(sets) as k:
            given, hs = factors.after(k * (3 * code.dim + 1)), range(code.dim)
            known = ([given[part * code.dim + h] for h in hs] for part in range(3))
            out[k * step + n] = _quadratic(given[3 * code.dim], votes, *known)


def _quadratic(total: Value, votes: list[Value], *factors: list[Value]) -> Value:
    """total + sum_h linear_h d_h + square_h d_h^2, d = V - center."""
    for v, center, linear, square in zip(votes, *factors, strict=True):
        d = v - center
        total = (square * d + linear) * d + total
    return total


@_of_votes
def moments(code: _Votes, factor: Vectors, center: Vectors, out: Vectors) -> None:
    """Over children: sum f (V - center) `[H]`, sum f (V - center)^2 `[H]` and sum f, with a factor f of each."""
    total = code.variable(0.0)
    for p in range(code.rows):  # the sums of one row fit in the registers
        firsts, seconds = ([code.variable(0.0) for _ in range(code.outer)] for _ in (0, 1))
        centers = code.constants(center, p)
        for n, at in code.children():
            matrix, f = code.matrix(n), factor[n]
            if p == 0:
                total[0] += f
            row = [code.pose[place] for place in code.places(at, p, code.inner)]
            for q, v in enumerate(code.vote(matrix, row, n, p)):
                d = v - centers[q]
                firsts[q][0] += f * d
                seconds[q][0] += f * d * d
        for k, sums in enumerate((firsts, seconds)):
            for q, found in enumerate(sums):
                out[k * code.dim + p * code.outer + q] = found[0]
    out[2 * code.dim] = total[0]


@_of_votes
def spread(
    code: _Votes,
    terms: Value,
    factor: Vectors,
    slopes: Vectors,
    center: Vectors,
    grad_pose: Vectors,
    grad_weight: Vectors,
    grad_shift: Vectors,
) -> None:
    """Add what dV = sum_t f_t (constant_t + slope_t (V - center)) adds to the gradients of poses, weights and shifts.

    factor `[t, child]`, slopes `[t, 2, H]`. Gradients of weights and shifts are numbers, summed over lanes; behind the
    last of them LANES more are read and written.
    """
    grad_pose = grad_pose.after(code.child)
    for n, at in code.children():
        matrix, add_weight, add_shift = (
            code.matrix(n),
            dict[tuple[int, int], Value](),
            list[Value](),
        )
        for p in range(code.rows):
            constant, linear = ([code.variable(0.0) for _ in range(code.outer)] for _ in (0, 1))
            with code.loop(terms) as t:
                f = factor[t * code.links + n]
                for k, sums in enumerate((constant, linear)):
                    steep = code.constants(slopes.after(t * (2 * code.dim) + k * code.dim), p)
                    for total, slope in zip(sums, steep, strict=True):
                        total[0] += f * slope
            places, centers = code.places(at, p, code.inner), code.constants(center, p)
            row = [code.pose[place] for place in places]
            votes = code.vote(matrix, row, n, p)
            grads = [linear[q][0] * (v - centers[q]) + constant[q][0] for q, v in enumerate(votes)]
            for r, place in enumerate(places):
                grad_pose[place] = sum(
                    (grad * matrix[r][q] for q, grad in enumerate(grads)), grad_pose[place]
                )
                for q, grad in enumerate(grads):
                    add = row[r] * grad
                    add_weight[r, q] = add_weight[r, q] + add if p else add
            add_shift += grads
        code.add_sums(
            [add_weight[r, q] for r in range(code.inner) for q in range(code.outer)], grad_weight, n
        )
        if code.shifted:
            code.add_sums(add_shift, grad_shift, n)


@operation
def fit(
    code: Code,
    sums: Vectors,
    center: Vectors,
    dim: Value,
    beta_u: Vectors,
    beta_a: Vectors,
    heat: Vectors,
    out: Vectors,
    far: Vectors,
) -> None:
    """M-step of one parent from `moments`: mean `[H]`, variance without its least `[H]`, data, sum of logs, logit.

    beta_u is already multiplied by H. `far` is positive where the mean lies too far from the center.
    """
    seconds, variance, rest = sums.after(dim), out.after(dim), out.after(dim * 2)
    data, log, excess = sums[dim * 2], code.variable(0.0), code.variable(-1.0)
    inverse = 1.0 / (data + EPSILON)
    with code.loop(dim) as h:
        mean = (center[h] * data + sums[h]) * inverse
        moved = mean - center[h]
        second = moved * sums[h] * -2.0 + seconds[h]
        squares = moved * moved
        out[h] = mean
        variance[h] = var = ((squares * data + second) * inverse).larger(0.0)
        log[0] += (var + VAR_MIN).log()
        excess[0] = excess[0].larger((var + VAR_MIN) * -FAR + squares)
    far[0], cost = excess[0], log[0] * 0.5 + beta_u.lone()
    rest[0], rest[1], rest[2] = data, log[0], heat.lone() * (beta_a.lone() - cost * data)


@operation
def expectation(code: Code, state: Vectors, dim: Value, out: Vectors) -> None:
    """Factors of `form` for the E-step: log a + log N(V; mean, var), from one parent's state."""
    variance, rest, linear, squares = (
        state.after(dim),
        state.after(dim * 2),
        out.after(dim),
        out.after(dim * 2),
    )
    zero = code.variable(0.0)[0]
    with code.loop(dim) as h:
        out[h], linear[h] = state[h], zero
        squares[h] = -0.5 / (variance[h] + VAR_MIN)
    squares[dim] = rest[1] * -0.5 + rest[2].log_sigmoid()[0]


@operation
def fit_backward(
    code: Code,
    state: Vectors,
    grad: Vectors,
    center: Vectors,
    dim: Value,
    beta_u: Vectors,
    heat: Vectors,
    out: Vectors,
    slopes: Vectors,
    betas: Vectors,
) -> None:
    """Backward of `fit`: factors of `form` for dL/dr of each child, dL/dV = r (constant + slope (V - center)).

    grad holds dL/dmean `[H]`, dL/dvar `[H]`, dL/dlogit. Added to betas: dL/d(H beta_u), dL/dbeta_a.
    """
    variance, rest, grad_variance = state.after(dim), state.after(dim * 2), grad.after(dim)
    linear, square, steep = out.after(dim), out.after(dim * 2), slopes.after(dim)
    data, inverse, slope = rest[0], 1.0 / (rest[0] + EPSILON), heat.lone() * grad[dim * 2]
    constant = code.variable(slope * (rest[1] * 0.5 + beta_u.lone()) * -1.0)
    with code.loop(dim) as h:
        mean, var = state[h], variance[h]
        grad_var = grad_variance[h] + slope * data * -0.5 / (var + VAR_MIN)
        linear[h] = first = (grad_var * inverse * (-2.0 * EPSILON) * mean + grad[h]) * inverse
        square[h] = second = grad_var * inverse
        constant[0] -= second * var
        out[h], twice = mean, second + second
        slopes[h] = twice * (center[h] - mean) + first
        steep[h] = twice
    square[dim] = constant[0]
    betas[0] -= slope * data
    betas[1] += slope


@operation
def expectation_backward(
    code: Code,
    state: Vectors,
    sums: Vectors,
    center: Vectors,
    dim: Value,
    grad: Vectors,
    slopes: Vectors,
) -> None:
    """Backward of the E-step: dL/dmean, dL/dvar, dL/dlogit from `moments` with dL/dlog R as factor; and its dL/dV."""
    variance, seconds, grad_variance, steep = (x.after(dim) for x in (state, sums, grad, slopes))
    count = seconds[dim]
    with code.loop(dim) as h:
        inverse = 1.0 / (variance[h] + VAR_MIN)
        grad[h] = sums[h] * inverse
        grad_variance[h] = (seconds[h] * inverse - count) * inverse * 0.5
        slopes[h] = (state[h] - center[h]) * inverse
        steep[h] = inverse * -1.0
    grad_variance[dim] = state[dim * 2 + 2].log_sigmoid()[1] * count
