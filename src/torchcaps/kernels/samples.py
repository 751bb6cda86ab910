"""The reference, a few samples at a time: their votes are made, used, and made once more for the gradient.

For what no operator of its own is written for; the votes of a batch are never stored, and those of a block lie in the
cache, which saves more time than making them twice takes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchcaps.functional.votes import Votes
from torchcaps.types import Capsules

# Votes of one block, in bytes: what fits in a core's share of the last-level cache. A GPU needs more work at a time.
BLOCK_BYTES, GPU_BLOCK_BYTES = 3 << 20, 256 << 20


def block_bytes(x: Tensor) -> int:
    """Bytes of the votes of a block on this tensor's device."""
    return BLOCK_BYTES if x.device.type == "cpu" else GPU_BLOCK_BYTES


def by_samples(
    route: Callable[..., tuple[Any, ...]], votes: Votes, *others: Tensor | None
) -> tuple[Any, ...]:
    """Route blocks of samples as `ops.in_blocks` does; nothing is kept of them for the gradient but what went in."""
    if not votes.recomputable:
        raise TypeError(f"votes: expected recomputable ones, got {type(votes).__name__}")

    def run(pose: Tensor, activation: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
        outputs = tuple(route(votes.with_children(Capsules(pose, activation)), *others))
        return outputs if votes.context.needs_coupling else (*outputs[:-1], None)

    links = math.prod(votes.field.positions) * votes.count * votes.parents
    size = max(1, block_bytes(votes.children.pose) // max(1, 4 * links * votes.dim))
    many = [x.split(size) for x in votes.children]
    blocks = zip(
        *many, *(len(many[0]) * [None] if x is None else x.split(size) for x in others), strict=True
    )
    outputs = [
        checkpoint(run, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks
    ]
    if len(outputs) == 1:  # as it lies in memory
        return outputs[0]
    return tuple(
        None if parts[0] is None else torch.cat(parts) for parts in zip(*outputs, strict=True)
    )
