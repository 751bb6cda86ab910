"""Routing by agreement of given votes on a CPU: a block of samples at a time, with recomputation in the backward pass.

Convolutional capsules hand over votes, so those exist; what is saved is all that autograd would keep of every pass, and
the copies of all votes that its products make. Letters: b samples, i children, j parents, d pose dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchcaps.functional.bounds import STEADY, limit
from torchcaps.functional.squash import squash_with_length
from torchcaps.kernels.cpu.blocks import Scratch, block_backward, route_block
from torchcaps.kernels.registration import refuse, roomy


@torch.library.custom_op("torchcaps::dynamic_routing_cpu", mutates_args=())
def dynamic_routing(
    votes: Tensor, bias: Tensor | None, iterations: int, leaky: bool, detach: bool, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parents' pose, activation, coupling (empty unless wanted) and the s of every pass, of votes `[b, i, j, d]`."""
    del detach  # concerns gradients only
    votes, _ = roomy(votes, limit(votes.dtype, STEADY))
    batch, children, parents, dim = votes.shape
    sums = votes.new_empty(iterations, batch, parents, dim)
    coupling = votes.new_empty((batch, children, parents) if want_coupling else (0,))
    scratch = Scratch(batch, children, parents, dim, votes)
    with torch.autocast("cpu", enabled=False):  # a caller's autocast reaches into operators
        for block in scratch.blocks:
            c = route_block(scratch.arranged(votes[block]), bias, leaky, sums[:, block], scratch)
            if want_coupling:
                coupling[block] = c.transpose(1, 2) if isinstance(c, Tensor) else c
    v, length = squash_with_length(sums[-1])
    return v, length, coupling, sums


@dynamic_routing.register_fake
def _(
    votes: Tensor, bias: Tensor | None, iterations: int, leaky: bool, detach: bool, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    del bias, leaky, detach
    batch, children, parents, dim = votes.shape
    coupling = votes.new_empty((batch, children, parents) if want_coupling else (0,))
    sums = votes.new_empty(iterations, batch, parents, dim)
    return votes.new_empty(batch, parents, dim), votes.new_empty(batch, parents), coupling, sums


@torch.library.custom_op("torchcaps::dynamic_routing_cpu_backward", mutates_args=())
def dynamic_routing_backward(
    votes: Tensor,
    sums: Tensor,
    grad_v: Tensor,
    grad_length: Tensor,
    grad_coupling: Tensor | None,
    leaky: bool,
    detach: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of the votes, and of the bias for each sample `[b, j, d]`."""
    votes, units = roomy(votes, limit(votes.dtype, STEADY))
    grad_votes, grad_bias = torch.empty_like(votes, memory_format=torch.contiguous_format), torch.empty_like(sums[0])
    batch, children, parents, dim = votes.shape
    scratch = Scratch(batch, children, parents, dim, votes)
    with torch.autocast("cpu", enabled=False):  # a caller's autocast reaches into operators
        for block in scratch.blocks:
            outer = None if grad_coupling is None else grad_coupling[block].transpose(1, 2)
            factors, against, grad_bias[block] = block_backward(
                scratch.arranged(votes[block]),
                sums[:, block],
                grad_v[block],
                grad_length[block],
                outer,
                leaky,
                detach,
                scratch,
            )
            grad_votes[block] = scratch.outer_products(factors, against).transpose(1, 2)
    return grad_votes if units is None else grad_votes * units, grad_bias


@dynamic_routing_backward.register_fake
def _(
    votes: Tensor,
    sums: Tensor,
    grad_v: Tensor,
    grad_length: Tensor,
    grad_coupling: Tensor | None,
    leaky: bool,
    detach: bool,
) -> tuple[Tensor, Tensor]:
    del grad_v, grad_length, grad_coupling, leaky, detach
    return torch.empty_like(votes, memory_format=torch.contiguous_format), torch.empty_like(sums[0])


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    votes, bias, _, leaky, detach, want_coupling = inputs
    ctx.save_for_backward(votes, output[3])
    ctx.has_bias, ctx.leaky, ctx.detach, ctx.want_coupling = bias is not None, leaky, detach, want_coupling


def _backward(ctx: Any, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor, _grad_sums: Tensor) -> Any:
    votes, sums = ctx.saved_tensors
    outer = grad_coupling if ctx.want_coupling else None
    grad_votes, grad_bias = dynamic_routing_backward(votes, sums, grad_v, grad_length, outer, ctx.leaky, ctx.detach)
    return grad_votes, grad_bias.sum(dim=0) if ctx.has_bias else None, None, None, None, None


dynamic_routing.register_autograd(_backward, setup_context=_remember)
dynamic_routing_backward.register_autograd(refuse)
