"""Vector instructions for compiled loops: LANES numbers at once, one of each sample. Needs numba.

numba has no vector type, and whether its compiler finds one in a loop is luck; these few operations say what they mean.
Each takes flat arrays and the position of the first number in each. Only `multiply_tile` sums across lanes. Names:
`x[n]` is the n-th vector of LANES numbers from a position.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from torchcaps.kernels.simd.lanes import LANES

TILE = 4  # rows and columns of `multiply_tile`: TILE x TILE sums fill a vector


def _arithmetic(name: str, *, swapped: bool = False) -> Any:
    def made(self: Value, other: Any) -> Value:
        code, kind, pair = self.code, self.made.type, (other, self) if swapped else (self, other)
        a, b = (code.constant(kind, x) for x in pair)
        if isinstance(kind, ir.IntType):
            return Value(code, getattr(code.builder, name)(a, b))
        return Value(code, getattr(code.builder, f"f{name}")(a, b, flags=("contract",)))

    return made


class Value:
    """A vector in a register, or a position: instructions are written by arithmetic, with numbers as constants.

    A product may be fused with a sum (one rounding less); no sum is reordered; NaN and infinity are respected.
    """

    def __init__(self, code: Code, made: Any) -> None:
        self.code, self.made = code, made

    __add__, __sub__, __mul__, __truediv__ = map(_arithmetic, ("add", "sub", "mul", "div"))
    __rtruediv__ = _arithmetic("div", swapped=True)

    def below(self, bound: Any, yes: Any, no: Any) -> Value:
        """`yes` in the lanes that are below a bound, `no` in the others, NaN among them."""
        code = self.code
        bound, yes, no = (code.constant(self.made.type, x) for x in (bound, yes, no))
        return Value(
            code, code.builder.select(code.builder.fcmp_ordered("<", self.made, bound), yes, no)
        )

    def larger(self, other: Any) -> Value:
        """The larger of two; NaN stays, that of `other` does not come in."""
        return self.below(other, other, self)

    def sqrt(self) -> Value:
        """The square root."""
        b, kind = self.code.builder, self.made.type
        signature, name = ir.FunctionType(kind, [kind]), f"llvm.sqrt.v{LANES}f{self.code.bits}"
        return Value(
            self.code,
            b.call(cgutils.get_or_insert_function(b.module, signature, name), [self.made]),
        )

    def exp(self) -> Value:
        """exp(x) for x <= 0, as 2^n exp(r) with |r| <= ln(2) / 2 and Taylor's series; NaN stays NaN."""
        single, b, whole = self.code.bits == 32, self.code.builder, self.code.whole
        lowest, bias, shift, terms = (-87.0, 127, 23, 7) if single else (-708.0, 1023, 52, 13)
        magic = 1.5 * 2**shift
        x, y = self.larger(lowest), Value(self.code, self.code.constant(self.made.type, 1.0))
        n = x * 1.4426950408889634 + magic - magic
        r = n * 2.1219444005469058277e-4 + (
            n * -0.693359375 + x
        )  # ln(2) in two parts: the first product is exact
        for term in range(terms, 0, -1):  # 1 + r / 1 (1 + r / 2 (1 + ...))
            y = y * r * (1.0 / term) + 1.0
        exponent = b.shl(
            b.add(b.fptosi(n.made, whole), whole([bias] * LANES)), whole([shift] * LANES)
        )
        y = y * Value(self.code, b.bitcast(exponent, self.made.type))
        return self.below(
            lowest, 0.0, y
        )  # 1e-38 in its place, times huge numbers, would not vanish

    def log(self) -> Value:
        """log(x) for normal x > 0: 2 artanh((m - 1) / (m + 1)) + e log(2), where x = m 2^e and m is about 1."""
        shift, half, terms = (
            (23, 0x3F3504F3, 5) if self.code.bits == 32 else (52, 0x3FE6A09E667F3BCD, 11)
        )
        b, whole = self.code.builder, self.code.whole
        place, bits = whole([shift] * LANES), b.bitcast(self.made, whole)
        e = b.ashr(b.sub(bits, whole([half] * LANES)), place)
        m = Value(self.code, b.bitcast(b.sub(bits, b.shl(e, place)), self.made.type))
        s = (m - 1.0) / (m + 1.0)
        square, y = s * s, 2.0 / (2 * terms + 1)
        for n in range(terms - 1, -1, -1):
            y = square * y + 2.0 / (2 * n + 1)
        return Value(self.code, b.sitofp(e, self.made.type)) * 0.6931471805599453 + s * y

    def log_sigmoid(self) -> tuple[Value, Value]:
        """log(sigmoid(x)) and sigmoid(-x), both from exp(-|x|)."""
        e = self.below(0.0, self, self * -1.0).exp()
        return self.below(0.0, self, 0.0) - (e + 1.0).log(), self.below(0.0, 1.0, e) / (e + 1.0)


class Vectors:
    """Vectors of a flat array from a position on: `x[n]` is the n-th."""

    def __init__(self, code: Code, array: Any, first: Value) -> None:
        self.code, self.array, self.first = code, array, first

    def __getitem__(self, n: Any) -> Value:
        return Value(self.code, self.code.builder.load(self._place(n), align=self.code.bits // 8))

    def __setitem__(self, n: Any, value: Value) -> None:
        self.code.builder.store(value.made, self._place(n), align=self.code.bits // 8)

    def _place(self, n: Any) -> Any:
        builder = self.code.builder
        return builder.bitcast(
            builder.gep(self.array, [self.after(n).first.made]), self.code.vector.as_pointer()
        )

    def after(self, count: Any) -> Vectors:
        """Those after the first of them, so many left out."""
        return self.from_number(count * LANES)

    def from_number(self, n: Any) -> Vectors:
        """Those from the n-th number on."""
        return Vectors(self.code, self.array, self.first + n)

    def lone(self, n: Any = 0) -> Value:
        """The single number that is n numbers after the position, in all lanes."""
        builder, none = self.code.builder, self.code.vector(ir.Undefined)
        number = builder.load(builder.gep(self.array, [(self.first + n).made]))
        lone = Value(self.code, builder.insert_element(none, number, ir.IntType(64)(0)))
        return self.code.picked(lone, Value(self.code, none), [0] * LANES)


class Code:
    """Writes the instructions of one operation for arrays of one type of number."""

    def __init__(self, context: Any, builder: Any, signature: Any, values: Any) -> None:
        self.context, self.builder = context, builder
        element = context.get_data_type(
            next(a.dtype for a in signature.args if isinstance(a, types.Array))
        )
        self.bits = context.get_abi_sizeof(element) * 8
        self.vector, self.whole = (
            ir.VectorType(kind, LANES) for kind in (element, ir.IntType(self.bits))
        )
        self.values: list[Any] = []
        given = iter(zip(signature.args, values, strict=True))
        for kind, value in given:
            if isinstance(kind, types.Array):
                self.values.append(self.vectors(kind, value, next(given)[1]))
            elif isinstance(kind, types.BaseTuple):
                self.values.append(
                    [Value(self, builder.extract_value(value, n)) for n in range(len(kind))]
                )
            else:
                self.values.append(Value(self, value))

    def vectors(self, kind: Any, array: Any, first: Any) -> Vectors:
        """Those of numba's array from a position on."""
        return Vectors(
            self,
            self.context.make_array(kind)(self.context, self.builder, array).data,
            Value(self, first),
        )

    def variable(self, start: Any) -> Vectors:
        """A vector that changes in a loop, `x[0]`; it lives in a register."""
        place = cgutils.alloca_once(self.builder, self.vector)
        self.builder.store(self.constant(self.vector, start), place)
        array = self.builder.bitcast(place, self.vector.element.as_pointer())
        return Vectors(self, array, Value(self, ir.IntType(64)(0)))

    def constant(self, kind: Any, value: Any) -> Any:
        """A position, or a number in all lanes, unless it is a value already."""
        if isinstance(value, Value):
            return value.made
        return kind(value if isinstance(kind, ir.IntType) else [value] * LANES)

    @contextmanager
    def loop(self, count: Value) -> Iterator[Value]:
        """What is written in the block runs for each number below `count`."""
        with cgutils.for_range(self.builder, count.made) as body:
            yield Value(self, body.index)

    def lane_sums(self, vectors: list[Value]) -> Value:
        """Lane n is the sum of the lanes of the n-th of LANES vectors: halves are added, pair by pair."""
        width = LANES
        while len(vectors) > 1:
            half, starts = width // 2, range(0, 2 * LANES, width)
            low = [start + n for start in starts for n in range(half)]
            pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
            vectors = [
                self.picked(a, b, low) + self.picked(a, b, [n + half for n in low])
                for a, b in pairs
            ]
            width = half
        return vectors[0]

    def picked(self, a: Value, b: Value, lanes: list[int]) -> Value:
        """These lanes of a, and then b."""
        chosen = ir.VectorType(ir.IntType(32), LANES)(lanes)
        return Value(self, self.builder.shuffle_vector(a.made, b.made, chosen))


def operation(
    write: Callable[..., None], kind: type[Code] = Code, before: tuple[str, ...] = ()
) -> Any:
    """Decorator: an operation on flat arrays and positions from a function that writes its code.

    It takes a `Code` of this kind and what the operation takes, `Vectors` in the place of an array and a position, a
    list of numbers in the place of a tuple; arguments named in `before` come first, and are taken by the code itself.
    """

    def define(_context: Any, *arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            code = kind(context, builder, signature, values)
            write(code, *code.values)
            return context.get_dummy_value()

        return types.void(
            *(types.intp if isinstance(a, types.Integer) else a for a in arguments)
        ), generate

    taken = ["typingctx", *before]
    for name, parameter in list(inspect.signature(write, eval_str=True).parameters.items())[1:]:
        taken += [name, f"{name}_at"] if parameter.annotation is Vectors else [name]
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in taken
    ]
    known: Any = define  # numba takes names from here
    known.__name__, known.__doc__, known.__signature__ = (
        write.__name__,
        write.__doc__,
        inspect.Signature(parameters),
    )
    return intrinsic(known)


@numba.njit(nogil=True, error_model="numpy", inline="always")
def scratch(count, kind):
    """An array for vectors. They begin where cache lines do: a vector across two lines takes twice as long to load."""
    whole = np.empty(count + LANES, kind)
    first = -whole.ctypes.data % 64 // whole.itemsize
    return whole[first : first + count]


@operation
def accumulate(code: Code, factor: Vectors, a: Vectors, n: Value, out: Vectors) -> None:
    """out[n] += factor a[n]."""
    times = factor[0]
    with code.loop(n) as k:
        out[k] += times * a[k]


@operation
def multiply_tile(
    code: Code,
    a: Vectors,
    a_row: Value,
    rows: Value,
    b: Vectors,
    b_row: Value,
    columns: Value,
    n: Value,
    out: Vectors,
) -> None:
    """Lane TILE r + c of out = sum over lanes and n of a(r, n) b(c, n), where r < rows and c < columns.

    a(r, n) is the vector a[r a_row + n], and likewise b.
    """
    builder, totals = code.builder, [code.variable(0.0) for _ in range(TILE * TILE)]

    def starts(x: Vectors, row: Value, count: Value) -> list[Vectors]:
        """The rows; the last again in the place of those that there are not."""
        each, last = [count.made.type(r) for r in range(TILE)], (count - 1).made
        real = [builder.select(builder.icmp_signed("<", r, count.made), r, last) for r in each]
        return [x.after(row * Value(code, r)) for r in real]

    a_starts, b_starts = starts(a, a_row, rows), starts(b, b_row, columns)
    with code.loop(n) as k:
        left, right = [x[k] for x in a_starts], [x[k] for x in b_starts]
        for index, total in enumerate(totals):
            total[0] += left[index // TILE] * right[index % TILE]
    out[0] = code.lane_sums([total[0] for total in totals])


@operation
def softmax(code: Code, x: Vectors, n: Value) -> None:
    """x[n] = exp(x[n]) / sum_m exp(x[m])."""
    high, total = code.variable(x[0]), code.variable(0.0)
    with code.loop(n) as k:
        high[0] = high[0].larger(x[k])
    with code.loop(n) as k:
        x[k] = value = (x[k] - high[0]).exp()
        total[0] += value
    share = 1.0 / total[0]
    with code.loop(n) as k:
        x[k] = x[k] * share


@operation
def softmax_gradient(code: Code, c: Vectors, grad: Vectors, n: Value) -> None:
    """grad[n] = c[n] (grad[n] - sum_m c[m] grad[m]): from the gradient of a softmax c to that of its logits."""
    mean = code.variable(0.0)
    with code.loop(n) as k:
        mean[0] += c[k] * grad[k]
    with code.loop(n) as k:
        grad[k] = c[k] * (grad[k] - mean[0])


@operation
def scale(code: Code, factor: Vectors, x: Vectors, out: Vectors, n: Value) -> None:
    """out[n] = f x[n], f being the single number at the position of `factor`."""
    f = factor.lone()
    with code.loop(n) as k:
        out[k] = f * x[k]


@operation
def invert(code: Code, x: Vectors, n: Value) -> None:
    """x[n] = 1 / x[n]."""
    with code.loop(n) as k:
        x[k] = 1.0 / x[k]


@operation
def multiply(code: Code, a: Vectors, b: Vectors, out: Vectors, n: Value) -> None:
    """out[n] = a[n] b[n]."""
    with code.loop(n) as k:
        out[k] = a[k] * b[k]


@operation
def accumulate_products(code: Code, a: Vectors, b: Vectors, out: Vectors, n: Value) -> None:
    """out[n] += a[n] b[n]."""
    with code.loop(n) as k:
        out[k] += a[k] * b[k]


@operation
def softmax_below(code: Code, share: Vectors, mean: Vectors, grad: Vectors, n: Value) -> None:
    """grad[n] = share[n] (grad[n] - mean[n])."""
    with code.loop(n) as k:
        grad[k] = share[k] * (grad[k] - mean[k])


@operation
def peak(code: Code, x: Vectors, out: Vectors, n: Value) -> None:
    """out[n] = max(out[n], x[n])."""
    with code.loop(n) as k:
        out[k] = out[k].larger(x[k])


@operation
def exponentiate(code: Code, top: Vectors, x: Vectors, total: Vectors, n: Value) -> None:
    """x[n] = exp(x[n] - top[n]), and total[n] += x[n]."""
    with code.loop(n) as k:
        x[k] = value = (x[k] - top[k]).exp()
        total[k] += value
