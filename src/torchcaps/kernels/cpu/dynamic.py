"""Votes and routing by agreement on a CPU, a block of samples at a time, with recomputation in the backward pass.

The votes of a batch are never stored: see `blocks.py`. Letters: b samples, i children, j parents, d pose dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.functional.squash import squash_with_length
from torchcaps.kernels.cpu.blocks import Scratch, block_backward, route_block
from torchcaps.kernels.registration import connect, roomy_factors


@torch.library.custom_op("torchcaps::routed_dynamic_cpu", mutates_args=())
def routed_dynamic(
    pose: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, leaky: bool, detach: bool, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parents' pose, activation, coupling (empty unless wanted) and the s of every pass `[iterations, b, j, d]`."""
    del detach  # concerns gradients only
    batch, children = pose.shape[:2]
    parents, dim = weight.shape[1:3]
    pose, weight, _ = roomy_factors(pose, weight)
    pose, weight = pose.to(weight.dtype), weight.contiguous()
    sums = pose.new_empty(iterations, batch, parents, dim)
    coupling = pose.new_empty((batch, children, parents) if want_coupling else (0,))
    scratch = Scratch(batch, children, parents, dim, weight)
    with torch.autocast("cpu", enabled=False):  # a caller's autocast reaches into operators
        for block in scratch.blocks:
            c = route_block(scratch.votes(pose[block], weight), bias, leaky, sums[:, block], scratch)
            if want_coupling:
                coupling[block] = c.transpose(1, 2) if isinstance(c, Tensor) else c
    v, length = squash_with_length(sums[-1])
    return v, length, coupling, sums


@torch.library.custom_op("torchcaps::routed_dynamic_cpu_backward", mutates_args=())
def routed_dynamic_backward(
    pose: Tensor, weight: Tensor, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None,
    has_bias: bool, leaky: bool, detach: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of pose, weight and bias (empty without one)."""
    children, parents, dim, in_dim = weight.shape
    pose, weight, units = roomy_factors(pose, weight)
    p, weight = pose.to(weight.dtype), weight.contiguous()
    grad_pose = torch.empty_like(p)
    grad_weight = torch.zeros_like(weight).view(children, parents * dim, in_dim)
    grad_bias = weight.new_zeros((parents, dim) if has_bias else (0,))
    flat = weight.view(children, parents * dim, in_dim)
    scratch = Scratch(len(p), children, parents, dim, weight)
    with torch.autocast("cpu", enabled=False):  # a caller's autocast reaches into operators
        for block in scratch.blocks:
            votes = scratch.votes(p[block], weight)
            outer = None if grad_coupling is None else grad_coupling[block].transpose(1, 2)
            factors, against, grad_s = block_backward(
                votes, sums[:, block], grad_v[block], grad_length[block], outer, leaky, detach, scratch
            )
            columns = scratch.by_child(scratch.outer_products(factors, against))
            grad_pose[block] = torch.bmm(columns, flat).transpose(0, 1)
            grad_weight.baddbmm_(columns.transpose(1, 2), p[block].transpose(0, 1))
            if has_bias:
                grad_bias += grad_s.sum(dim=0)
    grad_pose = grad_pose if units is None else grad_pose * units
    return grad_pose.to(pose.dtype), grad_weight.view_as(weight), grad_bias


connect(routed_dynamic, routed_dynamic_backward)
