"""Kernels of routing by agreement on a GPU. Needs Triton; runs in its interpreter too.

A program holds the votes of BLOCK_B samples and one child, `[BLOCK_B, BLOCK_J, BLOCK_D]`, made from the weights of that
child by a matrix product: they are read once for BLOCK_B samples, and votes never leave the registers. Sums over
children are split among programs and added up by the host: no atomics, so a run repeats bit for bit. Inputs may be
float32, bfloat16 or float16; all else is float32. Letters: b batch, i children, j parents, d and k dimensions of a
parent and of a child.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TILES = [(16, 4), (16, 8), (32, 4), (32, 8)]  # (BLOCK_B, warps)


def tuned(*key: str) -> Any:
    """Decorator: choose the number of samples of a program and its warps by trial; the interpreter takes the first."""
    tiles = TILES[:1] if triton.knobs.runtime.interpret else TILES
    configs = [triton.Config({"BLOCK_B": block}, num_warps=warps) for block, warps in tiles]
    return triton.autotune(configs, key=[*key])


@triton.jit
def _votes(
    pose, weight, rows, row_in, i, children, PARENTS, DIM, IN_DIM,
    BLOCK_B: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Child i: votes `[BLOCK_B, BLOCK_J, BLOCK_D]`, poses `[BLOCK_B, BLOCK_K]`, weights `[BLOCK_JD, BLOCK_K]`."""
    k = tl.arange(0, BLOCK_K)
    n = tl.arange(0, BLOCK_J * BLOCK_D)
    j, d = (n // BLOCK_D).to(tl.int64), n % BLOCK_D
    p = tl.load(
        pose + (rows[:, None] * children + i) * IN_DIM + k[None, :], row_in[:, None] & (k < IN_DIM)[None, :], 0.0
    )
    inside = ((j < PARENTS) & (d < DIM))[:, None] & (k < IN_DIM)[None, :]
    at = (i * PARENTS + j[:, None]) * DIM + d[:, None]
    w = tl.load(weight + at * IN_DIM + k[None, :], inside, 0.0)
    p, w = p.to(tl.float32), w.to(tl.float32)  # exact; the interpreter cannot multiply bfloat16
    u = tl.dot(p, tl.trans(w), input_precision="ieee")
    return tl.reshape(u, (BLOCK_B, BLOCK_J, BLOCK_D)), p, w


@triton.jit
def _softmax(logits, real, LEAKY: tl.constexpr):
    """Over parents, `[BLOCK_B, BLOCK_J]`; `real` marks those that exist. If leaky, with one more logit, of zero."""
    logits = tl.where(real[None, :], logits, float("-inf"))
    high = tl.max(logits, axis=1)
    if LEAKY:
        high = tl.maximum(high, 0.0)
    e = tl.exp(logits - high[:, None])
    total = tl.sum(e, axis=1)
    if LEAKY:
        total += tl.exp(-high)
    return e / total[:, None]


@triton.jit
def _gradient_of_logits(c, u, grad_s, grad_coupling, pairs, pair_in, OUTER: tl.constexpr):
    """dL/dlogits `[BLOCK_B, BLOCK_J]` from dL/ds and, if OUTER, the coupling's own gradient at `pairs`."""
    grad_c = tl.sum(u * grad_s, axis=2)
    if OUTER:
        grad_c += tl.load(grad_coupling + pairs, pair_in, 0.0)
    return c * (grad_c - tl.sum(c * grad_c, axis=1)[:, None])


@tuned("PARENTS", "DIM", "IN_DIM", "batch", "UNIFORM")
@triton.jit
def forward_pass(
    pose, weight, reached, partial, coupling, batch, children, per_split,
    PARENTS: tl.constexpr, DIM: tl.constexpr, IN_DIM: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr, UNIFORM: tl.constexpr, LEAKY: tl.constexpr, KEEP: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """partial `[split, b, j, d]` = sum over the split's children of c_ij u_ij; of u_ij alone if UNIFORM."""
    rows = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B).to(tl.int64)
    j, d = tl.arange(0, BLOCK_J), tl.arange(0, BLOCK_D)
    row_in, real = rows < batch, j < PARENTS
    at = (rows[:, None, None] * PARENTS + j[None, :, None]) * DIM + d[None, None, :]
    inside = row_in[:, None, None] & real[None, :, None] & (d < DIM)[None, None, :]
    total = tl.zeros((BLOCK_B, BLOCK_J, BLOCK_D), tl.float32)
    before = tl.load(reached + at, inside, 0.0)
    start = tl.program_id(1) * per_split
    for i in range(start, tl.minimum(start + per_split, children)):
        u, _, _ = _votes(
            pose, weight, rows, row_in, i, children, PARENTS, DIM, IN_DIM, BLOCK_B, BLOCK_J, BLOCK_D, BLOCK_K
        )
        if UNIFORM:
            total += u
        else:
            c = _softmax(tl.sum(u * before, axis=2), real, LEAKY)
            total += c[:, :, None] * u
            if KEEP:
                pairs = (rows[:, None] * children + i) * PARENTS + j[None, :]
                tl.store(coupling + pairs, c, row_in[:, None] & real[None, :])
    tl.store(partial + tl.program_id(1).to(tl.int64) * batch * PARENTS * DIM + at, total, inside)


@tuned("PARENTS", "DIM", "IN_DIM", "batch")
@triton.jit
def backward_pass(
    pose, weight, reached, grad_s, grad_coupling, partial, batch, children, per_split,
    PARENTS: tl.constexpr, DIM: tl.constexpr, IN_DIM: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr, LEAKY: tl.constexpr, OUTER: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """partial `[split, b, j, d]` = dL/dreached = sum over the split's children of dL/dlogit_ij u_ij."""
    rows = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B).to(tl.int64)
    j, d = tl.arange(0, BLOCK_J), tl.arange(0, BLOCK_D)
    row_in, real = rows < batch, j < PARENTS
    at = (rows[:, None, None] * PARENTS + j[None, :, None]) * DIM + d[None, None, :]
    inside = row_in[:, None, None] & real[None, :, None] & (d < DIM)[None, None, :]
    total = tl.zeros((BLOCK_B, BLOCK_J, BLOCK_D), tl.float32)
    before, grad = tl.load(reached + at, inside, 0.0), tl.load(grad_s + at, inside, 0.0)
    start = tl.program_id(1) * per_split
    for i in range(start, tl.minimum(start + per_split, children)):
        u, _, _ = _votes(
            pose, weight, rows, row_in, i, children, PARENTS, DIM, IN_DIM, BLOCK_B, BLOCK_J, BLOCK_D, BLOCK_K
        )
        c = _softmax(tl.sum(u * before, axis=2), real, LEAKY)
        pairs = (rows[:, None] * children + i) * PARENTS + j[None, :]
        grad_logits = _gradient_of_logits(c, u, grad, grad_coupling, pairs, row_in[:, None] & real[None, :], OUTER)
        total += grad_logits[:, :, None] * u
    tl.store(partial + tl.program_id(1).to(tl.int64) * batch * PARENTS * DIM + at, total, inside)


@tuned("PARENTS", "DIM", "IN_DIM", "batch", "ITERATIONS")
@triton.jit
def gradients(
    pose, weight, reached, grad_s, grad_coupling, grad_pose, grad_weight, batch, children, uniform,
    PARENTS: tl.constexpr, DIM: tl.constexpr, IN_DIM: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr, ITERATIONS: tl.constexpr, LEAKY: tl.constexpr, DETACH: tl.constexpr, OUTER: tl.constexpr,
    BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Gradients of a child's poses and weights over all samples, in float32; reached and grad_s are `[t, b, j, d]`."""
    i = tl.program_id(0)
    j, d, k = tl.arange(0, BLOCK_J), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_K)
    n = tl.arange(0, BLOCK_J * BLOCK_D)
    real = j < PARENTS
    total = tl.zeros((BLOCK_J * BLOCK_D, BLOCK_K), tl.float32)
    for start in range(0, batch, BLOCK_B):
        rows = start + tl.arange(0, BLOCK_B).to(tl.int64)
        row_in = rows < batch
        at = (rows[:, None, None] * PARENTS + j[None, :, None]) * DIM + d[None, None, :]
        inside = row_in[:, None, None] & real[None, :, None] & (d < DIM)[None, None, :]
        pairs, pair_in = (rows[:, None] * children + i) * PARENTS + j[None, :], row_in[:, None] & real[None, :]
        u, p, w = _votes(
            pose, weight, rows, row_in, i, children, PARENTS, DIM, IN_DIM, BLOCK_B, BLOCK_J, BLOCK_D, BLOCK_K
        )
        grad_u = tl.zeros((BLOCK_B, BLOCK_J, BLOCK_D), tl.float32)
        if ITERATIONS == 1 or not DETACH:
            grad_u = uniform * tl.load(grad_s + at, inside, 0.0)
        for t in tl.static_range(1, ITERATIONS):
            if t == ITERATIONS - 1 or not DETACH:
                before = tl.load(reached + (t - 1) * batch * PARENTS * DIM + at, inside, 0.0)
                grad = tl.load(grad_s + t * batch * PARENTS * DIM + at, inside, 0.0)
                c = _softmax(tl.sum(u * before, axis=2), real, LEAKY)
                grad_u += c[:, :, None] * grad
                if not DETACH:
                    own = OUTER and t == ITERATIONS - 1
                    grad_logits = _gradient_of_logits(c, u, grad, grad_coupling, pairs, pair_in, own)
                    grad_u += grad_logits[:, :, None] * before
        flat = tl.reshape(grad_u, (BLOCK_B, BLOCK_J * BLOCK_D))
        found = tl.dot(flat, w, input_precision="ieee")
        to = (rows[:, None] * children + i) * IN_DIM + k[None, :]
        tl.store(grad_pose + to, found, row_in[:, None] & (k < IN_DIM)[None, :])
        total += tl.dot(tl.trans(flat), p, input_precision="ieee")
    own_j, own_d = (n // BLOCK_D).to(tl.int64), n % BLOCK_D
    to = ((i * PARENTS + own_j[:, None]) * DIM + own_d[:, None]) * IN_DIM + k[None, :]
    tl.store(grad_weight + to, total, ((own_j < PARENTS) & (own_d < DIM))[:, None] & (k < IN_DIM)[None, :])
