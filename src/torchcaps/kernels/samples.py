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

from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.types import Capsules, Routed

# Votes of one block, in bytes: what fits in a core's share of the last-level cache. A GPU needs more work at a time.
BLOCK_BYTES, GPU_BLOCK_BYTES = 3 << 20, 256 << 20


def block_bytes(x: Tensor) -> int:
    """Bytes of the votes of a block on this tensor's device."""
    return BLOCK_BYTES if x.device.type == "cpu" else GPU_BLOCK_BYTES


def by_samples(route: Callable[[ProductVotes], Routed], votes: Votes) -> Routed:
    """Route blocks of samples; nothing is kept of them for the gradient but what went in."""
    if not isinstance(votes, ProductVotes):
        raise TypeError(f"votes: expected ProductVotes, got {type(votes).__name__}")
    # Read here: a compiler lets nothing of outside be changed in there, and votes note that their bias was read.
    operands, wanted = (votes.field, votes.weight, votes.shift, votes.bias), votes.wanted

    def routed(pose: Tensor, activation: Tensor) -> Routed:
        found = route(ProductVotes(Capsules(pose, activation), *operands))
        return found if wanted else found._replace(coupling=None)

    links = math.prod(votes.field.positions) * votes.count * votes.parents
    size = max(1, block_bytes(votes.weight) // max(1, 4 * links * votes.dim))
    blocks = zip(*(x.split(size) for x in votes.children), strict=True)
    found = [checkpoint(routed, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    v, length, couplings = zip(*found, strict=True)
    return Routed(torch.cat(v), torch.cat(length), torch.cat(couplings) if wanted else None)
