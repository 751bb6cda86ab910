"""The least work that routing by agreement takes, and how fast this machine could do it."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

import torch

from torchcaps.bench.baselines import iterations_of
from torchcaps.bench.timing import Clock, alternate
from torchcaps.nn import CapsuleLinear

COPIED, SIDE = 1 << 24, 1024  # numbers that are copied; rows of the matrices


class Work(NamedTuple):
    """Bytes read and written, and multiply-adds."""

    bytes: float
    products: float


class Rates(NamedTuple):
    """Bytes copied (read and written) per second, and multiply-adds of matrix products per second."""

    copy: float
    product: float


def least_work(batch: int, layer: CapsuleLinear) -> Work:
    """A forward and backward pass that recomputes votes in every pass, and reads no vote.

    Forward: votes in each of T passes, and in all but the first <u, V> and c u. Backward: T - 1 passes with votes, two
    inner products and a sum; then votes, two inner products a pass, dL/du, and the gradients of poses and weights.
    Bytes: poses and weights once per pass, their gradients once.
    """
    passes = iterations_of(layer)
    pairs = layer.in_capsules * layer.out_capsules * layer.out_dim  # numbers of a sample's votes
    votes = pairs * layer.in_dim
    forward = passes * votes + (2 * passes - 1) * pairs
    backward = (passes - 1) * (votes + 3 * pairs) + 3 * votes + 4 * (passes - 1) * pairs
    once = 4 * (batch * layer.in_capsules * layer.in_dim + layer.weight.numel())
    return Work(once * (2 * passes + 2), batch * (forward + backward))


def least_seconds(work: Work, rates: Rates) -> float:
    """The larger of the times of bytes and of products."""
    return max(work.bytes / rates.copy, work.products / rates.product)


def machine_rates(repeats: int, clock: Clock = time.perf_counter, copied: int = COPIED, side: int = SIDE) -> Rates:
    """Rates of this machine's CPU in float32, with as many threads as torch uses; the fastest of the repeats."""
    x, y, a = torch.zeros(copied), torch.zeros(copied), torch.rand(side, side)
    found = alternate({"copy": partial(y.copy_, x), "product": partial(torch.mm, a, a)}, repeats, clock=clock)
    return Rates(2 * x.nbytes / min(found["copy"]), side**3 / min(found["product"]))
