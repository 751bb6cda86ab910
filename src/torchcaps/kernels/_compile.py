"""How the loops of this package are compiled, and an exponential that the compiler can vectorize. Needs numba."""

# mypy: allow-untyped-defs
import numba
import numpy as np
from numba.core.compiler import Compiler
from numba.extending import overload


class DisjointArrays(Compiler):
    """Arguments that are arrays share no memory: without that promise hardly any loop is vectorized."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.state.flags.noalias = True


# A product and a sum may become one instruction; no sum is reordered.
compiled = numba.njit(
    nogil=True, error_model="numpy", fastmath={"contract"}, pipeline_class=DisjointArrays
)


# The order of a sum over samples may follow the vector registers; it is the same in every run.
compiled_sum = numba.njit(
    nogil=True,
    error_model="numpy",
    fastmath={"contract", "reassoc"},
    pipeline_class=DisjointArrays,
)


def exp(x):
    """exp(x) for x <= 0, and 0 where that is no normal number."""
    raise NotImplementedError


@overload(exp, inline="always")
def _exp_of(x):
    return _exp32 if x == numba.float32 else _exp64


def _exp_for(kind, whole, digits, bias, terms, lowest):
    """exp(x) = 2^n exp(r), |r| <= log(2) / 2, by so many terms of the exponential series."""
    log2e, half, one, low = kind(np.log2(np.e)), kind(0.5), kind(1.0), kind(lowest)
    # log(2) in two parts: n times the first is exact.
    high_part = kind(0.693359375)
    low_part = kind(np.log(2.0) - 0.693359375)
    factors = tuple(kind(1.0 / n) for n in range(terms, 0, -1))

    def power(x):
        bounded = max(x, low)
        n = np.floor(bounded * log2e + half)
        r = (bounded - n * high_part) - n * low_part
        series = one
        for factor in factors:
            series = series * r * factor + one
        scale = whole((whole(n) + whole(bias)) << whole(digits)).view(kind)
        return kind(0.0) if x < low else series * scale

    return power


_exp32 = _exp_for(np.float32, np.int32, 23, 127, 7, -87.0)
_exp64 = _exp_for(np.float64, np.int64, 52, 1023, 13, -708.0)
