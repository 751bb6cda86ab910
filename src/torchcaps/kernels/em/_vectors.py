"""Vector instructions for the compiled loops of EM routing: votes are made in registers and used at once. Needs numba.

As in `simd/vectors.py`, a vector holds one number of each of LANES samples, and arrays are flat. The vote of a child,
V = M W (+ shift), is written out product by product: the sizes of the matrices are part of the code, taken from the
type of the layer's `form` (see `form_of`). Letters: p rows of a pose, r its columns, q columns of a vote, h = (p, q);
H numbers of h. A vector or matrix "of the child" is the n-th from the position given, n being the child's number.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from numba.core import cgutils

from torchcaps.functional.routing.em import EPSILON, VAR_MIN
from torchcaps.kernels.simd.lanes import LANES
from torchcaps.kernels.simd.vectors import Code, operation

# Squared distance of a mean from the centre, in variances, from which sums of squares would lose digits.
FAR = 16.0


def form_of(rows: int, inner: int, outer: int, shifted: bool) -> tuple[tuple[int, ...], ...]:
    """Sizes of matrices as lengths of tuples: those are types to numba, and constants in the code that it makes."""
    return (0,) * rows, (0,) * inner, (0,) * outer, (0,) * (1 + shifted)


class _Votes(Code):
    """Votes for parent j of the children of a window. Arguments: the layer, the window's first child, j, and others."""

    def __init__(self, context: Any, builder: Any, signature: Any, values: Any) -> None:
        (layer, *_), (whole, self.child, self.parent, *rest) = signature.args, values
        super().__init__(context, builder, signature.replace(args=signature.args[3:]), rest)
        kinds = dict(zip(layer.fields, layer.types, strict=True))
        self.rows, self.inner, self.outer, shifted = (len(size) for size in kinds["form"])
        self.shifted, self.dim = shifted == 2, self.rows * self.outer
        found = {name: builder.extract_value(whole, n) for n, name in enumerate(layer.fields)}
        self.runs, self.step, self.across = found["runs"], found["step"], found["across"]
        self.pose, self.weight, self.shift = (
            context.make_array(kinds[name])(context, builder, found[name]).data for name in ("pose", "weight", "shift")
        )
        first = builder.mul(self.parent, builder.mul(self.runs, self.across))
        self.matrices = builder.mul(first, self.integer(self.inner * self.outer))
        self.shifts = builder.mul(first, self.integer(self.dim))
        self.poses = builder.mul(self.child, self.integer(self.rows * self.inner * LANES))

    def children(self) -> Iterator[tuple[Any, Any]]:
        """Loop over children: number in the window, and in the map from the window's first."""
        b = self.builder
        with cgutils.for_range(b, self.runs) as run:
            first, start = b.mul(run.index, self.across), b.mul(run.index, self.step)
            with cgutils.for_range(b, self.across) as loop:
                yield b.add(first, loop.index), b.add(start, loop.index)

    def matrix(self, n: Any) -> list[list[Any]]:
        """The child's matrix of weights, each number in all lanes."""
        b, size = self.builder, self.inner * self.outer
        start = b.add(self.matrices, b.mul(n, self.integer(size)))
        flat = [self.everywhere(self.weight, b.add(start, self.integer(k))) for k in range(size)]
        return [flat[r * self.outer : (r + 1) * self.outer] for r in range(self.inner)]

    def places(self, n: Any, p: int, columns: int) -> list[Any]:
        """Numbers of the vectors in row p of the child's matrix of `columns`."""
        start = self.builder.mul(n, self.integer(self.rows * columns))
        return [self.builder.add(start, self.integer(p * columns + c)) for c in range(columns)]

    def row(self, places: list[Any]) -> list[Any]:
        """Numbers of poses."""
        return [self.load(self.pose, self.poses, at) for at in places]

    def constants(self, array: Any, first: Any, p: int) -> list[Any]:
        """Row p of H vectors that are the same for all children."""
        return [self.load(array, first, self.integer(p * self.outer + q)) for q in range(self.outer)]

    def vote(self, matrix: list[list[Any]], pose: list[Any], n: Any, p: int) -> list[Any]:
        """Row p of the child's vote, from that row of its pose."""
        start = self.builder.add(self.shifts, self.builder.mul(n, self.integer(self.dim)))
        votes = []
        for q in range(self.outer):
            total = None
            if self.shifted:
                total = self.everywhere(self.shift, self.builder.add(start, self.integer(p * self.outer + q)))
            for r in range(self.inner):
                product = (pose[r], matrix[r][q])
                total = self.times(*product) if total is None else self.multiply_add(*product, total)
            votes.append(total)
        return votes

    def add(self, value: Any, array: Any, first: Any, n: Any) -> None:
        """Add to the n-th vector after position `first`."""
        self.store(self.builder.fadd(self.load(array, first, n), value), array, first, n)


def _of_votes(write: Any) -> Any:
    """An operation on the votes for a parent, j, of a window's children, the first of which is `child`."""
    return operation(write, _Votes, ["layer", "child", "j", *list(inspect.signature(write).parameters)[1:]])


def _energy(code: _Votes, linear: bool, factors: Any, f0: Any, out: Any, out0: Any) -> None:
    starts = [code.offset(f0, k * code.dim) for k in range(4)]
    for n, at in code.children():
        matrix = code.matrix(n)
        total = code.load(factors, starts[3], code.integer(0))
        for p in range(code.rows):
            row = code.row(code.places(at, p, code.inner))
            centre, first, second = (code.constants(factors, start, p) for start in starts[:3])
            for q, v in enumerate(code.vote(matrix, row, n, p)):
                d = code.subtract(v, centre[q])
                slope = code.multiply_add(second[q], d, first[q]) if linear else code.times(second[q], d)
                total = code.multiply_add(slope, d, total)
        code.store(total, out, out0, n)


@_of_votes
def square_form(code: _Votes, factors: Any, f0: Any, out: Any, out0: Any) -> None:
    """out = constant + sum_h square_h (V_h - centre_h)^2 of each child; factors: centre, (linear), square, constant."""
    _energy(code, False, factors, f0, out, out0)


@_of_votes
def full_form(code: _Votes, factors: Any, f0: Any, out: Any, out0: Any) -> None:
    """The same plus sum_h linear_h (V_h - centre_h)."""
    _energy(code, True, factors, f0, out, out0)


@_of_votes
def moments(code: _Votes, factor: Any, f0: Any, centre: Any, c0: Any, out: Any, out0: Any) -> None:
    """Over children: sum f (V - centre) `[H]`, sum f (V - centre)^2 `[H]` and sum f, with a factor f of each."""
    total = code.variable(code.number(0.0))
    for p in range(code.rows):  # the sums of one row fit in the registers
        sums = [[code.variable(code.number(0.0)) for _ in range(code.outer)] for _ in (0, 1)]
        centres = code.constants(centre, c0, p)
        for n, at in code.children():
            matrix, f = code.matrix(n), code.load(factor, f0, n)
            if p == 0:
                code.builder.store(code.builder.fadd(code.builder.load(total), f), total)
            row = code.row(code.places(at, p, code.inner))
            for q, v in enumerate(code.vote(matrix, row, n, p)):
                d = code.subtract(v, centres[q])
                fd = code.builder.fmul(f, d)
                code.builder.store(code.builder.fadd(code.builder.load(sums[0][q]), fd), sums[0][q])
                code.add_product(sums[1][q], fd, d)
        for k in (0, 1):
            for q, place in enumerate(sums[k]):
                to = code.integer(k * code.dim + p * code.outer + q)
                code.store(code.builder.load(place), out, out0, to)
    code.store(code.builder.load(total), out, code.offset(out0, 2 * code.dim), code.integer(0))


@_of_votes
def spread(
    code: _Votes, terms: Any, factor: Any, f0: Any, slopes: Any, k0: Any, centre: Any, c0: Any, grad_pose: Any,
    grad_weight: Any, grad_shift: Any,
) -> None:  # fmt: skip
    """Add what dV = sum_t f_t (constant_t + slope_t (V - centre)) adds to the gradients of poses, weights and shifts.

    factor `[t, child]`, slopes `[t, 2, H]`; gradients of weights and shifts are vectors, still to be summed over lanes.
    """
    b, size = code.builder, code.inner * code.outer
    links = b.mul(code.runs, code.across)
    weights, shifts = (b.mul(first, code.integer(LANES)) for first in (code.matrices, code.shifts))
    for n, at in code.children():
        matrix = code.matrix(n)
        add_weight: dict[tuple[int, int], Any] = {}
        for p in range(code.rows):
            sums = [[code.variable(code.number(0.0)) for _ in range(code.outer)] for _ in (0, 1)]
            with cgutils.for_range(b, terms) as term:
                f = code.load(factor, code.offset(f0, b.mul(term.index, links)), n)
                first = code.offset(k0, b.mul(term.index, code.integer(2 * code.dim)))
                for k in (0, 1):
                    steep = code.constants(slopes, code.offset(first, k * code.dim), p)
                    for total, slope in zip(sums[k], steep, strict=True):
                        code.add_product(total, f, slope)
            constant, linear = ([b.load(total) for total in sums[k]] for k in (0, 1))
            places = code.places(at, p, code.inner)
            row, centres = code.row(places), code.constants(centre, c0, p)
            votes = enumerate(code.vote(matrix, row, n, p))
            grads = [code.multiply_add(linear[q], code.subtract(v, centres[q]), constant[q]) for q, v in votes]
            for r, place in enumerate(places):
                total = code.load(grad_pose, code.poses, place)
                for q, grad in enumerate(grads):
                    total = code.multiply_add(grad, matrix[r][q], total)
                    before = add_weight.get((r, q))
                    add_weight[r, q] = (
                        code.times(row[r], grad) if before is None else code.multiply_add(row[r], grad, before)
                    )
                code.store(total, grad_pose, code.poses, place)
            if code.shifted:
                for to, grad in zip(code.places(n, p, code.outer), grads, strict=True):
                    code.add(grad, grad_shift, shifts, to)
        first = b.mul(n, code.integer(size))
        for (r, q), grad in add_weight.items():
            code.add(grad, grad_weight, weights, b.add(first, code.integer(r * code.outer + q)))


@operation
def fit(
    code: Code, sums: Any, m0: Any, centre: Any, c0: Any, dim: Any, beta_u: Any, beta_a: Any, j: Any, heat: Any,
    t: Any, out: Any, out0: Any, far: Any, far0: Any,
) -> None:  # fmt: skip
    """M-step of one parent from `moments`: mean `[H]`, variance without its least `[H]`, data, sum of logs, logit.

    beta_u is already multiplied by H. `far` is positive where the mean lies too far from the centre.
    """
    b, zero, var_min = code.builder, code.integer(0), code.number(VAR_MIN)
    seconds, spreads = code.offset(m0, dim), code.offset(out0, dim)
    rest = code.offset(spreads, dim)
    data = code.load(sums, code.offset(seconds, dim), zero)
    inverse = code.inverse(b.fadd(data, code.number(EPSILON)))
    logs, excess = code.variable(code.number(0.0)), code.variable(code.number(-1.0))
    with cgutils.for_range(b, dim) as loop:
        c, first = code.load(centre, c0, loop.index), code.load(sums, m0, loop.index)
        mean = code.times(code.multiply_add(c, data, first), inverse)
        moved = b.fsub(mean, c)
        second = code.multiply_add(code.times(moved, first), code.number(-2.0), code.load(sums, seconds, loop.index))
        squares = code.times(moved, moved)
        var = code.larger(code.times(code.multiply_add(squares, data, second), inverse), code.number(0.0))
        code.store(mean, out, out0, loop.index)
        code.store(var, out, spreads, loop.index)
        var = b.fadd(var, var_min)
        b.store(b.fadd(b.load(logs), code.log(var)), logs)
        b.store(code.larger(b.load(excess), code.multiply_add(var, code.number(-FAR), squares)), excess)
    log = b.load(logs)
    cost = code.multiply_add(log, code.number(0.5), code.everywhere(beta_u, j))
    logit = b.fmul(code.everywhere(heat, t), b.fsub(code.everywhere(beta_a, j), b.fmul(cost, data)))
    for k, value in enumerate((data, log, logit)):
        code.store(value, out, rest, code.integer(k))
    code.store(b.load(excess), far, far0, zero)


@operation
def expectation(code: Code, state: Any, s0: Any, dim: Any, out: Any, out0: Any) -> None:
    """Factors of `square_form` for the E-step: log a + log N(V; mean, var), from one parent's state."""
    b, spreads = code.builder, code.offset(s0, dim)
    rest, squares = code.offset(spreads, dim), code.offset(code.offset(out0, dim), dim)
    with cgutils.for_range(b, dim) as loop:
        var = b.fadd(code.load(state, spreads, loop.index), code.number(VAR_MIN))
        code.store(code.load(state, s0, loop.index), out, out0, loop.index)
        code.store(b.fdiv(code.number(-0.5), var), out, squares, loop.index)
    log, _ = code.log_sigmoid(code.load(state, rest, code.integer(2)))
    logs = code.load(state, rest, code.integer(1))
    constant = code.multiply_add(logs, code.number(-0.5), log)
    code.store(constant, out, code.offset(squares, dim), code.integer(0))


@operation
def fit_backward(
    code: Code, state: Any, s0: Any, grad: Any, g0: Any, centre: Any, c0: Any, dim: Any, beta_u: Any, j: Any,
    heat: Any, t: Any, out: Any, out0: Any, slopes: Any, k0: Any, betas: Any, b0: Any,
) -> None:  # fmt: skip
    """Backward of `fit`: factors of `full_form` for dL/dr of each child, dL/dV = r (constant + slope (V - centre)).

    grad holds dL/dmean `[H]`, dL/dvar `[H]`, dL/dlogit. Added to betas: dL/d(H beta_u), dL/dbeta_a.
    """
    b, zero, minus = code.builder, code.integer(0), code.number(-1.0)
    spreads, grad_spreads = code.offset(s0, dim), code.offset(g0, dim)
    rest = code.offset(spreads, dim)
    linear = code.offset(out0, dim)
    square, steep = code.offset(linear, dim), code.offset(k0, dim)
    data, logs = (code.load(state, rest, code.integer(k)) for k in (0, 1))
    inverse = code.inverse(b.fadd(data, code.number(EPSILON)))
    slope = b.fmul(code.everywhere(heat, t), code.load(grad, code.offset(grad_spreads, dim), zero))
    cost = code.multiply_add(logs, code.number(0.5), code.everywhere(beta_u, j))
    half = b.fmul(b.fmul(slope, data), code.number(-0.5))
    leak = b.fmul(inverse, code.number(-2.0 * EPSILON))
    constant = code.variable(b.fmul(b.fmul(slope, cost), minus))
    with cgutils.for_range(b, dim) as loop:
        mean, var = code.load(state, s0, loop.index), code.load(state, spreads, loop.index)
        grad_var = code.load(grad, grad_spreads, loop.index)
        grad_var = b.fadd(grad_var, b.fdiv(half, b.fadd(var, code.number(VAR_MIN))))
        grad_mean = code.multiply_add(b.fmul(grad_var, leak), mean, code.load(grad, g0, loop.index))
        first, second = b.fmul(grad_mean, inverse), b.fmul(grad_var, inverse)
        b.store(code.subtract(b.load(constant), code.times(second, var)), constant)
        for value, to in ((mean, out0), (first, linear), (second, square)):
            code.store(value, out, to, loop.index)
        twice = b.fadd(second, second)
        moved = b.fsub(code.load(centre, c0, loop.index), mean)
        code.store(code.multiply_add(twice, moved, first), slopes, k0, loop.index)
        code.store(twice, slopes, steep, loop.index)
    code.store(b.load(constant), out, code.offset(square, dim), zero)
    code.store(b.fadd(code.load(betas, b0, zero), b.fmul(b.fmul(slope, data), minus)), betas, b0, zero)
    code.store(b.fadd(code.load(betas, b0, code.integer(1)), slope), betas, b0, code.integer(1))


@operation
def expectation_backward(
    code: Code, state: Any, s0: Any, sums: Any, m0: Any, centre: Any, c0: Any, dim: Any, grad: Any, g0: Any,
    slopes: Any, k0: Any,
) -> None:  # fmt: skip
    """Backward of the E-step: dL/dmean, dL/dvar, dL/dlogit from `moments` with dL/dlog R as factor; and its dL/dV."""
    b, zero = code.builder, code.integer(0)
    spreads, seconds, grad_spreads = (code.offset(start, dim) for start in (s0, m0, g0))
    steep = code.offset(k0, dim)
    count = code.load(sums, code.offset(seconds, dim), zero)
    with cgutils.for_range(b, dim) as loop:
        mean, var = code.load(state, s0, loop.index), code.load(state, spreads, loop.index)
        inverse = code.inverse(b.fadd(var, code.number(VAR_MIN)))
        code.store(b.fmul(code.load(sums, m0, loop.index), inverse), grad, g0, loop.index)
        second = code.subtract(code.times(code.load(sums, seconds, loop.index), inverse), count)
        code.store(b.fmul(b.fmul(second, inverse), code.number(0.5)), grad, grad_spreads, loop.index)
        moved = b.fsub(mean, code.load(centre, c0, loop.index))
        code.store(b.fmul(moved, inverse), slopes, k0, loop.index)
        code.store(b.fmul(inverse, code.number(-1.0)), slopes, steep, loop.index)
    _, other = code.log_sigmoid(code.load(state, code.offset(spreads, dim), code.integer(2)))
    code.store(b.fmul(other, count), grad, code.offset(grad_spreads, dim), zero)
