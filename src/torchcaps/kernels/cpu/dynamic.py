"""Votes and routing by agreement on a CPU, a block of samples at a time, with recomputation in the backward pass.

The votes u of a block stay in the cache. After t passes the logits are <u, V_t>, V_t being the sum of the first t parents
(times nothing else), so nothing but the s of each pass is kept for the backward pass. Letters: b samples of a block,
i children, j parents, d pose dimensions; t is the pass, counted from 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchcaps.functional.routing.dynamic import coupling_of
from torchcaps.functional.squash import safe_norm, squash, squash_with_length

# Votes of one block, in bytes: what fits beside its gradient in a core's share of the last-level cache.
BLOCK_BYTES = 6 << 20


@torch.library.custom_op("torchcaps::routed_dynamic_cpu", mutates_args=())
def routed_dynamic(
    pose: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, leaky: bool, detach: bool, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parents' pose, activation, coupling (empty unless wanted) and the s of every pass `[iterations, b, j, d]`."""
    batch, children = pose.shape[:2]
    parents, dim = weight.shape[1:3]
    pose, weight = pose.to(weight.dtype), weight.contiguous()
    sums = pose.new_empty(iterations, batch, parents, dim)
    coupling = pose.new_empty((batch, children, parents) if want_coupling else (0,))
    scratch = _Scratch(batch, weight)
    with torch.autocast("cpu", enabled=False):  # a caller's autocast reaches into operators
        for block in scratch.blocks:
            votes = scratch.votes(pose[block], weight)
            reached = torch.zeros_like(sums[0, block])
            for t in range(iterations):
                c = _coupling(votes, reached, leaky, scratch) if t else None
                s = _weighted_sum(votes, c, leaky)
                if bias is not None:
                    s += bias
                sums[t, block] = s
                reached += squash(s)
            if want_coupling:
                coupling[block] = _uniform(votes, leaky) if c is None else c.transpose(1, 2)
    v, length = squash_with_length(sums[-1])
    return v, length, coupling, sums


@routed_dynamic.register_fake
def _(
    pose: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, leaky: bool, detach: bool, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, children = pose.shape[:2]
    parents, dim = weight.shape[1:3]
    return (
        weight.new_empty(batch, parents, dim),
        weight.new_empty(batch, parents),
        weight.new_empty((batch, children, parents) if want_coupling else (0,)),
        weight.new_empty(iterations, batch, parents, dim),
    )


@torch.library.custom_op("torchcaps::routed_dynamic_cpu_backward", mutates_args=())
def routed_dynamic_backward(
    pose: Tensor, weight: Tensor, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None,
    has_bias: bool, leaky: bool, detach: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of pose, weight and bias (empty without one)."""
    children, parents, dim, in_dim = weight.shape
    p, weight = pose.to(weight.dtype), weight.contiguous()
    grad_pose = torch.empty_like(p)
    grad_weight = torch.zeros_like(weight).view(children, parents * dim, in_dim)
    grad_bias = weight.new_zeros((parents, dim) if has_bias else (0,))
    flat = weight.view(children, parents * dim, in_dim)
    scratch = _Scratch(len(p), weight)
    with torch.autocast("cpu", enabled=False):
        for block in scratch.blocks:
            votes = scratch.votes(p[block], weight)
            outer = None if grad_coupling is None else grad_coupling[block].transpose(1, 2)
            factors, against, grad_s = _block_backward(
                votes, sums[:, block], grad_v[block], grad_length[block], outer, leaky, detach, scratch
            )
            columns = scratch.outer_products(factors, against)
            grad_pose[block] = torch.bmm(columns, flat).transpose(0, 1)
            grad_weight.baddbmm_(columns.transpose(1, 2), p[block].transpose(0, 1))
            if has_bias:
                grad_bias += grad_s.sum(dim=0)
    return grad_pose.to(pose.dtype), grad_weight.view_as(weight), grad_bias


@routed_dynamic_backward.register_fake
def _(
    pose: Tensor, weight: Tensor, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None,
    has_bias: bool, leaky: bool, detach: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grad_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    return torch.empty_like(pose), grad_weight, weight.new_empty(weight.shape[1:3] if has_bias else (0,))


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    pose, weight, bias, _, leaky, detach, want_coupling = inputs
    ctx.save_for_backward(pose, weight, output[3])
    ctx.has_bias, ctx.leaky, ctx.detach, ctx.want_coupling = bias is not None, leaky, detach, want_coupling


def _backward(ctx, grad_v, grad_length, grad_coupling, _grad_sums):  # type: ignore[no-untyped-def]
    pose, weight, sums = ctx.saved_tensors
    grads = routed_dynamic_backward(
        pose, weight, sums, grad_v, grad_length, grad_coupling if ctx.want_coupling else None,
        ctx.has_bias, ctx.leaky, ctx.detach,
    )  # fmt: skip
    return grads[0], grads[1], grads[2] if ctx.has_bias else None, None, None, None, None


routed_dynamic.register_autograd(_backward, setup_context=_setup_context)


class _Scratch:
    """Memory that all blocks share, so that no page is mapped twice; allocated as one piece, so that it is reused."""

    def __init__(self, batch: int, weight: Tensor) -> None:
        children, parents, dim, _ = weight.shape
        per_sample = children * parents * dim
        self.size = max(1, min(batch, BLOCK_BYTES // max(1, per_sample * weight.element_size())))
        self.blocks = [slice(start, min(start + self.size, batch)) for start in range(0, batch, self.size)]
        self.shape = (parents, children, dim)
        self._by_child, self._votes, self._product = weight.new_empty(3, self.size * per_sample)

    def _view(self, buffer: Tensor, *shape: int) -> Tensor:
        return buffer[: math.prod(shape)].view(shape)

    def votes(self, pose: Tensor, weight: Tensor) -> Tensor:
        """Votes of a block, `[b, j, i, d]`: a parent's votes lie together, so that sums over children run along memory."""
        j, i, d = self.shape
        by_child = self._view(self._by_child, i, len(pose), j * d)
        torch.bmm(pose.transpose(0, 1), weight.view(i, j * d, -1).transpose(1, 2), out=by_child)
        votes = self._view(self._votes, len(pose), j, i, d)
        return votes.copy_(by_child.view(i, -1, j, d).permute(1, 2, 0, 3))

    def agreement(self, votes: Tensor, parent: Tensor) -> Tensor:
        """<u_ij, parent_j>: `[b, j, i, d]`, `[b, j, d]` -> `[b, j, i]`."""
        product = self._view(self._product, *votes.shape)
        return torch.mul(votes, parent.unsqueeze(2), out=product).sum(dim=-1)

    def outer_products(self, factors: Tensor, against: Tensor) -> Tensor:
        """sum_n factors_n x against_n: `[b, j, i, n]`, `[b, j, n, d]` -> `[i, b, jd]`."""
        j, i, d = self.shape
        b = len(factors)
        product = self._view(self._product, b * j, i, d)
        torch.bmm(factors.view(b * j, i, -1), against.view(b * j, -1, d), out=product)
        by_child = self._view(self._by_child, i, b, j, d)
        return by_child.copy_(product.view(b, j, i, d).permute(2, 0, 1, 3)).view(i, b, j * d)


def _coupling(votes: Tensor, reached: Tensor, leaky: bool, scratch: _Scratch) -> Tensor:
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


def _block_backward(
    votes: Tensor, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None,
    leaky: bool, detach: bool, scratch: _Scratch,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A block's dL/du as outer products, `[b, j, i, n]` times `[b, j, n, d]`, and dL/dbias per sample `[b, j, d]`."""
    last = len(sums) - 1
    reached = squash(sums).cumsum(dim=0)
    grad_parent = torch.zeros_like(sums)  # dL/dv_t, filled from later passes
    grad_parent[last] = grad_v
    factors, against = [], []
    grad_bias = torch.zeros_like(grad_v)
    for t in range(last, -1, -1):
        grad_s = _squash_backward(sums[t], grad_parent[t], grad_length if t == last else None)
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


def _squash_backward(s: Tensor, grad_v: Tensor, grad_length: Tensor | None) -> Tensor:
    """Gradient of s from that of squash(s) and of its length. With n = |s| and g = n / (1 + n^2):
    v = g s, so dL/ds = g dv + g'/n <s, dv> s, where g'(n) = (g/n)^2 - g^2; and dlength/dn = 2 g^2 / n."""
    n = safe_norm(s, keepdim=True)
    g = 1.0 / (1.0 / n + n)
    unit = s / n
    along = ((g / n).square() - g.square()) * (s * grad_v).sum(dim=-1, keepdim=True)
    if grad_length is not None:
        along = along + 2.0 * g.square() / n * grad_length.unsqueeze(-1)
    return g * grad_v + along * unit
