"""Votes and routing by agreement on a GPU: three kernels, a small sum and squash between their runs, no stored votes.

Backward recomputes: a run per pass, last to first, for dL/ds of the pass before; then one run over children, which
makes the votes and the couplings of all passes once more and from them the gradients of poses and weights. The kernels
are in `_triton_passes.py`, which needs Triton and is imported at the first call. Letters as there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.squash import squash, squash_with_length
from torchcaps.kernels.registration import connect, squash_backward

# Children that one program sums up: few enough that a batch of 128 keeps a hundred multiprocessors busy.
PER_SPLIT = 32


@torch.library.custom_op("torchcaps::routed_dynamic_triton", mutates_args=())
def routed_dynamic(
    pose: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, leaky: bool, detach: bool, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parents' pose, activation, coupling (empty unless wanted), s of every pass `[iterations, b, j, d]`; float32."""
    del detach  # concerns gradients only
    layer = _Layer.of(pose, weight, leaky)
    batch, (children, parents, dim) = len(pose), weight.shape[:3]
    sums = pose.new_empty((iterations, batch, parents, dim), dtype=torch.float32)
    coupling = sums.new_full((batch, children, parents) if want_coupling else (0,), layer.uniform)
    reached = torch.zeros_like(sums[0])
    for t in range(iterations):
        keep = want_coupling and t == iterations - 1 and t > 0
        s = layer.forward_pass(reached, coupling, uniform=t == 0, keep=keep)
        sums[t] = s if bias is None else s + bias
        reached += squash(sums[t])
    v, length = squash_with_length(sums[-1])
    return v, length, coupling, sums


@torch.library.custom_op("torchcaps::routed_dynamic_triton_backward", mutates_args=())
def routed_dynamic_backward(
    pose: Tensor, weight: Tensor, sums: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None,
    has_bias: bool, leaky: bool, detach: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of pose, weight and bias (empty without one)."""
    layer = _Layer.of(pose, weight, leaky)
    last = len(sums) - 1
    reached = squash(sums).cumsum(dim=0)
    grad_s, grad_parent = torch.zeros_like(sums), torch.zeros_like(sums)
    grad_parent[last] = grad_v
    outer = None if grad_coupling is None else grad_coupling.contiguous()
    for t in range(last, -1, -1):
        grad_s[t] = squash_backward(sums[t], grad_parent[t], grad_length if t == last else None)
        if detach or t == 0:
            break
        grad_parent[:t] += layer.backward_pass(reached[t - 1], grad_s[t], outer if t == last else None)
    grad_pose, grad_weight = layer.gradients(reached, grad_s, outer, detach)
    grad_bias = grad_s.sum(dim=(0, 1)) if has_bias else grad_s.new_empty(0)
    return grad_pose.to(pose.dtype), grad_weight.to(weight.dtype), grad_bias


connect(routed_dynamic, routed_dynamic_backward)


class _Layer(NamedTuple):
    """Poses and weights as the kernels take them, and the sizes that they are compiled for."""

    pose: Tensor
    weight: Tensor
    leaky: bool

    @classmethod
    def of(cls, pose: Tensor, weight: Tensor, leaky: bool) -> _Layer:
        """From poses of any type and tensors of any strides."""
        return cls(pose.detach().to(weight.dtype).contiguous(), weight.detach().contiguous(), leaky)

    @property
    def uniform(self) -> float:
        return 1.0 / (self.weight.shape[1] + self.leaky)

    @property
    def sizes(self) -> dict[str, Any]:
        """Real sizes, and the powers of two that blocks of them take; a matrix product takes 16 at least."""
        _, parents, dim, in_dim = self.weight.shape
        blocks = {
            "BLOCK_J": power_of_two(parents),
            "BLOCK_D": power_of_two(dim),
            "BLOCK_K": max(16, power_of_two(in_dim)),
        }
        blocks["BLOCK_J"] = max(blocks["BLOCK_J"], 16 // blocks["BLOCK_D"])
        return {"PARENTS": parents, "DIM": dim, "IN_DIM": in_dim, "LEAKY": self.leaky, **blocks}

    @property
    def splits(self) -> int:
        return -(-len(self.weight) // PER_SPLIT)

    def partial(self) -> Tensor:
        """Memory for the sums of each split, `[split, b, j, d]`."""
        return self.pose.new_empty((self.splits, len(self.pose), *self.weight.shape[1:3]), dtype=torch.float32)

    def forward_pass(self, reached: Tensor, coupling: Tensor, *, uniform: bool, keep: bool) -> Tensor:
        """s of a pass without the bias, `[b, j, d]`; fills the coupling if it is to be kept."""
        partial = self.partial()
        _kernels().forward_pass[self._grid](
            self.pose, self.weight, reached, partial, coupling, len(self.pose), len(self.weight), PER_SPLIT,
            UNIFORM=uniform, KEEP=keep, **self.sizes,
        )  # fmt: skip
        s = partial.sum(dim=0)
        return s * self.uniform if uniform else s

    def backward_pass(self, reached: Tensor, grad_s: Tensor, grad_coupling: Tensor | None) -> Tensor:
        """dL/dreached of a pass, `[b, j, d]`."""
        partial = self.partial()
        outer = reached if grad_coupling is None else grad_coupling
        _kernels().backward_pass[self._grid](
            self.pose, self.weight, reached, grad_s, outer, partial, len(self.pose), len(self.weight), PER_SPLIT,
            OUTER=grad_coupling is not None, **self.sizes,
        )  # fmt: skip
        return partial.sum(dim=0)

    def gradients(
        self, reached: Tensor, grad_s: Tensor, grad_coupling: Tensor | None, detach: bool
    ) -> tuple[Tensor, Tensor]:
        """Gradients of poses and weights, in float32."""
        grad_pose, grad_weight = (torch.zeros_like(x, dtype=torch.float32) for x in (self.pose, self.weight))
        outer = reached if grad_coupling is None else grad_coupling
        _kernels().gradients[(len(self.weight),)](
            self.pose, self.weight, reached, grad_s, outer, grad_pose, grad_weight, len(self.pose), len(self.weight),
            self.uniform, ITERATIONS=len(grad_s), DETACH=detach, OUTER=grad_coupling is not None, **self.sizes,
        )  # fmt: skip
        return grad_pose, grad_weight

    def _grid(self, chosen: dict[str, Any]) -> tuple[int, int]:
        return -(-len(self.pose) // chosen["BLOCK_B"]), self.splits


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def _kernels() -> Any:
    from torchcaps.kernels.dynamic import _triton_passes

    return _triton_passes
