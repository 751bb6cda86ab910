"""Votes and routing by agreement in compiled loops: votes are recomputed where they are needed and never stored.

Samples are laid out in groups of LANES, one to each lane of a vector register (see `lanes.py`, which needs numba and is
imported at the first call). Threads take groups as they become free, and every sum is made by one of them in one order.
Backward, per block of samples: the passes anew, last to first, keeping c and dL/db of each; then, child by child, dL/du
of all samples, which becomes the gradient of their poses and of the child's weights before it leaves the cache.
Letters: b batch, g groups, i children, j parents, d and k dimensions of a parent and a child, t the pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.squash import squash, squash_with_length
from torchcaps.kernels.registration import connect, roomy_factors, squash_backward

LANES = 16
# Parts of the work for each thread: more of them even out what threads wait for, fewer cost less to hand out.
PARTS = 4
# Couplings and gradients of logits of a block of samples, in bytes.
FACTORS_BYTES = 24 << 20


@torch.library.custom_op("torchcaps::routed_dynamic_numba", mutates_args=())
def routed_dynamic(
    pose: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, leaky: bool, detach: bool, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parents' pose, activation, coupling (empty unless wanted) and the s of every pass `[iterations, b, j, d]`."""
    del detach  # concerns gradients only
    pose, weight, _ = roomy_factors(pose, weight)
    layer = _Layer.of(pose, weight, leaky)
    sums = weight.new_empty((iterations, len(pose), *weight.shape[1:3]))
    coupling = layer.pairs() if want_coupling and iterations > 1 else weight.new_empty(0)
    reached = torch.zeros_like(sums[0])
    for t in range(iterations):
        s = layer.route(reached, coupling if t == iterations - 1 else coupling.new_empty(0)) if t else layer.average()
        if bias is not None:
            s = s + bias
        sums[t] = s
        reached += squash(s)
    if want_coupling:
        uniform = weight.new_full((len(pose), *weight.shape[:2]), layer.uniform)
        coupling = layer.by_sample(coupling).contiguous() if iterations > 1 else uniform
    v, length = squash_with_length(sums[-1])
    return v, length, coupling, sums


@torch.library.custom_op("torchcaps::routed_dynamic_numba_backward", mutates_args=())
def routed_dynamic_backward(
    pose: Tensor, weight: Tensor, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None,
    has_bias: bool, leaky: bool, detach: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of pose, weight and bias (empty without one)."""
    pose, weight, units = roomy_factors(pose, weight)
    grad_pose = pose.new_zeros(pose.shape)
    grad_weight = weight.new_zeros(weight.shape)
    grad_bias = weight.new_zeros(weight.shape[1:3] if has_bias else (0,))
    for block in _blocks(len(pose), weight, len(sums)):
        layer = _Layer.of(pose[block], weight, leaky)
        outer = None if grad_coupling is None else grad_coupling[block]
        grad_pose[block], found = _block_backward(
            layer, sums[:, block], grad_v[block], grad_length[block], outer, detach, grad_weight
        )
        if has_bias:
            grad_bias += found.sum(dim=0)
    return grad_pose if units is None else grad_pose * units, grad_weight, grad_bias


connect(routed_dynamic, routed_dynamic_backward)


class _Layer(NamedTuple):
    """A block of samples before the compiled loops: poses `[g, i, k, LANES]`, weights, and the sizes of things."""

    pose: Tensor
    weight: Tensor
    batch: int
    leaky: bool

    @classmethod
    def of(cls, pose: Tensor, weight: Tensor, leaky: bool) -> _Layer:
        """From poses `[b, i, k]` of any type and weights of any strides."""
        return cls(by_lane(pose.detach(), weight.dtype), weight.detach().contiguous(), len(pose), leaky)

    @property
    def groups(self) -> int:
        return len(self.pose)

    @property
    def uniform(self) -> float:
        return 1.0 / (self.weight.shape[1] + self.leaky)

    def pairs(self) -> Tensor:
        """Memory for a number for each child and parent, `[g, i, j, LANES]`."""
        return self.weight.new_empty((self.groups, *self.weight.shape[:2], LANES))

    def parents(self) -> Tensor:
        """Memory for vectors of parents, `[g, j, d, LANES]`."""
        return self.weight.new_empty((self.groups, *self.weight.shape[1:3], LANES))

    def by_sample(self, x: Tensor) -> Tensor:
        """`[g, ..., LANES]` -> `[b, ...]`."""
        return x.movedim(-1, 1).flatten(0, 1)[: self.batch]

    def average(self) -> Tensor:
        """s of the first pass, `[b, j, d]`."""
        sums = self.parents()
        self.run("uniform_pass", self.pose, self.weight, sums)
        return self.by_sample(sums) * self.uniform

    def route(self, reached: Tensor, coupling: Tensor) -> Tensor:
        """s `[b, j, d]` of a later pass, after parents that sum up to `reached`; fills `coupling` unless empty."""
        sums = self.parents()
        self.run("routed_pass", int(self.leaky), self.pose, self.weight, by_lane(reached), sums, coupling)
        return self.by_sample(sums)

    def spread(self, factors: Tensor, against: Tensor, grad_weight: Tensor) -> Tensor:
        """From dL/du to the gradient of the poses `[b, i, k]`, and of the weights, which is added to `grad_weight`."""
        grad_pose = torch.empty_like(self.pose)
        arguments = (self.groups, self.pose, self.weight, factors, against, grad_pose, grad_weight)
        self.run("gradient_pass", *arguments, of=len(self.weight))
        return self.by_sample(grad_pose)

    def run(self, name: str, *arguments: Tensor | int, of: int | None = None) -> None:
        """Run a loop of `lanes.py` on all groups (or `of` children), shared out among as many threads as torch uses."""
        sizes = tuple(self.weight.shape)
        flat = [a.view(-1).numpy() if isinstance(a, Tensor) else a for a in arguments]
        in_threads(_loop(name), self.groups if of is None else of, sizes, *flat)


def by_lane(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`[b, ...]` -> `[g, ..., LANES]`; lanes beyond the batch are zero, which routes to nothing and back."""
    whole, over = divmod(len(x), LANES)
    lanes = x.new_empty((whole + bool(over), *x.shape[1:], LANES), dtype=dtype)
    lanes[:whole] = x[: whole * LANES].unflatten(0, (whole, LANES)).movedim(1, -1)
    if over:
        lanes[whole].zero_()[..., :over] = x[whole * LANES :].movedim(0, -1)
    return lanes


def in_threads(loop: Callable[..., None], count: int, *arguments: Any) -> None:
    """loop(first, last, ...) for all of `count`, in parts that threads take as they become free.

    Threads are made anew: none survives a fork.
    """
    threads = min(torch.get_num_threads(), count)
    bounds = pairwise(count * n // (PARTS * threads) for n in range(PARTS * threads + 1)) if threads else iter(())
    parts = iter([part for part in bounds if part[0] < part[1]])  # next() of an iterator over a list is atomic

    def work() -> None:
        for part in parts:
            loop(*part, *arguments)

    if threads < 2:
        work()
        return
    _let_go()
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()


def _let_go() -> None:
    """Have OpenMP end its idle threads: they spin on a core for some 20 ms after torch's last operation.

    It makes them anew at the next operation, in 0.1 ms. Without an OpenMP 5 runtime in this process, nothing happens.
    """
    pause = _omp_pause()
    if pause is not None:
        pause(1)  # omp_pause_soft


@lru_cache(maxsize=1)
def _omp_pause() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).omp_pause_resource_all
    except (OSError, TypeError, AttributeError):  # Windows has no handle on the whole process
        return None


def _loop(name: str) -> Callable[..., None]:
    from torchcaps.kernels.cpu import lanes  # numba takes half a second to import

    loop: Callable[..., None] = getattr(lanes, name)
    return loop


def _blocks(batch: int, weight: Tensor, iterations: int) -> Iterator[slice]:
    """Blocks of samples whose factors fit in FACTORS_BYTES, but at least a group for each thread."""
    children, parents = weight.shape[:2]
    per_group = max(1, 2 * (iterations - 1) * children * parents * LANES * weight.element_size())
    size = LANES * max(torch.get_num_threads(), FACTORS_BYTES // per_group)
    return (slice(start, min(start + size, batch)) for start in range(0, batch, size))


def _block_backward(
    layer: _Layer, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None, detach: bool,
    grad_weight: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of a block's poses `[b, i, k]` and, per sample, of the bias `[b, j, d]`; adds that of the weights."""
    # A function of its own, so that the factors of a block are freed before those of the next are made.
    factors, against, grad_bias = _factors(layer, sums, grad_v, grad_length, grad_coupling, detach)
    return layer.spread(factors, against, grad_weight), grad_bias


def _factors(
    layer: _Layer, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None, detach: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dL/du as a sum of products of factors and vectors, and dL/dbias per sample `[b, j, d]`.

    Factors: one vector of LANES for the first pass, then c and dL/db `[g, i, j, LANES]` of each later pass, last first
    (with `detach` c of the last alone); vectors `[n, g, j, d, LANES]`: dL/ds, then the sum of earlier parents.
    """
    last = len(sums) - 1
    passes = range(last, 0, -1)[: 1 if detach else last]
    pairs, each = layer.pairs().numel() if passes else 0, 1 if detach else 2
    factors = sums.new_empty(LANES + each * len(passes) * pairs)
    against = sums.new_zeros((1 + each * len(passes), *layer.parents().shape))
    factors[:LANES] = layer.uniform
    reached = squash(sums).cumsum(dim=0)
    grad_parent = torch.zeros_like(sums)  # dL/dv_t, filled from later passes
    grad_parent[last] = grad_v
    grad_bias = torch.zeros_like(grad_v)
    for n, t in enumerate(passes):
        grad_s = squash_backward(sums[t], grad_parent[t], grad_length if t == last else None)
        grad_bias += grad_s
        place = factors[LANES + each * n * pairs :][: each * pairs]
        against[1 + each * n] = by_lane(grad_s)
        if detach:
            layer.route(reached[t - 1], place)
            return factors, against, grad_bias
        against[2 + each * n] = by_lane(reached[t - 1])
        outer = by_lane(grad_coupling) if t == last and grad_coupling is not None else sums.new_empty(0)
        grad_parent[:t] += _pass_backward(layer, against[1 + each * n], against[2 + each * n], outer, place)
    grad_s = squash_backward(sums[0], grad_parent[0], grad_length if last == 0 else None)
    against[0] = by_lane(grad_s)
    return factors, against, grad_bias + grad_s


def _pass_backward(layer: _Layer, grad_s: Tensor, reached: Tensor, grad_coupling: Tensor, factors: Tensor) -> Tensor:
    """Fills `factors` with c and dL/db of a pass; returns dL/dreached `[b, j, d]`."""
    coupling, grad_logits = factors.chunk(2)
    grad_reached = layer.parents()
    layer.run(
        "backward_pass", int(layer.leaky), layer.pose, layer.weight, reached, grad_s, grad_coupling,
        coupling, grad_logits, grad_reached,
    )  # fmt: skip
    return layer.by_sample(grad_reached)
