"""Operations on a row of vectors, one after the other. Needs numba."""

# mypy: allow-untyped-defs
from __future__ import annotations

import functools
import inspect
from typing import Any

from numba.core import cgutils

from torchcaps.kernels.simd.vectors import Code, operation

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
