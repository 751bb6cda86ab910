"""The reference, a few samples at a time: their votes are made, used, and made once more for the gradient.

For what no operator of its own is written for; the votes of a batch are never stored, and those of a block lie in the
cache, which saves more time than making them twice takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchcaps.functional.votes import ProductVotes
from torchcaps.types import Capsules, Routed

# Votes of one block, in bytes: what fits in a core's share of the last-level cache. A GPU needs more work at a time.
BLOCK_BYTES, GPU_BLOCK_BYTES = 3 << 20, 256 << 20


def block_bytes(x: Tensor) -> int:
    """Bytes of the votes of a block on this tensor's device."""
    return BLOCK_BYTES if x.device.type == "cpu" else GPU_BLOCK_BYTES


def by_samples(route: Callable[[ProductVotes], Routed], votes: ProductVotes) -> Routed:
    """Route blocks of samples; nothing is kept of them for the gradient but what went in."""

    # Read here: a compiler lets nothing of outside be changed in there, and votes note that their bias was read.
    operands, wanted = (votes.field, votes.weight, votes.shift, votes.bias), votes.wanted

    def routed(pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        v, length, coupling = route(ProductVotes(Capsules(pose, activation), *operands))
        return v, length, coupling if wanted else None

    links = math.prod(votes.field.positions) * votes.count * votes.parents
    size = max(1, block_bytes(votes.weight) // max(1, 4 * links * votes.dim))
    blocks = zip(*(x.split(size) for x in votes.children), strict=True)
    found = [checkpoint(routed, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    v, length, coupling = (None if part[0] is None else torch.cat(part) for part in zip(*found, strict=True))
    return Routed(v, length, coupling)  # type: ignore[arg-type]
