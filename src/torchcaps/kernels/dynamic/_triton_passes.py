"""Kernels of routing by agreement on a GPU. Needs Triton; runs in its interpreter too.

`passes.py` has the equations. In each pass, with u_ij the vote of child i for parent j and V_j the
sum of the parents of the passes before:

    b_ij = <u_ij, V_j>;  c_i = softmax over j of b_ij;  s_j = sum_i c_ij u_ij

and for its gradient dL/dc_ij = <u_ij, dL/ds_j>, dL/db, and sums with dL/db in the place of c.

No votes are made. With u_ij = W_ij p_i of a weight and the pose of the child, all of this is
products of matrices over many children, for a parent's vector x_j and factors f_ij:

    agreements           <u_ij, x_j> = <W_ij' x_j, p_i>
    sums                 sum_i f_ij u_ij = sum_i W_ij (f_ij p_i)
    gradient of weights  sum_b x_j (f_ij p_i)'
    gradient of poses    sum_j f_ij W_ij' x_j

The kernels `squash` and `squash_gradient` turn sums into parents, and back.

A program holds BLOCK_B samples and BLOCK_I children, whose poses are the rows of one matrix
`[BLOCK_B, BLOCK_I * BLOCK_K]`, and goes through parents, or has one: blocks depend on neither the
number of parents nor the batch. Between kernels there are two numbers for a pair of capsules,
`[j, b, i]`. Sums are split among programs and added up by the host: no atomics, so a run repeats
bit for bit.

    pose [b, i, k]   weight [i, j, d, k]   V, grad_s (dL/ds) [b, j, d]   grad_coupling [j, b, i]
    agreement [1 or 2, j, b, i]: logits b_ij and, for the gradient, dL/dc_ij
    child_stats [2 or 3, b, i]: largest b_ij of a child, 1 / sum_j exp(b_ij - largest), and, for the
        gradient, sum_j c_ij dL/dc_ij

MODE says how matrices are multiplied: "ieee" float32, or on tensor cores "tf32" or "bf16". All else
is float32. Letters: b batch, i children, j parents, d and k dimensions of a parent and of a child.
Sizes, in TILE: DIM and IN_DIM are those of d and k, BLOCK_D and BLOCK_K powers of two that are no
smaller.
"""

# mypy: allow-untyped-defs
import triton
import triton.language as tl

from torchcaps.functional.squash import EPSILON

# FACTOR says what the factors f_ij are: the same for all, couplings c_ij, or dL/db_ij.
UNIFORM = tl.constexpr(0)
COUPLING = tl.constexpr(1)
GRADIENT = tl.constexpr(2)
NORM_EPSILON = tl.constexpr(EPSILON)
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def _dot(a, b, MODE: tl.constexpr):
    """Product of matrices, accumulated in float32."""
    if MODE == "bf16":
        a = a.to(tl.bfloat16)
        b = b.to(tl.bfloat16)
        # The interpreter would multiply the bits of bfloat16 as integers.
        if INTERPRETED:
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        product = tl.dot(a, b)
    else:
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=MODE)
    return product


@triton.jit
def _block_samples(index, TILE: tl.constexpr):
    """Numbers of the samples of a block."""
    return index * TILE.BLOCK_B + tl.arange(0, TILE.BLOCK_B).to(tl.int64)


@triton.jit
def _locate_poses(samples, batch, first, children, TILE: tl.constexpr):
    """Offsets of the poses from child `first` on, and a mask of those that exist.

    Both are `[BLOCK_B, BLOCK_I * BLOCK_K]`.
    """
    columns = tl.arange(0, TILE.BLOCK_I * TILE.BLOCK_K)
    i = first + columns // TILE.BLOCK_K
    k = columns % TILE.BLOCK_K
    offsets = (samples[:, None] * children + i[None, :]) * TILE.IN_DIM + k[None, :]
    mask = (samples < batch)[:, None] & ((i < children) & (k < TILE.IN_DIM))[None, :]
    return offsets, mask


@triton.jit
def _locate_weights(j, first, children, parents, TILE: tl.constexpr):
    """Offsets of the weights of parent j from child `first` on, and a mask of those that exist.

    Both are `[BLOCK_D, BLOCK_I * BLOCK_K]`.
    """
    columns = tl.arange(0, TILE.BLOCK_I * TILE.BLOCK_K)
    d = tl.arange(0, TILE.BLOCK_D)
    i = (first + columns // TILE.BLOCK_K).to(tl.int64)
    k = columns % TILE.BLOCK_K
    offsets = ((i * parents + j)[None, :] * TILE.DIM + d[:, None]) * TILE.IN_DIM + k[None, :]
    mask = (d < TILE.DIM)[:, None] & ((i < children) & (k < TILE.IN_DIM))[None, :]
    return offsets, mask


@triton.jit
def _locate_parent(j, samples, batch, parents, TILE: tl.constexpr):
    """Offsets of parent j in `[b, j, d]`, and a mask of what exists; `[BLOCK_B, BLOCK_D]`."""
    d = tl.arange(0, TILE.BLOCK_D)
    offsets = (samples[:, None] * parents + j) * TILE.DIM + d[None, :]
    mask = (samples < batch)[:, None] & (d < TILE.DIM)[None, :]
    return offsets, mask


@triton.jit
def _locate_pairs(samples, batch, first, children, TILE: tl.constexpr):
    """Offsets in `[b, i]` from child `first` on, and a mask; both are `[BLOCK_B, BLOCK_I]`."""
    i = first + tl.arange(0, TILE.BLOCK_I)
    offsets = samples[:, None] * children + i[None, :]
    mask = (samples < batch)[:, None] & (i < children)[None, :]
    return offsets, mask


@triton.jit
def _load(x, location):
    """Numbers of a tensor x at a location, (offsets, mask); zeros where the mask is false."""
    offsets, mask = location
    return tl.load(x + offsets, mask, 0.0)


@triton.jit
def _scale(x, factor, TILE: tl.constexpr):
    """x `[BLOCK_B, BLOCK_I * BLOCK_K]` times a factor for each sample and child."""
    x = (
        tl.reshape(x, (TILE.BLOCK_B, TILE.BLOCK_I, TILE.BLOCK_K)).to(tl.float32)
        * factor[:, :, None]
    )
    return tl.reshape(x, (TILE.BLOCK_B, TILE.BLOCK_I * TILE.BLOCK_K))


@triton.jit
def _agreement(p, w, x, MODE: tl.constexpr, TILE: tl.constexpr):
    """<u, x> `[BLOCK_B, BLOCK_I]` for a parent's weights w and vector x, and poses p."""
    return tl.sum(
        tl.reshape(_dot(x, w, MODE) * p, (TILE.BLOCK_B, TILE.BLOCK_I, TILE.BLOCK_K)), axis=2
    )


@triton.jit
def _couplings(
    agreement, child_stats, j, location, batch, children, parents, WITH_GRADIENT: tl.constexpr
):
    """Coupling c_ij with parent j and, if WITH_GRADIENT, dL/db_ij; else the coupling twice.

    Both are `[BLOCK_B, BLOCK_I]`, at a location of `_locate_pairs`.
    """
    num_pairs = batch.to(tl.int64) * children  # of one parent
    logit = _load(agreement + j * num_pairs, location)
    largest = _load(child_stats, location)
    inverse_total = _load(child_stats + num_pairs, location)
    c = tl.exp(logit - largest) * inverse_total
    grad = c
    if WITH_GRADIENT:
        grad_c = _load(agreement + (parents + j) * num_pairs, location)
        mean = _load(child_stats + 2 * num_pairs, location)
        grad = c * (grad_c - mean)
    return c, grad


@triton.jit(do_not_specialize=["batch", "parents"])
def agreements(
    pose,
    weight,
    V,
    grad_s,
    grad_coupling,
    agreement,
    child_stats,
    batch,
    children,
    parents,
    LEAKY: tl.constexpr,
    BACKWARD: tl.constexpr,
    OUTER: tl.constexpr,
    MODE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write agreements, and what makes couplings of them: an online softmax over parents.

    If LEAKY, one more logit of zero takes part. If BACKWARD, dL/dc = <u, grad_s>, and the third row
    of `child_stats`, are written too. If OUTER, grad_coupling is added to dL/dc.
    """
    first = tl.program_id(0) * TILE.BLOCK_I
    samples = _block_samples(tl.program_id(1), TILE)
    p = _load(pose, _locate_poses(samples, batch, first, children, TILE)).to(tl.float32)
    offsets, mask = _locate_pairs(samples, batch, first, children, TILE)
    num_pairs = batch.to(tl.int64) * children  # of one parent
    # The sums over parents are in units of the exponential of the largest logit so far.
    largest = tl.full((TILE.BLOCK_B, TILE.BLOCK_I), 0.0 if LEAKY else float("-inf"), tl.float32)
    total = tl.full((TILE.BLOCK_B, TILE.BLOCK_I), 1.0 if LEAKY else 0.0, tl.float32)
    # Not `tl.zeros`, which takes no sizes out of a tuple in Triton 3.6.
    grad_total = tl.full((TILE.BLOCK_B, TILE.BLOCK_I), 0.0, tl.float32)
    for j in range(parents):
        w = _load(
            weight,
            _locate_weights(j, first, children, parents, TILE),
        )
        x = _load(V, _locate_parent(j, samples, batch, parents, TILE))
        logit = _agreement(p, w, x, MODE, TILE)
        tl.store(agreement + j * num_pairs + offsets, logit, mask)
        new_largest = tl.maximum(largest, logit)
        shrink = tl.exp(largest - new_largest)
        weight_j = tl.exp(logit - new_largest)
        largest = new_largest
        total = total * shrink + weight_j
        if BACKWARD:
            x = _load(grad_s, _locate_parent(j, samples, batch, parents, TILE))
            grad_c = _agreement(p, w, x, MODE, TILE)
            if OUTER:
                grad_c += tl.load(grad_coupling + j * num_pairs + offsets, mask, 0.0)
            tl.store(agreement + (parents + j) * num_pairs + offsets, grad_c, mask)
            grad_total = grad_total * shrink + weight_j * grad_c
    tl.store(child_stats + offsets, largest, mask)
    tl.store(child_stats + num_pairs + offsets, 1.0 / total, mask)
    if BACKWARD:
        tl.store(child_stats + 2 * num_pairs + offsets, grad_total / total, mask)


@triton.jit(do_not_specialize=["batch", "parents"])
def sums(
    pose,
    weight,
    agreement,
    child_stats,
    partial,
    batch,
    children,
    parents,
    per_split,
    FACTOR: tl.constexpr,
    MODE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write partial `[split, b, j, d]`: sums of f_ij u_ij over `per_split` children.

    If FACTOR is UNIFORM, f_ij is 1.
    """
    samples = _block_samples(tl.program_id(1), TILE)
    j = tl.program_id(2)
    total = tl.full((TILE.BLOCK_B, TILE.BLOCK_D), 0.0, tl.float32)
    start = tl.program_id(0) * per_split
    for first in range(start, tl.minimum(start + per_split, children), TILE.BLOCK_I):
        p = _load(pose, _locate_poses(samples, batch, first, children, TILE))
        if FACTOR != UNIFORM:
            pairs = _locate_pairs(samples, batch, first, children, TILE)
            # The coupling, or dL/db.
            _, f = _couplings(
                agreement, child_stats, j, pairs, batch, children, parents, FACTOR == GRADIENT
            )
            p = _scale(p, f, TILE)
        w = _load(
            weight,
            _locate_weights(j, first, children, parents, TILE),
        )
        total += _dot(p, tl.trans(w), MODE)
    offsets, mask = _locate_parent(j, samples, batch, parents, TILE)
    split = tl.program_id(0).to(tl.int64) * batch * parents * TILE.DIM
    tl.store(partial + split + offsets, total, mask)


@triton.jit(do_not_specialize=["batch", "parents"])
def weight_gradient(
    pose,
    V,
    grad_s,
    agreement,
    child_stats,
    grad_weight,
    batch,
    children,
    parents,
    uniform,
    FACTOR: tl.constexpr,
    MODE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Add to dL/dW, over all samples, dL/du p' of a pass.

    dL/du is c grad_s, with `uniform` for c if FACTOR is UNIFORM, and + dL/db V if it is GRADIENT.
    """
    first = tl.program_id(0) * TILE.BLOCK_I
    j = tl.program_id(1)
    total = tl.full((TILE.BLOCK_D, TILE.BLOCK_I * TILE.BLOCK_K), 0.0, tl.float32)
    for start in range(0, batch, TILE.BLOCK_B):
        samples = start + tl.arange(0, TILE.BLOCK_B).to(tl.int64)
        p = _load(pose, _locate_poses(samples, batch, first, children, TILE))
        x = _load(grad_s, _locate_parent(j, samples, batch, parents, TILE))
        if FACTOR == UNIFORM:
            total += _dot(tl.trans(x), p, MODE) * uniform
        else:
            pairs = _locate_pairs(samples, batch, first, children, TILE)
            c, g = _couplings(
                agreement, child_stats, j, pairs, batch, children, parents, FACTOR == GRADIENT
            )
            total += _dot(tl.trans(x), _scale(p, c, TILE), MODE)
            if FACTOR == GRADIENT:
                x = _load(V, _locate_parent(j, samples, batch, parents, TILE))
                total += _dot(tl.trans(x), _scale(p, g, TILE), MODE)
    offsets, mask = _locate_weights(j, first, children, parents, TILE)
    previous = tl.load(grad_weight + offsets, mask, 0.0)
    tl.store(grad_weight + offsets, previous + total, mask)


@triton.jit(do_not_specialize=["batch", "parents"])
def pose_gradient(
    weight,
    V,
    grad_s,
    agreement,
    child_stats,
    grad_pose,
    batch,
    children,
    parents,
    uniform,
    FACTOR: tl.constexpr,
    MODE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Add to dL/dp, over all parents, W' dL/du, with dL/du as in `weight_gradient`."""
    first = tl.program_id(0) * TILE.BLOCK_I
    samples = _block_samples(tl.program_id(1), TILE)
    pairs = _locate_pairs(samples, batch, first, children, TILE)
    offsets, mask = _locate_poses(samples, batch, first, children, TILE)
    total = tl.full((TILE.BLOCK_B, TILE.BLOCK_I * TILE.BLOCK_K), 0.0, tl.float32)
    for j in range(parents):
        w = _load(
            weight,
            _locate_weights(j, first, children, parents, TILE),
        )
        x = _load(grad_s, _locate_parent(j, samples, batch, parents, TILE))
        if FACTOR == UNIFORM:
            total += _dot(x, w, MODE) * uniform
        else:
            c, g = _couplings(
                agreement, child_stats, j, pairs, batch, children, parents, FACTOR == GRADIENT
            )
            total += _scale(_dot(x, w, MODE), c, TILE)
            if FACTOR == GRADIENT:
                x = _load(V, _locate_parent(j, samples, batch, parents, TILE))
                total += _scale(_dot(x, w, MODE), g, TILE)
    previous = tl.load(grad_pose + offsets, mask, 0.0)
    tl.store(grad_pose + offsets, previous + total, mask)


@triton.jit
def _rescale(x):
    """Vectors, the rows of x, in units of their largest number (at least one); norms in these.

    Returns them with the units; `functional.squash` has the reason.
    """
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), 1.0)
    x = x / scale[:, None]
    return x, tl.sqrt(tl.sum(x * x, axis=1) + NORM_EPSILON), scale


@triton.jit(do_not_specialize=["batch", "parents"])
def squash(s, v, length, batch, parents, TILE: tl.constexpr):
    """Write v = squash(s) `[b, j, d]` and its length `[b, j]`."""
    samples = _block_samples(tl.program_id(0), TILE)
    j = tl.program_id(1)
    offsets, mask = _locate_parent(j, samples, batch, parents, TILE)
    x, norm, scale = _rescale(tl.load(s + offsets, mask, 0.0))
    factor = 1.0 / (1.0 / (scale * scale * norm) + norm)
    tl.store(v + offsets, x * factor[:, None], mask)
    tl.store(length + samples * parents + j, norm * factor, samples < batch)


@triton.jit(do_not_specialize=["batch", "parents"])
def squash_gradient(
    s, grad_v, grad_length, grad_s, batch, parents, HAS_LENGTH: tl.constexpr, TILE: tl.constexpr
):
    """Write dL/ds `[b, j, d]`, of dL/dv and, if HAS_LENGTH, of dL/d|v| `[b, j]`.

    `numerics.squash_backward` has the equation.
    """
    samples = _block_samples(tl.program_id(0), TILE)
    j = tl.program_id(1)
    offsets, mask = _locate_parent(j, samples, batch, parents, TILE)
    x, norm, scale = _rescale(tl.load(s + offsets, mask, 0.0))
    n = scale * norm
    g = 1.0 / (1.0 / n + n)
    unit = x / norm[:, None]
    grad = tl.load(grad_v + offsets, mask, 0.0)
    radial = g * (g / n - g * n) * tl.sum(unit * grad, axis=1)
    if HAS_LENGTH:
        by_length = tl.load(grad_length + samples * parents + j, samples < batch, 0.0)
        radial += 2.0 * g * g / n * by_length
    tl.store(grad_s + offsets, g[:, None] * grad + radial[:, None] * unit, mask)
