"""The reference on a few samples at a time; their votes are made again for the gradient.

For operations without an operator of their own. The votes of a batch are never stored. Those of a
block fit in the cache, which saves more time than making them twice takes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchcaps.functional.votes import Votes
from torchcaps.types import Capsules

# Bytes of the votes of one block: a core's share of the last-level cache. A GPU needs more work.
BLOCK_BYTES = 3 << 20
GPU_BLOCK_BYTES = 256 << 20
# Bytes of the votes of a batch up to which a GPU keeps them: the launches of so little work take
# longer than the work.
GPU_KEPT_BYTES = 16 << 20


def block_bytes(x: Tensor) -> int:
    """Bytes of the votes of a block on this tensor's device."""
    return BLOCK_BYTES if x.device.type == "cpu" else GPU_BLOCK_BYTES


def by_samples(
    route: Callable[..., tuple[Any, ...]], votes: Votes, *others: Tensor | None
) -> tuple[Any, ...]:
    """Route blocks of samples; only the inputs are kept for the gradient.

    A GPU keeps everything where the votes of the batch are few.

    Args:
        route: takes votes and `others`; returns tensors `[batch, ...]`, the couplings last.
        votes: recomputable ones.
        others: tensors `[batch, ...]`, which are split too, or None.

    Returns:
        What `route` returns for the whole batch; None for couplings that nobody needs.
    """

    def run(
        pose: Tensor, activation: Tensor, present: Tensor | None, *others: Tensor | None
    ) -> tuple[Any, ...]:
        block = votes.with_children(Capsules(pose, activation), present)
        outputs = tuple(route(block, *others))
        return outputs if votes.context.needs_coupling else (*outputs[:-1], None)

    links = math.prod(votes.field.positions) * votes.count * votes.parents
    vote_bytes = max(1, 4 * links * votes.dim)
    pose = votes.children.pose
    if pose.device.type != "cpu" and len(pose) * vote_bytes <= GPU_KEPT_BYTES:
        return run(*votes.children, votes.present, *others)
    size = max(1, block_bytes(pose) // vote_bytes)
    columns: list[Any] = [x.split(size) for x in votes.children]
    num_blocks = len(columns[0])
    for other in (votes.present, *others):
        columns.append([None] * num_blocks if other is None else other.split(size))

    outputs = []
    for block in zip(*columns, strict=True):
        outputs.append(checkpoint(run, *block, use_reentrant=False, preserve_rng_state=False))
    if num_blocks == 1:  # without a copy
        return outputs[0]
    return tuple(
        None if parts[0] is None else torch.cat(parts) for parts in zip(*outputs, strict=True)
    )
