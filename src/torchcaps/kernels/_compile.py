"""How compiled loops are compiled; an exponential that can be vectorized, and softmax. Needs numba."""

# mypy: allow-untyped-defs
from functools import partial

import numba
import numpy as np
from numba.core.compiler import Compiler
from numba.extending import overload


class DisjointArrays(Compiler):
    """Compiles functions whose arrays do not overlap: otherwise few loops are vectorized."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.state.flags.noalias = True


# A product and a sum may become one instruction; no sum is reordered.
compiled_loop = partial(
    numba.njit,
    nogil=True,
    error_model="numpy",
    fastmath={"contract"},
    pipeline_class=DisjointArrays,
)
# Other compiled functions alone call it: compiling what Python needs would take longer.
compiled = compiled_loop(no_cpython_wrapper=True)
# The order of a sum may follow the vector registers. It is the same in every run.
compiled_sum = compiled_loop(fastmath={"contract", "reassoc"}, no_cpython_wrapper=True)


def exp(x):
    """exp(x) for x <= 0; 0 where that is no normal number."""
    raise NotImplementedError("compiled functions alone can call it")


@overload(exp, inline="always")
def _choose_exp(x):
    return _exp32 if x == numba.float32 else _exp64


def _make_exp(number, integer, mantissa_bits, bias, num_terms, lowest):
    """exp(x) = 2^n exp(r) with |r| <= log(2) / 2; exp(r) by its Taylor series."""
    log2_e, half, one, zero = number(np.log2(np.e)), number(0.5), number(1), number(0)
    lowest = number(lowest)
    # log(2) in two parts: the product of n and the first one is exact.
    log2_high = number(0.693359375)
    log2_low = number(np.log(2.0) - 0.693359375)
    factors = tuple(number(1.0 / k) for k in range(num_terms, 0, -1))

    def compute_exp(x):
        n = np.floor(max(x, lowest) * log2_e + half)
        r = (max(x, lowest) - n * log2_high) - n * log2_low
        # 1 + r / 1 (1 + r / 2 (1 + ...))
        series = one
        for factor in factors:
            series = series * r * factor + one
        # The bits of 2^n.
        power = integer((integer(n) + integer(bias)) << integer(mantissa_bits)).view(number)
        return zero if x < lowest else series * power

    return compute_exp


_exp32 = _make_exp(np.float32, np.int32, 23, 127, 7, -87.0)
_exp64 = _make_exp(np.float64, np.int64, 52, 1023, 13, -708.0)


@compiled
def softmax(leaky, x):
    """Softmax over parents in place of the logits `x [j, n]`."""
    parents, lanes = x.shape
    largest = np.full(lanes, 0 if leaky else -np.inf, x.dtype)
    for j in range(parents):
        for n in range(lanes):
            largest[n] = max(largest[n], x[j, n])
    total = np.zeros(lanes, x.dtype)
    for j in range(parents + leaky):
        for n in range(lanes):
            logit = x[j, n] if j < parents else x.dtype.type(0)
            power = exp(logit - largest[n])
            total[n] += power
            if j < parents:
                x[j, n] = power
    for j in range(parents):
        for n in range(lanes):
            x[j, n] /= total[n]
