"""Stand-ins for Triton's kernels on the fake device: each is one launch, as on a GPU.

They compute in host memory what the kernels of `_triton_passes.py` do, in torch's operations. Tests
run those kernels in Triton's interpreter, which would take minutes for a step. Letters as there.
"""

from fakecuda import gpu  # isort: skip

from unittest import mock

import torch

import torchcaps.kernels.dynamic
from torchcaps.functional.squash import squash_with_length
from torchcaps.kernels.numerics import squash_backward

GRADIENT = 2  # a factor of the kernels


def _votes(pose, weight):
    return torch.einsum("ijdk,bik->jbid", weight.float(), pose.float())


def _couplings(agreement, stats, factor, uniform):
    """c, and dL/db or zeros, both `[j, b, i]` or a number."""
    if not factor:
        return uniform * torch.ones(()), torch.zeros(())
    c = (agreement[0] - stats[0]).exp() * stats[1]
    return c, c * (agreement[1] - stats[2]) if factor == GRADIENT else torch.zeros(())


def _grad_votes(V, grad_s, agreement, stats, factor, uniform):
    """dL/du of a pass, `[j, b, i or 1, d]`."""
    c, g = _couplings(agreement, stats, factor, uniform)
    by_parent = [vector.transpose(0, 1).unsqueeze(2) for vector in (grad_s, V)]
    return c.unsqueeze(-1) * by_parent[0] + g.unsqueeze(-1) * by_parent[1]


def agreements(
    pose, weight, V, grad_s, grad_coupling, agreement, stats, *, LEAKY, BACKWARD, OUTER, **_
):
    u = _votes(pose, weight)
    logits = torch.einsum("jbid,bjd->jbi", u, V)
    agreement[0] = logits
    rivals = torch.cat([logits, torch.zeros_like(logits[:1])]) if LEAKY else logits
    stats[0] = rivals.amax(dim=0)
    stats[1] = 1 / (rivals - stats[0]).exp().sum(dim=0)
    if BACKWARD:
        agreement[1] = torch.einsum("jbid,bjd->jbi", u, grad_s)
        if OUTER:
            agreement[1] += grad_coupling
        c, _ = _couplings(agreement, stats, 1, None)
        stats[2] = (c * agreement[1]).sum(dim=0)


def sums(pose, weight, agreement, stats, partial_sums, *, FACTOR, **_):
    c, g = _couplings(agreement, stats, FACTOR, 1.0)
    f = g if FACTOR == GRADIENT else c
    partial_sums.zero_()
    partial_sums[0] = (f.unsqueeze(-1) * _votes(pose, weight)).sum(dim=2).transpose(0, 1)


def weight_gradient(pose, V, grad_s, agreement, stats, grad_weight, *, uniform, FACTOR, **_):
    grad_u = _grad_votes(V, grad_s, agreement, stats, FACTOR, uniform)
    grad_u = grad_u.expand(-1, -1, pose.shape[1], -1)
    grad_weight += torch.einsum("jbid,bik->ijdk", grad_u, pose.float())


def pose_gradient(weight, V, grad_s, agreement, stats, grad_pose, *, uniform, FACTOR, **_):
    grad_u = _grad_votes(V, grad_s, agreement, stats, FACTOR, uniform)
    grad_u = grad_u.expand(-1, -1, len(weight), -1)
    grad_pose += torch.einsum("jbid,ijdk->bik", grad_u, weight.float())


def squash(s, v, length, **_):
    parents, lengths = squash_with_length(s)
    v.copy_(parents)
    length.copy_(lengths)


def squash_gradient(s, grad_v, grad_length, grad_s, *, HAS_LENGTH, **_):
    grad_s.copy_(squash_backward(s, grad_v, grad_length if HAS_LENGTH else None))


class Kernel:
    """A kernel as Triton's: `kernel[grid](*tensors, **options)` launches it."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *tensors, **options):
        def run(views):
            self.function(*views, **options)

        gpu.device.run_kernel(self.function.__name__, tensors, run)


class Kernels:
    """Takes the place of the module `_triton_passes`."""

    agreements = Kernel(agreements)
    sums = Kernel(sums)
    weight_gradient = Kernel(weight_gradient)
    pose_gradient = Kernel(pose_gradient)
    squash = Kernel(squash)
    squash_gradient = Kernel(squash_gradient)


def stand_ins():
    """Within this context, Triton's kernels can be launched."""
    return mock.patch.object(torchcaps.kernels.dynamic, "_triton_passes", Kernels, create=True)
