"""Vector instructions for the compiled loops of routing on maps. Needs numba. As in `simd/vectors.py`."""

# mypy: allow-untyped-defs
from torchcaps.functional.squash import EPSILON
from torchcaps.kernels.simd._vectors import Code, Value, Vectors, operation


@operation
def collect(code: Code, x: Vectors, step: Value, out: Vectors, n: Value) -> None:
    """out[n] = the vector n steps of numbers from the position."""
    with code.loop(n) as k:
        out[k] = x.from_number(k * step)[0]


@operation
def place(code: Code, x: Vectors, out: Vectors, step: Value, n: Value) -> None:
    """The vector n steps of numbers from the position = x[n]."""
    with code.loop(n) as k:
        out.from_number(k * step)[0] = x[k]


@operation
def fill(code: Code, x: Vectors, out: Vectors, n: Value) -> None:
    """out[n] = the n-th single number of x, in all lanes."""
    with code.loop(n) as k:
        out[k] = x.lone(k)


@operation
def add_dot(code: Code, a: Vectors, b: Vectors, n: Value, out: Vectors) -> None:
    """out += sum_n a[n] b[n]."""
    total = code.variable(out[0])
    with code.loop(n) as k:
        total[0] += a[k] * b[k]
    out[0] = total[0]


@operation
def link(
    code: Code,
    c: Vectors,
    grad_s: Vectors,
    grad_b: Vectors,
    reached: Vectors,
    u: Vectors,
    n: Value,
    grad: Vectors,
    grad_reached: Vectors,
) -> None:
    """grad[n] += c grad_s[n] + grad_b reached[n], and grad_reached[n] += grad_b u[n]."""
    weight, slope = c[0], grad_b[0]
    with code.loop(n) as k:
        grad[k] = weight * grad_s[k] + (slope * reached[k] + grad[k])
        grad_reached[k] += slope * u[k]


def _norm(code: Code, s: Vectors, n: Value) -> Value:
    """`squash.safe_norm`: what is larger than one is divided by the largest magnitude first."""
    high, total = code.variable(1.0), code.variable(0.0)
    with code.loop(n) as k:
        high[0] = high[0].larger(s[k]).larger(s[k] * -1.0)
    unit = 1.0 / high[0]
    with code.loop(n) as k:
        scaled = s[k] * unit
        total[0] += scaled * scaled
    return high[0] * (total[0] + EPSILON).sqrt()


@operation
def squash(code: Code, s: Vectors, n: Value, v: Vectors, length: Vectors) -> None:
    """v[n] = g s[n] with g = 1 / (1 / |s| + |s|), and length = g |s|."""
    norm = _norm(code, s, n)
    factor = 1.0 / (1.0 / norm + norm)
    with code.loop(n) as k:
        v[k] = s[k] * factor
    length[0] = factor * norm


@operation
def squash_gradient(code: Code, s: Vectors, grad_length: Vectors, n: Value, grad: Vectors) -> None:
    """grad[n], that of v[n], becomes that of s[n]; see `numerics.squash_backward`."""
    norm, along = _norm(code, s, n), code.variable(0.0)
    inverse = 1.0 / norm
    g = 1.0 / (inverse + norm)
    with code.loop(n) as k:
        along[0] += s[k] * inverse * grad[k]
    along[0] = along[0] * (g * (g * inverse - g * norm)) + grad_length[0] * (g * g * inverse * 2.0)
    with code.loop(n) as k:
        grad[k] = g * grad[k] + along[0] * (s[k] * inverse)
