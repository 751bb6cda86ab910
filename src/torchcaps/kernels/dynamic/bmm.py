"""Routing by agreement without votes, in products of matrices that torch has on every device.

`passes.py` has the equations. With M_j the weights of parent j as one matrix `[d, i k]`, and p the
poses `[n, i k]`, a pass needs four products for each parent:

    agreements           <u_ij, x_j> = sum over k of (x_j M_j) p
    sums                 sum_i f_ij u_ij = (f_ij p) M_j'
    gradient of weights  x_j' (f_ij p)
    gradient of poses    sum_j f_ij (x_j M_j)

Letters: b samples, n those of a block, i children, j parents, d and k dimensions of a parent and of
a child, x vectors `[n, j, d]`, f factors `[j, n, i]`; those of the first pass are one number.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchcaps.functional.bounds import clamp_finite, gradient_limit
from torchcaps.kernels.dynamic.passes import Passes, Problem, define_route, not_linear
from torchcaps.kernels.registry import fast_path
from torchcaps.kernels.samples import block_bytes
from torchcaps.kernels.support import dtype_mismatch, without_numbers


def obstacle(votes: Any) -> str | None:
    """Why products of matrices cannot route these votes."""
    reason = not_linear(votes) or dtype_mismatch(votes, votes.weight.device)
    return reason or without_numbers(votes)


def drawback(votes: Any) -> str | None:
    """Why other implementations are better for these votes."""
    return "others read less memory on a CPU" if votes.weight.device.type == "cpu" else None


class _ProductPasses(Passes):
    """Passes on some samples at a time.

    Attributes:
        pose: `[b, i, k]`, bounded; the type of products is that of the poses.
        weight: M, `[j, d, i k]`, bounded.
        sum_weight: gradient of M.
        c: coupling of the last pass of the block, `[j, n, i]`.
    """

    def __init__(self, problem: Problem, backward: bool) -> None:
        weight: Any = problem.weight
        self.problem = problem
        # float16 has no room for the products.
        is_bf16 = problem.pose.dtype == torch.bfloat16
        self.full = weight.dtype
        dtype = torch.bfloat16 if is_bf16 else self.full
        self.pose = clamp_finite(problem.pose.detach().to(dtype), gradient_limit)
        by_parent = clamp_finite(weight.detach().to(dtype), gradient_limit).permute(1, 2, 0, 3)
        self.weight = by_parent.flatten(2).contiguous()
        if backward:
            self.sum_weight = torch.zeros_like(self.weight, dtype=self.full)
            self.grad_weight = self.sum_weight.view(by_parent.shape).permute(2, 0, 1, 3)

    def blocks(self) -> Iterator[slice]:
        sample_bytes = max(1, len(self.weight) * self.pose[:1].nbytes)
        size = max(1, block_bytes(self.pose) // sample_bytes)
        for start in range(0, len(self.pose), size):
            block = slice(start, start + size)
            self.block_pose = self.pose[block]
            self.grad_pose = torch.zeros_like(self.block_pose, dtype=self.full)
            yield block

    def weighted_sums(self, V: Tensor | None) -> Tensor:
        self.c = self._couplings(None if V is None else self._multiply(V))
        return self._sum(self._weigh(self.c))

    def coupling(self) -> Tensor:
        return self.c.permute(1, 2, 0)

    def pass_backward(
        self, V: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        """Adds the pass's part to the gradients of poses and M."""
        by_grad_s = self._multiply(grad_s)
        if V is None:
            self._add_term(self._couplings(None), grad_s, by_grad_s)
            return None
        by_V = self._multiply(V)
        c = self._couplings(by_V)
        self._add_term(c, grad_s, by_grad_s)
        if self.problem.detach:
            return None
        grad_c = self._agree(by_grad_s)
        if grad_coupling is not None:
            grad_c += grad_coupling.permute(2, 0, 1)
        grad_c *= c
        grad_b = grad_c.addcmul(c, grad_c.sum(dim=0), value=-1)
        return self._sum(self._add_term(grad_b, V, by_V))

    def votes_backward(self) -> Tensor:
        return self.grad_pose

    def _multiply(self, x: Tensor) -> Tensor:
        """x_j M_j of vectors: `[j, n, i, k]`."""
        product = torch.bmm(x.transpose(0, 1).to(self.weight.dtype), self.weight)
        return product.view(-1, *self.block_pose.shape)

    def _agree(self, product: Tensor) -> Tensor:
        """Agreements `[j, n, i]` of x with the votes, from x M."""
        return (product * self.block_pose).sum(dim=3, dtype=self.full)

    def _couplings(self, product: Tensor | None) -> Tensor:
        """c of a pass, from V M; None in the first pass, whose logits are zero."""
        leaky = self.problem.leaky
        if product is None:
            uniform = 1.0 / (len(self.weight) + leaky)
            return self.weight.new_full((1, 1, 1), uniform, dtype=self.full)
        logits = self._agree(product)
        if leaky:  # one more logit of zero competes
            logits = torch.cat([logits, torch.zeros_like(logits[:1])])
        return logits.softmax(dim=0)[: len(self.weight)]

    def _weigh(self, factors: Tensor) -> Tensor:
        """f p, `[j, n, i k]`."""
        return (factors.to(self.pose.dtype).unsqueeze(3) * self.block_pose).flatten(2)

    def _sum(self, weighed: Tensor) -> Tensor:
        """Votes summed over children, `[n, j, d]`, from f p."""
        return torch.matmul(weighed, self.weight.mT).transpose(0, 1).to(self.full)

    def _add_term(self, factors: Tensor, x: Tensor, product: Tensor) -> Tensor:
        """Add the gradients of poses and M that dL/du_ij = f_ij x_j gives, from x M; f p."""
        terms = factors.to(product.dtype).unsqueeze(3) * product
        self.grad_pose += terms.sum(dim=0, dtype=self.full)
        weighed = self._weigh(factors)
        self.sum_weight += torch.matmul(x.permute(1, 2, 0).to(weighed.dtype), weighed)
        return weighed


# Of the implementations of an operation, those of lower rank are tried first.
fast_path(
    "dynamic_routing",
    "bmm",
    obstacle,
    rank=15,
    reason="products of matrices over all children, no votes",
    drawback=drawback,
)(define_route("bmm", _ProductPasses, in_autocast=True))
