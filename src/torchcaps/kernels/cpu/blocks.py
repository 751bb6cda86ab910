"""Routing by agreement of a block of samples, whose votes lie in the cache; forward, and backward by recomputation.

After t passes the logits are <u, V_t>, V_t being the sum of the first t parents, so the s of each pass is all that the
backward pass needs. Letters: b samples of a block, i children, j parents, d pose dimensions; t is the pass, from 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchcaps.functional.routing.dynamic import coupling_of
from torchcaps.functional.squash import squash
from torchcaps.kernels.registration import squash_backward

# Votes of one block, in bytes: what fits beside its gradient in a core's share of the last-level cache.
BLOCK_BYTES = 6 << 20


class Scratch:
    """Memory that all blocks share, so that no page is mapped twice; allocated as one piece, so that it is reused."""

    def __init__(self, batch: int, children: int, parents: int, dim: int, like: Tensor) -> None:
        per_sample = children * parents * dim
        self.size = max(1, min(batch, BLOCK_BYTES // max(1, per_sample * like.element_size())))
        self.blocks = [slice(start, min(start + self.size, batch)) for start in range(0, batch, self.size)]
        self.shape = (parents, children, dim)
        self._by_child, self._votes, self._product = like.new_empty(3, self.size * per_sample)

    def _view(self, buffer: Tensor, *shape: int) -> Tensor:
        return buffer[: math.prod(shape)].view(shape)

    def votes(self, pose: Tensor, weight: Tensor) -> Tensor:
        """Votes of a block, `[b, j, i, d]`: those for a parent lie together, as sums over children want it."""
        j, i, d = self.shape
        by_child = self._view(self._by_child, i, len(pose), j * d)
        torch.bmm(pose.transpose(0, 1), weight.view(i, j * d, -1).transpose(1, 2), out=by_child)
        return self.arranged(by_child.view(i, -1, j, d).transpose(0, 1))

    def arranged(self, votes: Tensor) -> Tensor:
        """A copy of votes `[b, i, j, d]` as `[b, j, i, d]`."""
        j, i, d = self.shape
        return self._view(self._votes, len(votes), j, i, d).copy_(votes.transpose(1, 2))

    def agreement(self, votes: Tensor, parent: Tensor) -> Tensor:
        """<u_ij, parent_j>: `[b, j, i, d]`, `[b, j, d]` -> `[b, j, i]`."""
        product = self._view(self._product, *votes.shape)
        return torch.mul(votes, parent.unsqueeze(2), out=product).sum(dim=-1)

    def outer_products(self, factors: Tensor, against: Tensor) -> Tensor:
        """sum_n factors_n x against_n: `[b, j, i, n]`, `[b, j, n, d]` -> `[b, j, i, d]`."""
        j, i, d = self.shape
        b = len(factors)
        product = self._view(self._product, b * j, i, d)
        torch.bmm(factors.view(b * j, i, -1), against.view(b * j, -1, d), out=product)
        return product.view(b, j, i, d)

    def by_child(self, product: Tensor) -> Tensor:
        """`[b, j, i, d]` -> `[i, b, jd]`."""
        b, j, i, d = product.shape
        return self._view(self._by_child, i, b, j, d).copy_(product.permute(2, 0, 1, 3)).view(i, b, j * d)


def route_block(votes: Tensor, bias: Tensor | None, leaky: bool, sums: Tensor, scratch: Scratch) -> Tensor | float:
    """Write the s of each pass to `sums` `[t, b, j, d]`; returns the last coupling `[b, j, i]`, or the uniform one."""
    reached = torch.zeros_like(sums[0])
    c: Tensor | None = None
    for t in range(len(sums)):
        c = _coupling(votes, reached, leaky, scratch) if t else None
        s = _weighted_sum(votes, c, leaky)
        if bias is not None:
            s += bias
        sums[t] = s
        reached += squash(s)
    return _uniform(votes, leaky) if c is None else c


def _coupling(votes: Tensor, reached: Tensor, leaky: bool, scratch: Scratch) -> Tensor:
    """Coupling `[b, j, i]` for logits <u, V>. The softmax runs along an outer axis: its vectors are children."""
    logits = scratch.agreement(votes, reached)
    if leaky:
        return coupling_of(logits.transpose(1, 2), leaky).transpose(1, 2)
    return logits.softmax(dim=1)


def _weighted_sum(votes: Tensor, coupling: Tensor | None, leaky: bool) -> Tensor:
    """sum_i c_ij u_ij, `[b, j, d]`; None stands for uniform coupling."""
    b, j, i, d = votes.shape
    if coupling is None:
        return votes.sum(dim=2).div_(j + leaky)
    return torch.bmm(coupling.reshape(b * j, 1, i), votes.view(b * j, i, d)).view(b, j, d)


def _uniform(votes: Tensor, leaky: bool) -> float:
    return 1.0 / (votes.shape[1] + leaky)


def block_backward(
    votes: Tensor, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None,
    leaky: bool, detach: bool, scratch: Scratch,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A block's dL/du as outer products, `[b, j, i, n]` times `[b, j, n, d]`, and dL/dbias per sample `[b, j, d]`."""
    last = len(sums) - 1
    reached = squash(sums).cumsum(dim=0)
    grad_parent = torch.zeros_like(sums)  # dL/dv_t, filled from later passes
    grad_parent[last] = grad_v
    factors, against = [], []
    grad_bias = torch.zeros_like(grad_v)
    for t in range(last, -1, -1):
        grad_s = squash_backward(sums[t], grad_parent[t], grad_length if t == last else None)
        grad_bias += grad_s
        against.append(grad_s)
        if t == 0:
            factors.append(votes.new_full(votes.shape[:3], _uniform(votes, leaky)))
            break
        c = _coupling(votes, reached[t - 1], leaky, scratch)
        factors.append(c)
        if detach:
            break
        grad_c = scratch.agreement(votes, grad_s)
        if t == last and grad_coupling is not None:
            grad_c += grad_coupling
        grad_logits = c * (grad_c - (c * grad_c).sum(dim=1, keepdim=True))
        factors.append(grad_logits)
        against.append(reached[t - 1])
        grad_parent[:t] += _weighted_sum(votes, grad_logits, leaky)
    return torch.stack(factors, dim=-1), torch.stack(against, dim=2), grad_bias
