"""Kernels of routing by agreement on a GPU. Needs Triton; runs in its interpreter too.

No votes are made. With u_ij = W_ij p_i, all that routing needs of a parent are products of matrices over many children:

    agreement   <u_ij, x_j> = <W_ij' x_j, p_i>            sum   sum_i f_ij u_ij = sum_i W_ij (f_ij p_i)
    of weights  sum_b x_j (f_ij p_i)'                     of poses   sum_j f_ij W_ij' x_j

A program holds BLOCK_B samples and BLOCK_I children, whose poses are the rows of one matrix `[BLOCK_B, BLOCK_I *
BLOCK_K]`, and goes through parents, or has one: tiles depend on neither the number of parents nor the batch. Between
kernels there are two numbers for a pair of capsules, `[j, b, i]`. Sums are split among programs and added up by the
host: no atomics, so a run repeats bit for bit.

MODE says how matrices are multiplied: "ieee" float32, or on tensor cores "tf32" or "bf16". All else is float32.
Letters: b batch, i children, j parents, d and k dimensions of a parent and of a child.
"""

# mypy: allow-untyped-defs
import triton
import triton.language as tl

# FACTOR, what votes are weighed with.
UNIFORM, COUPLING, GRADIENT = (tl.constexpr(n) for n in range(3))
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def _dot(a, b, MODE: tl.constexpr):
    """Product of matrices, in float32; the interpreter would multiply the bits of bfloat16 as integers."""
    if MODE == "bf16":
        a, b = a.to(tl.bfloat16), b.to(tl.bfloat16)
        if INTERPRETED:
            a, b = a.to(tl.float32), b.to(tl.float32)
        product = tl.dot(a, b)
    else:
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=MODE)
    return product


@triton.jit
def _pose_at(
    rows, batch, first, children, IN_DIM: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Of poses from child `first` on, `[BLOCK_B, BLOCK_I * BLOCK_K]`: where they are, and which of them exist."""
    n = tl.arange(0, BLOCK_I * BLOCK_K)
    i, k = first + n // BLOCK_K, n % BLOCK_K
    inside = (rows < batch)[:, None] & ((i < children) & (k < IN_DIM))[None, :]
    return (rows[:, None] * children + i[None, :]) * IN_DIM + k[None, :], inside


@triton.jit
def _weight_at(
    j,
    first,
    children,
    parents,
    DIM: tl.constexpr,
    IN_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Of the weights of parent j, `[BLOCK_D, BLOCK_I * BLOCK_K]`: where they are, and which of them exist."""
    n, d = tl.arange(0, BLOCK_I * BLOCK_K), tl.arange(0, BLOCK_D)
    i, k = (first + n // BLOCK_K).to(tl.int64), n % BLOCK_K
    inside = (d < DIM)[:, None] & ((i < children) & (k < IN_DIM))[None, :]
    return ((i * parents + j)[None, :] * DIM + d[:, None]) * IN_DIM + k[None, :], inside


@triton.jit
def _parent_at(j, rows, batch, parents, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Of parent j in `[b, j, d]`, `[BLOCK_B, BLOCK_D]`: where it is, and what of it exists."""
    d = tl.arange(0, BLOCK_D)
    return (rows[:, None] * parents + j) * DIM + d[None, :], (rows < batch)[:, None] & (d < DIM)[
        None, :
    ]


@triton.jit
def _pair_at(rows, batch, first, children, BLOCK_I: tl.constexpr):
    """Of `[b, i]`, `[BLOCK_B, BLOCK_I]`: where they are, and which of them exist."""
    i = first + tl.arange(0, BLOCK_I)
    return rows[:, None] * children + i[None, :], (rows < batch)[:, None] & (i < children)[None, :]


@triton.jit
def _load(x, place):
    """What is at one of these places; zeros where nothing is."""
    at, inside = place
    return tl.load(x + at, inside, 0.0)


@triton.jit
def _scaled(x, by, BLOCK_B: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_K: tl.constexpr):
    """x `[BLOCK_B, BLOCK_I * BLOCK_K]` times a number for each sample and child."""
    x = tl.reshape(x, (BLOCK_B, BLOCK_I, BLOCK_K)).to(tl.float32) * by[:, :, None]
    return tl.reshape(x, (BLOCK_B, BLOCK_I * BLOCK_K))


@triton.jit
def _agreement(
    p, w, x, MODE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_K: tl.constexpr
):
    """<vote, x> `[BLOCK_B, BLOCK_I]` for a parent's weights w and vector x."""
    return tl.sum(tl.reshape(_dot(x, w, MODE) * p, (BLOCK_B, BLOCK_I, BLOCK_K)), axis=2)


@triton.jit
def _couplings(agreed, stats, j, place, batch, children, parents, GRADIENT_TOO: tl.constexpr):
    """Coupling with parent j and, if wanted, the gradient of its logit, `[BLOCK_B, BLOCK_I]`; else the coupling twice.

    agreed `[2, j, b, i]` and stats `[3, b, i]` as `agreements` leaves them.
    """
    size = batch.to(tl.int64) * children
    c = tl.exp(_load(agreed + j * size, place) - _load(stats, place)) * _load(stats + size, place)
    grad = c
    if GRADIENT_TOO:
        grad = c * (_load(agreed + (parents + j) * size, place) - _load(stats + 2 * size, place))
    return c, grad


@triton.jit(do_not_specialize=["batch", "parents"])
def agreements(
    pose,
    weight,
    reached,
    grad_s,
    grad_coupling,
    agreed,
    stats,
    batch,
    children,
    parents,
    DIM: tl.constexpr,
    IN_DIM: tl.constexpr,
    LEAKY: tl.constexpr,
    BACKWARD: tl.constexpr,
    OUTER: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Logits, and what makes couplings of them: an online softmax over parents; if leaky, over one more logit, of zero.

    agreed `[2, j, b, i]`: logits <u, reached>; if BACKWARD, dL/dcoupling = <u, grad_s>, if OUTER + grad_coupling.
    stats `[3, b, i]`: the largest logit, 1 / the sum of exponentials; if BACKWARD, sum_j of c dL/dcoupling.
    """
    first = tl.program_id(0) * BLOCK_I
    rows = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B).to(tl.int64)
    p = _load(pose, _pose_at(rows, batch, first, children, IN_DIM, BLOCK_I, BLOCK_K)).to(tl.float32)
    at, inside = _pair_at(rows, batch, first, children, BLOCK_I)
    size = batch.to(tl.int64) * children
    high = tl.full((BLOCK_B, BLOCK_I), 0.0 if LEAKY else float("-inf"), tl.float32)
    total = tl.full((BLOCK_B, BLOCK_I), 1.0 if LEAKY else 0.0, tl.float32)
    inner = tl.zeros((BLOCK_B, BLOCK_I), tl.float32)
    for j in range(parents):
        w = _load(
            weight, _weight_at(j, first, children, parents, DIM, IN_DIM, BLOCK_D, BLOCK_I, BLOCK_K)
        )
        x = _load(reached, _parent_at(j, rows, batch, parents, DIM, BLOCK_D))
        logit = _agreement(p, w, x, MODE, BLOCK_B, BLOCK_I, BLOCK_K)
        tl.store(agreed + j * size + at, logit, inside)
        higher = tl.maximum(high, logit)
        shrunk, e = tl.exp(high - higher), tl.exp(logit - higher)
        high, total = higher, total * shrunk + e
        if BACKWARD:
            x = _load(grad_s, _parent_at(j, rows, batch, parents, DIM, BLOCK_D))
            grad_c = _agreement(p, w, x, MODE, BLOCK_B, BLOCK_I, BLOCK_K)
            if OUTER:
                grad_c += tl.load(grad_coupling + j * size + at, inside, 0.0)
            tl.store(agreed + (parents + j) * size + at, grad_c, inside)
            inner = inner * shrunk + e * grad_c
    tl.store(stats + at, high, inside)
    tl.store(stats + size + at, 1.0 / total, inside)
    if BACKWARD:
        tl.store(stats + 2 * size + at, inner / total, inside)


@triton.jit(do_not_specialize=["batch", "parents"])
def sums(
    pose,
    weight,
    agreed,
    stats,
    partial,
    batch,
    children,
    parents,
    per_split,
    DIM: tl.constexpr,
    IN_DIM: tl.constexpr,
    FACTOR: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """partial `[split, b, j, d]` = sum over the split's children of f u: f 1, the coupling or its logit's gradient."""
    rows = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B).to(tl.int64)
    j = tl.program_id(2)
    total = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    start = tl.program_id(0) * per_split
    for first in range(start, tl.minimum(start + per_split, children), BLOCK_I):
        p = _load(pose, _pose_at(rows, batch, first, children, IN_DIM, BLOCK_I, BLOCK_K))
        if FACTOR != UNIFORM:
            pairs = _pair_at(rows, batch, first, children, BLOCK_I)
            _, f = _couplings(agreed, stats, j, pairs, batch, children, parents, FACTOR == GRADIENT)
            p = _scaled(p, f, BLOCK_B, BLOCK_I, BLOCK_K)
        w = _load(
            weight, _weight_at(j, first, children, parents, DIM, IN_DIM, BLOCK_D, BLOCK_I, BLOCK_K)
        )
        total += _dot(p, tl.trans(w), MODE)
    at, inside = _parent_at(j, rows, batch, parents, DIM, BLOCK_D)
    tl.store(partial + tl.program_id(0).to(tl.int64) * batch * parents * DIM + at, total, inside)


@triton.jit(do_not_specialize=["batch", "parents"])
def weight_gradient(
    pose,
    reached,
    grad_s,
    agreed,
    stats,
    grad_weight,
    batch,
    children,
    parents,
    uniform,
    DIM: tl.constexpr,
    IN_DIM: tl.constexpr,
    FACTOR: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Add to dL/dW, over all samples, dL/du p': of a pass, dL/du = c grad_s and, if GRADIENT, + dL/dlogit reached."""
    first, j = tl.program_id(0) * BLOCK_I, tl.program_id(1)
    total = tl.zeros((BLOCK_D, BLOCK_I * BLOCK_K), tl.float32)
    for start in range(0, batch, BLOCK_B):
        rows = start + tl.arange(0, BLOCK_B).to(tl.int64)
        p = _load(pose, _pose_at(rows, batch, first, children, IN_DIM, BLOCK_I, BLOCK_K))
        x = _load(grad_s, _parent_at(j, rows, batch, parents, DIM, BLOCK_D))
        if FACTOR == UNIFORM:
            total += _dot(tl.trans(x), p, MODE) * uniform
        else:
            pairs = _pair_at(rows, batch, first, children, BLOCK_I)
            c, g = _couplings(agreed, stats, j, pairs, batch, children, parents, FACTOR == GRADIENT)
            total += _dot(tl.trans(x), _scaled(p, c, BLOCK_B, BLOCK_I, BLOCK_K), MODE)
            if FACTOR == GRADIENT:
                x = _load(reached, _parent_at(j, rows, batch, parents, DIM, BLOCK_D))
                total += _dot(tl.trans(x), _scaled(p, g, BLOCK_B, BLOCK_I, BLOCK_K), MODE)
    at, inside = _weight_at(j, first, children, parents, DIM, IN_DIM, BLOCK_D, BLOCK_I, BLOCK_K)
    tl.store(grad_weight + at, tl.load(grad_weight + at, inside, 0.0) + total, inside)


@triton.jit(do_not_specialize=["batch", "parents"])
def pose_gradient(
    weight,
    reached,
    grad_s,
    agreed,
    stats,
    grad_pose,
    batch,
    children,
    parents,
    uniform,
    DIM: tl.constexpr,
    IN_DIM: tl.constexpr,
    FACTOR: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Add to dL/dp, over all parents, W' dL/du, dL/du as in `weight_gradient`."""
    first = tl.program_id(0) * BLOCK_I
    rows = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B).to(tl.int64)
    pairs = _pair_at(rows, batch, first, children, BLOCK_I)
    to, inside = _pose_at(rows, batch, first, children, IN_DIM, BLOCK_I, BLOCK_K)
    total = tl.zeros((BLOCK_B, BLOCK_I * BLOCK_K), tl.float32)
    for j in range(parents):
        w = _load(
            weight, _weight_at(j, first, children, parents, DIM, IN_DIM, BLOCK_D, BLOCK_I, BLOCK_K)
        )
        x = _load(grad_s, _parent_at(j, rows, batch, parents, DIM, BLOCK_D))
        if FACTOR == UNIFORM:
            total += _dot(x, w, MODE) * uniform
        else:
            c, g = _couplings(agreed, stats, j, pairs, batch, children, parents, FACTOR == GRADIENT)
            total += _scaled(_dot(x, w, MODE), c, BLOCK_B, BLOCK_I, BLOCK_K)
            if FACTOR == GRADIENT:
                x = _load(reached, _parent_at(j, rows, batch, parents, DIM, BLOCK_D))
                total += _scaled(_dot(x, w, MODE), g, BLOCK_B, BLOCK_I, BLOCK_K)
    tl.store(grad_pose + to, tl.load(grad_pose + to, inside, 0.0) + total, inside)
