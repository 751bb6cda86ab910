"""Vector instructions for compiled loops: LANES numbers at once, one of each sample. Needs numba.

numba has no vector type, and whether its compiler finds one in a loop is luck; these few operations say what they mean.
Each takes flat arrays and the position of the first number in each. Only `multiply_tile` sums across lanes. Names:
`x[n]` is the n-th vector of LANES numbers from a position.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from torchcaps.kernels.simd.lanes import LANES

ROWS = 4  # rows that `multiply_rows` does at once: each x is loaded once for all of them
TILE = 4  # rows and columns of `multiply_tile`: TILE x TILE sums fill a vector

# A product may be fused with a sum (one rounding less); no sum is reordered; NaN and infinity are respected.
_FLAGS = ("contract",)


class Code:
    """Writes the instructions of one operation for arrays of one type of number."""

    def __init__(self, context: Any, builder: Any, signature: Any, values: Any) -> None:
        self.context, self.builder = context, builder
        self.element = context.get_data_type(next(a.dtype for a in signature.args if isinstance(a, types.Array)))
        self.bits = context.get_abi_sizeof(self.element) * 8
        self.vector = ir.VectorType(self.element, LANES)
        self.values = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, values, strict=True)
        ]

    def integer(self, value: int) -> Any:
        """A position."""
        return ir.Constant(ir.IntType(64), value)

    def number(self, value: float) -> Any:
        """The same number in all lanes."""
        return ir.Constant(self.vector, [value] * LANES)

    def place(self, array: Any, first: Any, n: Any) -> Any:
        """Address of the n-th vector after position `first`."""
        at = self.builder.add(first, self.builder.mul(n, self.integer(LANES)))
        return self.builder.bitcast(self.builder.gep(array, [at]), self.vector.as_pointer())

    def load(self, array: Any, first: Any, n: Any) -> Any:
        """The n-th vector after position `first`."""
        return self.builder.load(self.place(array, first, n), align=self.bits // 8)

    def store(self, value: Any, array: Any, first: Any, n: Any) -> None:
        """Write the n-th vector after position `first`."""
        self.builder.store(value, self.place(array, first, n), align=self.bits // 8)

    def everywhere(self, array: Any, at: Any) -> Any:
        """A single number in all lanes."""
        lone = self.builder.insert_element(
            ir.Constant(self.vector, ir.Undefined), self.builder.load(self.builder.gep(array, [at])), self.integer(0)
        )
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(lone, ir.Constant(self.vector, ir.Undefined), zeros)

    def variable(self, start: Any) -> Any:
        """A vector that changes in a loop; it lives in a register."""
        place = cgutils.alloca_once(self.builder, self.vector)
        self.builder.store(start, place)
        return place

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c."""
        return self.builder.fadd(self.builder.fmul(a, b, flags=_FLAGS), c, flags=_FLAGS)

    def add_product(self, place: Any, a: Any, b: Any) -> None:
        """variable += a b."""
        self.builder.store(self.multiply_add(a, b, self.builder.load(place)), place)

    def lane_sums(self, vectors: list[Any]) -> Any:
        """Lane n is the sum of the lanes of the n-th of LANES vectors: halves are added, pair by pair."""
        width = LANES
        while len(vectors) > 1:
            half, starts = width // 2, range(0, 2 * LANES, width)
            low = [start + n for start in starts for n in range(half)]
            high = [start + half + n for start in starts for n in range(half)]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self.builder.fadd(self._picked(a, b, low), self._picked(a, b, high)) for a, b in pairs]
            width = half
        return vectors[0]

    def _picked(self, a: Any, b: Any, lanes: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), LANES), lanes))

    def exp(self, x: Any) -> Any:
        """exp(x) for x <= 0, as 2^n exp(r) with |r| <= ln(2) / 2 and Taylor's series; NaN stays NaN."""
        single = self.bits == 32
        lowest, magic, bias, shift, terms = (
            (-87.0, 1.5 * 2**23, 127, 23, 7) if single else (-708.0, 1.5 * 2**52, 1023, 52, 13)
        )
        b = self.builder
        vanishes = b.fcmp_ordered("<", x, self.number(lowest))
        x = b.select(vanishes, self.number(lowest), x)
        n = b.fsub(self.multiply_add(x, self.number(1.4426950408889634), self.number(magic)), self.number(magic))
        r = self.multiply_add(n, self.number(-0.693359375), x)  # ln(2) in two parts: the first product is exact
        r = self.multiply_add(n, self.number(2.1219444005469058277e-4), r)
        y = self.number(1.0)
        for term in range(terms, 0, -1):  # 1 + r / 1 (1 + r / 2 (1 + ...))
            y = self.multiply_add(b.fmul(y, r), self.number(1.0 / term), self.number(1.0))
        whole = ir.VectorType(ir.IntType(self.bits), LANES)
        exponent = b.add(b.fptosi(n, whole), ir.Constant(whole, [bias] * LANES))
        y = b.fmul(y, b.bitcast(b.shl(exponent, ir.Constant(whole, [shift] * LANES)), self.vector))
        return b.select(vanishes, self.number(0.0), y)  # 1e-38 in its place, times huge numbers, would not vanish

    def subtract(self, a: Any, b: Any) -> Any:
        """a - b, which may be fused with a product."""
        return self.builder.fsub(a, b, flags=("contract",))

    def times(self, a: Any, b: Any) -> Any:
        """a b, which may be fused with a sum."""
        return self.builder.fmul(a, b, flags=("contract",))

    def inverse(self, x: Any) -> Any:
        """1 / x."""
        return self.builder.fdiv(self.number(1.0), x)

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of two; NaN in `a` stays."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), b, a)

    def log(self, x: Any) -> Any:
        """log(x) for normal x > 0: 2 artanh((m - 1) / (m + 1)) + e log(2), where x = m 2^e and m is about 1."""
        shift, half, terms = (23, 0x3F3504F3, 5) if self.bits == 32 else (52, 0x3FE6A09E667F3BCD, 11)
        b, whole = self.builder, ir.VectorType(ir.IntType(self.bits), LANES)
        place, bits = ir.Constant(whole, [shift] * LANES), b.bitcast(x, whole)
        e = b.ashr(b.sub(bits, ir.Constant(whole, [half] * LANES)), place)
        m = b.bitcast(b.sub(bits, b.shl(e, place)), self.vector)
        s = b.fdiv(b.fsub(m, self.number(1.0)), b.fadd(m, self.number(1.0)))
        square, y = b.fmul(s, s), self.number(2.0 / (2 * terms + 1))
        for n in range(terms - 1, -1, -1):
            y = self.multiply_add(y, square, self.number(2.0 / (2 * n + 1)))
        return self.multiply_add(b.sitofp(e, self.vector), self.number(0.6931471805599453), b.fmul(y, s))

    def log_sigmoid(self, x: Any) -> tuple[Any, Any]:
        """log(sigmoid(x)) and sigmoid(-x), both from exp(-|x|)."""
        b, zero = self.builder, self.number(0.0)
        positive = b.fcmp_ordered(">", x, zero)
        e = self.exp(b.select(positive, b.fsub(zero, x), x))
        more = b.fadd(e, self.number(1.0))
        log = b.fsub(b.select(positive, zero, x), self.log(more))
        return log, b.fdiv(b.select(positive, e, self.number(1.0)), more)

    def offset(self, start: Any, vectors: Any) -> Any:
        """Position so many vectors after `start`."""
        count = self.integer(vectors) if isinstance(vectors, int) else vectors
        return self.builder.add(start, self.builder.mul(count, self.integer(LANES)))


def operation(write: Callable[..., None], kind: type[Code] = Code, names: Sequence[str] = ()) -> Any:
    """Decorator: an operation on flat arrays and positions from a function that writes its code.

    Args:
        write: takes a `Code` and what the operation takes.
        kind: of the `Code`.
        names: of the arguments; those of `write` unless given.
    """

    def define(_context: Any, *arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            code = kind(context, builder, signature, values)
            write(code, *code.values)
            return context.get_dummy_value()

        return types.void(*(types.intp if isinstance(a, types.Integer) else a for a in arguments)), generate

    taken = ["typingctx", *(names or list(inspect.signature(write).parameters)[1:])]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in taken]
    known: Any = define  # numba takes names from here
    known.__name__, known.__doc__, known.__signature__ = write.__name__, write.__doc__, inspect.Signature(parameters)
    return intrinsic(known)


def _multiply(count: int) -> Any:
    def multiply(
        code: Code, w: Any, w0: Any, row: Any, column: Any, n: Any, x: Any, x0: Any, out: Any, out0: Any
    ) -> None:  # fmt: skip
        each = [code.integer(r) for r in range(count)]
        totals = [code.variable(code.load(out, out0, r)) for r in each]
        starts = [code.builder.add(w0, code.builder.mul(row, r)) for r in each]
        with cgutils.for_range(code.builder, n) as loop:
            values = code.load(x, x0, loop.index)
            step = code.builder.mul(loop.index, column)
            for start, total in zip(starts, totals, strict=True):
                code.add_product(total, code.everywhere(w, code.builder.add(start, step)), values)
        for r, total in zip(each, totals, strict=True):
            code.store(code.builder.load(total), out, out0, r)

    return operation(multiply)


# out[r] += sum_n w(r, n) x[n] for ROWS rows, or one, w(r, n) being the single number at w0 + r row + n column.
multiply_rows, multiply_row = _multiply(ROWS), _multiply(1)


@operation
def dot(code: Code, a: Any, a0: Any, b: Any, b0: Any, n: Any, out: Any, out0: Any) -> None:
    """out = sum_n a[n] b[n]."""
    total = code.variable(code.number(0.0))
    with cgutils.for_range(code.builder, n) as loop:
        code.add_product(total, code.load(a, a0, loop.index), code.load(b, b0, loop.index))
    code.store(code.builder.load(total), out, out0, code.integer(0))


@operation
def accumulate(code: Code, factor: Any, f0: Any, a: Any, a0: Any, n: Any, out: Any, out0: Any) -> None:
    """out[n] += factor a[n]."""
    times = code.load(factor, f0, code.integer(0))
    with cgutils.for_range(code.builder, n) as loop:
        total = code.multiply_add(times, code.load(a, a0, loop.index), code.load(out, out0, loop.index))
        code.store(total, out, out0, loop.index)


@operation
def accumulate_terms(
    code: Code, factor: Any, f0: Any, f_step: Any, a: Any, a0: Any, a_step: Any, terms: Any, n: Any, out: Any, out0: Any
) -> None:  # fmt: skip
    """out[n] += sum_m factor_m a_m[n], factor_m at f0 + m f_step and a_m from a0 + m a_step on, m < terms."""
    b = code.builder
    with cgutils.for_range(b, n) as loop:
        total = code.variable(code.load(out, out0, loop.index))
        with cgutils.for_range(b, terms) as term:
            times = code.load(factor, b.add(f0, b.mul(term.index, f_step)), code.integer(0))
            code.add_product(total, times, code.load(a, b.add(a0, b.mul(term.index, a_step)), loop.index))
        code.store(b.load(total), out, out0, loop.index)


@operation
def multiply_tile(
    code: Code, a: Any, a0: Any, a_row: Any, a_step: Any, rows: Any,
    b: Any, b0: Any, b_row: Any, b_step: Any, columns: Any, n: Any, out: Any, out0: Any,
) -> None:  # fmt: skip
    """Lane TILE r + c of out = sum over lanes and n of a(r, n) b(c, n), where r < rows and c < columns.

    a(r, n) is the vector at a0 + r a_row + n a_step, and likewise b.
    """
    builder, totals = code.builder, [code.variable(code.number(0.0)) for _ in range(TILE * TILE)]

    def starts(first: Any, row: Any, count: Any) -> list[Any]:
        """Positions of the rows; the last again in the place of those that there are not."""
        last, each = builder.sub(count, code.integer(1)), [code.integer(r) for r in range(TILE)]
        real = [builder.select(builder.icmp_signed("<", r, count), r, last) for r in each]
        return [builder.add(first, builder.mul(row, r)) for r in real]

    a_starts, b_starts, none = starts(a0, a_row, rows), starts(b0, b_row, columns), code.integer(0)
    with cgutils.for_range(builder, n) as loop:
        at = [builder.mul(loop.index, step) for step in (a_step, b_step)]
        left = [code.load(a, builder.add(start, at[0]), none) for start in a_starts]
        right = [code.load(b, builder.add(start, at[1]), none) for start in b_starts]
        for index, total in enumerate(totals):
            code.add_product(total, left[index // TILE], right[index % TILE])
    code.store(code.lane_sums([builder.load(total) for total in totals]), out, out0, none)


@operation
def softmax(code: Code, x: Any, x0: Any, n: Any) -> None:
    """x[n] = exp(x[n]) / sum_m exp(x[m])."""
    b = code.builder
    high, total = code.variable(code.load(x, x0, code.integer(0))), code.variable(code.number(0.0))
    with cgutils.for_range(b, n) as loop:
        value, highest = code.load(x, x0, loop.index), b.load(high)
        b.store(b.select(b.fcmp_ordered(">", value, highest), value, highest), high)
    with cgutils.for_range(b, n) as loop:
        value = code.exp(b.fsub(code.load(x, x0, loop.index), b.load(high)))
        b.store(b.fadd(b.load(total), value), total)
        code.store(value, x, x0, loop.index)
    share = b.fdiv(code.number(1.0), b.load(total))
    with cgutils.for_range(b, n) as loop:
        code.store(b.fmul(code.load(x, x0, loop.index), share), x, x0, loop.index)


@operation
def softmax_gradient(code: Code, c: Any, c0: Any, grad: Any, grad0: Any, n: Any) -> None:
    """grad[n] = c[n] (grad[n] - sum_m c[m] grad[m]): from the gradient of a softmax c to that of its logits."""
    b = code.builder
    mean = code.variable(code.number(0.0))
    with cgutils.for_range(b, n) as loop:
        code.add_product(mean, code.load(c, c0, loop.index), code.load(grad, grad0, loop.index))
    with cgutils.for_range(b, n) as loop:
        value = b.fsub(code.load(grad, grad0, loop.index), b.load(mean))
        code.store(b.fmul(code.load(c, c0, loop.index), value), grad, grad0, loop.index)


_Place = tuple[Any, Any]  # an array, and a position in it


def _each(write: Any) -> Any:
    """An operation on n vectors from a function that writes it for one: that takes (array, position) and its number."""

    @functools.wraps(write)
    def loop(code: Code, *arguments: Any) -> None:
        *places, n = arguments
        pairs = list(zip(places[::2], places[1::2], strict=True))
        with cgutils.for_range(code.builder, n) as body:
            write(code, body.index, *pairs)

    arrays = list(inspect.signature(write).parameters)[2:]
    return operation(loop, names=[*(name for array in arrays for name in (array, f"{array}_at")), "n"])


@_each
def scale(code: Code, at: Any, factor: _Place, x: _Place, out: _Place) -> None:
    """out[n] = f x[n], f being the single number at f0."""
    code.store(code.times(code.everywhere(*factor), code.load(*x, at)), *out, at)


@_each
def multiply(code: Code, at: Any, a: _Place, b: _Place, out: _Place) -> None:
    """out[n] = a[n] b[n]."""
    code.store(code.times(code.load(*a, at), code.load(*b, at)), *out, at)


@_each
def accumulate_products(code: Code, at: Any, a: _Place, b: _Place, out: _Place) -> None:
    """out[n] += a[n] b[n]."""
    code.store(code.multiply_add(code.load(*a, at), code.load(*b, at), code.load(*out, at)), *out, at)


@_each
def peak(code: Code, at: Any, x: _Place, out: _Place) -> None:
    """out[n] = max(out[n], x[n])."""
    code.store(code.larger(code.load(*out, at), code.load(*x, at)), *out, at)


@_each
def exponentiate(code: Code, at: Any, top: _Place, x: _Place, total: _Place) -> None:
    """x[n] = exp(x[n] - top[n]), and total[n] += x[n]."""
    value = code.exp(code.builder.fsub(code.load(*x, at), code.load(*top, at)))
    code.store(value, *x, at)
    code.store(code.builder.fadd(code.load(*total, at), value), *total, at)


@_each
def invert(code: Code, at: Any, x: _Place) -> None:
    """x[n] = 1 / x[n]."""
    code.store(code.inverse(code.load(*x, at)), *x, at)


@_each
def softmax_below(code: Code, at: Any, share: _Place, mean: _Place, grad: _Place) -> None:
    """grad[n] = share[n] (grad[n] - mean[n])."""
    value = code.builder.fsub(code.load(*grad, at), code.load(*mean, at))
    code.store(code.times(code.load(*share, at), value), *grad, at)
