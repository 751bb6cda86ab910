"""Operations on a row of vectors, one after the other. Needs numba."""

# mypy: allow-untyped-defs
from __future__ import annotations

from typing import Any

from numba.core import cgutils
from numba.extending import intrinsic

from torchcaps.kernels.simd.vectors import Code, operation

_Place = tuple[Any, Any]  # an array, and a position in it


def _each(write: Any) -> Any:
    """An operation on n vectors from a function that writes it for one: that takes (array, position) and its number."""

    def loop(code: Code, *arguments: Any) -> None:
        *places, n = arguments
        pairs = list(zip(places[::2], places[1::2], strict=True))
        with cgutils.for_range(code.builder, n) as body:
            write(code, body.index, *pairs)

    return loop


@_each
def _scale(code: Code, at: Any, factor: _Place, x: _Place, out: _Place) -> None:
    code.store(code.times(code.everywhere(*factor), code.load(*x, at)), *out, at)


@intrinsic
def scale(typingctx, factor, f0, x, x0, out, out0, n):
    """out[n] = f x[n], f being the single number at f0."""
    return operation(_scale)(typingctx, factor, f0, x, x0, out, out0, n)


@_each
def _multiply(code: Code, at: Any, a: _Place, b: _Place, out: _Place) -> None:
    code.store(code.times(code.load(*a, at), code.load(*b, at)), *out, at)


@intrinsic
def multiply(typingctx, a, a0, b, b0, out, out0, n):
    """out[n] = a[n] b[n]."""
    return operation(_multiply)(typingctx, a, a0, b, b0, out, out0, n)


@_each
def _accumulate(code: Code, at: Any, a: _Place, b: _Place, out: _Place) -> None:
    code.store(code.multiply_add(code.load(*a, at), code.load(*b, at), code.load(*out, at)), *out, at)


@intrinsic
def accumulate_products(typingctx, a, a0, b, b0, out, out0, n):
    """out[n] += a[n] b[n]."""
    return operation(_accumulate)(typingctx, a, a0, b, b0, out, out0, n)


@_each
def _peak(code: Code, at: Any, x: _Place, out: _Place) -> None:
    code.store(code.larger(code.load(*out, at), code.load(*x, at)), *out, at)


@intrinsic
def peak(typingctx, x, x0, out, out0, n):
    """out[n] = max(out[n], x[n])."""
    return operation(_peak)(typingctx, x, x0, out, out0, n)


@_each
def _exponentiate(code: Code, at: Any, top: _Place, x: _Place, total: _Place) -> None:
    value = code.exp(code.builder.fsub(code.load(*x, at), code.load(*top, at)))
    code.store(value, *x, at)
    code.store(code.builder.fadd(code.load(*total, at), value), *total, at)


@intrinsic
def exponentiate(typingctx, top, top0, x, x0, total, total0, n):
    """x[n] = exp(x[n] - top[n]), and total[n] += x[n]."""
    return operation(_exponentiate)(typingctx, top, top0, x, x0, total, total0, n)


@_each
def _invert(code: Code, at: Any, x: _Place) -> None:
    code.store(code.inverse(code.load(*x, at)), *x, at)


@intrinsic
def invert(typingctx, x, x0, n):
    """x[n] = 1 / x[n]."""
    return operation(_invert)(typingctx, x, x0, n)


@_each
def _below(code: Code, at: Any, share: _Place, mean: _Place, grad: _Place) -> None:
    value = code.builder.fsub(code.load(*grad, at), code.load(*mean, at))
    code.store(code.times(code.load(*share, at), value), *grad, at)


@intrinsic
def softmax_below(typingctx, share, r0, mean, m0, grad, grad0, n):
    """grad[n] = share[n] (grad[n] - mean[n])."""
    return operation(_below)(typingctx, share, r0, mean, m0, grad, grad0, n)
