"""Votes and routing by agreement on a GPU: a few kernels, a small sum and squash between their runs, no votes at all.

Backward recomputes, pass by pass, last to first: the agreements of the pass, from them its part of the gradients of
poses and weights, and dL/ds of the passes before. The kernels are in `_triton_passes.py`, which needs Triton and is
imported at the first call. Letters as there.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import clamp_finite, steady_limit
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.passes import Problem, Work, implementation, other_votes, route
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.support import HALF, HAS_TRITON, device_mismatch, vote_operands, wrong_dtype
from torchcaps.types import Routed

# Blocks of children that one program sums up: few enough that a batch of 128 keeps a hundred multiprocessors busy.
PER_SPLIT = 8
# Dimensions of a parent and of a child up to which the kernels were compiled and fit, see
# `python -m benchmarks.gpu --offline`; parents, children and samples may be any number.
MOST_DIM, MOST_IN_DIM = 32, 128


class Tile(NamedTuple):
    """What a kernel is compiled for: sizes of its blocks, each a power of two, and Triton's options, by their names."""

    BLOCK_B: int
    BLOCK_D: int
    BLOCK_I: int
    BLOCK_K: int
    num_warps: int
    num_stages: int = 2  # loads run one step ahead; no more, since each stage takes shared memory
    enable_fp_fusion: bool = True


def tile(dim: int, in_dim: int) -> Tile:
    """The tile for these sizes of a parent's and of a child's pose, chosen by `python -m benchmarks.gpu --offline`.

    It depends on nothing else. A tile that was found by trial, or that followed the batch, could differ between two
    processes, or in the last batch of an epoch, and with it the last bits of the results.
    """
    block_k, block_d = (
        max(least, 1 << (n - 1).bit_length()) for least, n in ((4, in_dim), (16, dim))
    )
    columns = max(block_k, 2048 // block_d)  # more of them, and products in float32 spill registers
    return Tile(
        32, block_d, columns // block_k, block_k, num_warps=4 if block_d * columns <= 2048 else 8
    )


def product_mode(pose: torch.dtype, weight: torch.dtype) -> str:
    """How matrices of these types are multiplied: "ieee" float32, or on tensor cores "tf32" or "bf16".

    Numbers in float16 are exact in TF32, which has room for their gradients.
    """
    if torch.bfloat16 in (pose, weight):
        return "bf16"
    allowed = torch.float16 in (pose, weight) or torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if allowed else "ieee"


def supports(votes: Votes) -> Support:
    """Whether the GPU kernels can take these votes."""
    reason = other_votes(votes) if HAS_TRITON else "Triton is not installed"
    if reason is not None or not isinstance(votes, ProductVotes):
        return Support(False, reason or "the votes are given")
    weight = votes.weight
    device = weight.device.type
    if device != "cuda" and not (device == "cpu" and _interpreting()):
        return Support(False, f"weight is on {weight.device}, not on a GPU")
    reason, types = device_mismatch(vote_operands(votes), weight.device), (torch.float32, *HALF)
    reason = (
        reason
        or wrong_dtype("weight", weight, types)
        or wrong_dtype("pose", votes.children.pose, types)
    )
    for name, size, most in (
        ("dim", votes.dim, MOST_DIM),
        ("in_dim", weight.shape[2], MOST_IN_DIM),
    ):
        if reason is None and size > most:
            reason = f"{name} is {size}; at most {most} is supported by the GPU kernels"
    if reason is not None:
        return Support(False, reason)
    return Support(
        True,
        "GPU kernels: products of matrices over many children, no votes",
        worth_it=device == "cuda",
    )


def _interpreting() -> bool:
    """Whether Triton is imported and interprets its kernels on the CPU (TRITON_INTERPRET=1)."""
    triton = (
        None if torch.compiler.is_compiling() else sys.modules.get("triton")
    )  # no compiler sees through its knobs
    return triton is not None and bool(triton.knobs.runtime.interpret)


@fast_path("dynamic_routing", "triton", supports, rank=5)
def run(votes: Votes, *, iterations: int, leaky: bool, detach: bool) -> Routed:
    """Routing by agreement of linear votes; products in half precision under a caller's autocast."""
    return route(_routed, votes, iterations, leaky, detach, cast=votes.autocast_dtype)


# What `agreements` leaves: `[1 or 2, j, b, i]` and `[2 or 3, b, i]`, the larger ones with gradients.
_Agreed = tuple[Tensor, Tensor]


class _Kernels(Work):
    """All samples before the kernels: poses and weights of any strides, each in float32 or half precision."""

    def __init__(self, x: Problem, backward: bool) -> None:
        weight: Any = x.weight
        self.pose, self.weight = (
            clamp_finite(tensor.detach(), steady_limit).contiguous() for tensor in (x.pose, weight)
        )
        self.tile, self.mode = tile(*weight.shape[2:]), product_mode(self.pose.dtype, weight.dtype)
        self.leaky, self.detach = x.leaky, x.detach
        self.agreed: _Agreed | None = None
        self.uniform = 1.0 / (weight.shape[1] + x.leaky)
        if backward:
            self.into = tuple(
                torch.zeros_like(tensor, dtype=torch.float32) for tensor in (self.pose, self.weight)
            )
            self.grad_weight = self.into[1]

    def blocks(self) -> Iterator[slice]:
        yield slice(None)

    def sums(self, reached: Tensor | None, keep: bool) -> Tensor:
        self.agreed = None if reached is None else self._agreements(reached)
        return self._sums(self.agreed)

    def coupling(self) -> Tensor:
        if self.agreed is None:
            return self.weight.new_tensor(self.uniform, dtype=torch.float32)
        (agreed, *_), (high, inverse, *_) = self.agreed
        return ((agreed - high).exp_() * inverse).permute(1, 2, 0)

    def back(
        self, reached: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        """Adds the pass's part to the gradients of poses and weights, in float32."""
        agreed = None
        if reached is not None:
            outer = (
                None
                if grad_coupling is None or self.detach
                else grad_coupling.permute(2, 0, 1).contiguous()
            )
            agreed = self._agreements(reached, None if self.detach else grad_s, outer)
        before, options = (
            grad_s if reached is None else reached,
            {"uniform": self.uniform, "FACTOR": _factor(agreed)},
        )
        shared = (before, grad_s, *(agreed or (grad_s, grad_s)))
        self._launch(
            "pose_gradient", self._grid("ib"), self.weight, *shared, self.into[0], **options
        )
        self._launch(
            "weight_gradient", self._grid("ij"), self.pose, *shared, self.into[1], **options
        )
        return None if agreed is None or self.detach else self._sums(agreed)

    def spread(self) -> Tensor:
        return self.into[0]

    def _agreements(
        self, reached: Tensor, grad_s: Tensor | None = None, outer: Tensor | None = None
    ) -> _Agreed:
        """Logits of a pass and, given dL/ds, the gradient of its couplings; outer: their own, `[j, b, i]`."""
        batch, (children, parents), backward = (
            len(self.pose),
            self.weight.shape[:2],
            grad_s is not None,
        )
        sizes = (1 + backward, parents, batch, children), (2 + backward, batch, children)
        made = reached.new_empty(sizes[0]), reached.new_empty(sizes[1])
        given = (
            self.pose,
            self.weight,
            reached,
            *(reached if x is None else x for x in (grad_s, outer)),
            *made,
        )
        flags = {"LEAKY": self.leaky, "BACKWARD": backward, "OUTER": outer is not None}
        self._launch("agreements", self._grid("ib"), *given, **flags)
        return made

    def _sums(self, agreed: _Agreed | None) -> Tensor:
        """Votes summed over children `[b, j, d]`: weighed with couplings, or with the gradients of logits if made."""
        children, parents, dim, _ = self.weight.shape
        per_split = PER_SPLIT * self.tile.BLOCK_I
        splits = -(-children // per_split)
        partial = self.pose.new_empty((splits, len(self.pose), parents, dim), dtype=torch.float32)
        given = self.pose, self.weight, *(agreed or (partial, partial)), partial
        self._launch(
            "sums", (splits, *self._grid("bj")), *given, per_split=per_split, FACTOR=_factor(agreed)
        )
        s = partial.sum(dim=0)
        return s * self.uniform if agreed is None else s

    def _grid(self, axes: str) -> tuple[int, ...]:
        """Programs: for each block of samples b or children i, for each parent j."""
        children, parents = self.weight.shape[:2]
        blocks = {
            "b": -(-len(self.pose) // self.tile.BLOCK_B),
            "i": -(-children // self.tile.BLOCK_I),
            "j": parents,
        }
        return tuple(blocks[axis] for axis in axes)

    def _launch(self, kernel: str, grid: tuple[int, ...], *tensors: Tensor, **options: Any) -> None:
        from torchcaps.kernels.dynamic import _triton_passes

        children, parents, dim, in_dim = self.weight.shape
        with torch.cuda.device_of(self.weight):
            getattr(_triton_passes, kernel)[grid](
                *tensors,
                batch=len(self.pose),
                children=children,
                parents=parents,
                DIM=dim,
                IN_DIM=in_dim,
                MODE=self.mode,
                **self.tile._asdict(),
                **options,
            )


def _factor(agreed: _Agreed | None) -> int:
    """What votes are weighed with, as the kernels number it: nothing, couplings, the gradients of logits."""
    return 0 if agreed is None else len(agreed[0])


_routed = implementation("dynamic_routing_triton", _Kernels)
