"""Vector instructions for the compiled loops of routing by agreement. Needs numba.

As in `simd/vectors.py`, a vector holds one number of each of LANES samples, and arrays are flat. BLOCK numbers of a
child's pose stay in registers while its votes are made, row by row: `w` are the numbers of its matrix, in rows of as
many as a pose has, `blocks` times BLOCK. A vote never waits in memory for what it is multiplied with.
"""

# mypy: allow-untyped-defs
from typing import Any

from torchcaps.kernels.simd._vectors import Code, Value, Vectors, operation
from torchcaps.kernels.simd.lanes import BLOCK

ROWS = 4  # rows that `spread_rows` does at once: each factor is loaded once for all of them


def _make_votes(code: Code, w: Vectors, x: Vectors, blocks: Value, n: Value, take: Any) -> None:
    """take(r, v, first) with v = sum_k w(r, k) x[k] over each block of k; the first block is told."""

    def block(at: Any, first: bool) -> None:
        known = [x[at + k] for k in range(BLOCK)]
        with code.loop(n) as r:
            terms = [w.lone(r * (blocks * BLOCK) + (at + k)) * each for k, each in enumerate(known)]
            take(r, sum(terms[1:], terms[0]), first)

    block(0, True)
    with code.loop(blocks - 1) as later:
        block((later + 1) * BLOCK, False)


def _vote(
    code: Code,
    w: Vectors,
    x: Vectors,
    blocks: Value,
    n: Value,
    votes: Vectors,
    *dots: tuple[Vectors, Vectors],
) -> None:
    """votes[r] = sum_k w(r, k) x[k]; out = sum_r votes[r] against[r] for each of `dots`, (against, out)."""
    totals = [code.variable(0.0) for _ in dots]

    def take(r: Value, v: Value, first: bool) -> None:
        for total, (against, _) in zip(totals, dots, strict=True):
            total[0] += v * against[r]
        votes[r] = v if first else votes[r] + v

    _make_votes(code, w, x, blocks, n, take)
    for total, (_, out) in zip(totals, dots, strict=True):
        out[0] = total[0]


@operation
def vote(
    code: Code,
    w: Vectors,
    x: Vectors,
    blocks: Value,
    n: Value,
    votes: Vectors,
    against: Vectors,
    out: Vectors,
) -> None:
    """votes[r] = sum_k w(r, k) x[k], r < n; out = sum_r votes[r] against[r]."""
    _vote(code, w, x, blocks, n, votes, (against, out))


@operation
def vote_twice(
    code: Code,
    w: Vectors,
    x: Vectors,
    blocks: Value,
    n: Value,
    votes: Vectors,
    against: Vectors,
    out: Vectors,
    other: Vectors,
    second: Vectors,
) -> None:
    """`vote`, and second = sum_r votes[r] other[r]."""
    _vote(code, w, x, blocks, n, votes, (against, out), (other, second))


@operation
def add_votes(code: Code, w: Vectors, x: Vectors, blocks: Value, n: Value, out: Vectors) -> None:
    """out[r] += sum_k w(r, k) x[k], r < n."""

    def take(r: Value, v: Value, _first: bool) -> None:
        out[r] = out[r] + v

    _make_votes(code, w, x, blocks, n, take)


def _spread(rows: int) -> Any:
    def spread(
        code: Code,
        n: Value,
        steps: list[Value],
        terms: Value,
        w: Vectors,
        factor: Vectors,
        against: Vectors,
        out: Vectors,
        grad: Vectors,
    ) -> None:
        row, f_step, a_step, out_step = steps
        sums = [code.variable(grad[k]) for k in range(BLOCK)]
        with code.loop(n) as some:
            at = some * rows
            totals = [code.variable(against[at + r]) for r in range(rows)]
            with code.loop(terms) as m:
                f, those = factor[m * f_step], against.after((m + 1) * a_step + at)
                for r, total in enumerate(totals):
                    total[0] += f * those[r]
            for r, total in enumerate(totals):
                out[(at + r) * out_step] = u = total[0]
                for k, found in enumerate(sums):
                    found[0] += w.lone((at + r) * row + k) * u
        for k, found in enumerate(sums):
            grad[k] = found[0]

    return operation(spread)


# u_r = against[r] + sum_m factor[m f_step] against[(m + 1) a_step + r], m < terms, kept in out[r out_step], and
# grad[k] += sum_r w[r row + k] u_r for BLOCK numbers of a pose; r < n ROWS, or r < n.
# steps: row, f_step, a_step, out_step.
spread_rows, spread_row = _spread(ROWS), _spread(1)
