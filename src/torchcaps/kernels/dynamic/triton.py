"""Routing by agreement on a GPU: a few kernels, with a small sum between them.

No votes are made. The backward pass recomputes, from the last pass to the first: the agreements of
the pass, from them its part of the gradients of poses and weights, and dL/ds of earlier passes. The
kernels are in `_triton_passes.py`, which needs Triton and is imported at the first call. Letters as
there.
"""

import math
import shutil
import sys
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import clamp_finite, gradient_limit
from torchcaps.kernels.dynamic.passes import Passes, Problem, define_route, not_linear
from torchcaps.kernels.registry import fast_path
from torchcaps.kernels.support import (
    HALF_PRECISION,
    HAS_TRITON,
    device_mismatch,
    vote_operands,
    wrong_dtype,
)
from torchcaps.types import Capsules

# Blocks of children that one program sums up: few enough that a batch of 128 keeps a hundred
# multiprocessors busy.
BLOCKS_PER_SPLIT = 8
# Dimensions of a parent and of a child up to which the kernels were compiled and fit; see
# `python tools/compile_kernels.py`. Parents, children and samples may be any number.
MAX_DIM = 32
MAX_IN_DIM = 128
COMPILERS = ("cc", "gcc", "clang")  # that Triton looks for at its first call
# Compute capabilities of NVIDIA GPUs for Triton at all, and for tensor cores with bfloat16; and the
# architectures of AMD that Triton compiles for.
MIN_CAPABILITY = (7, 0)
BF16_CAPABILITY = (8, 0)
ROCM_ARCHITECTURES = ("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")


class Tile(NamedTuple):
    """Sizes that a kernel is compiled for.

    Attributes:
        DIM, IN_DIM: dimensions of a parent and of a child.
        BLOCK_B, BLOCK_D, BLOCK_I, BLOCK_K: sizes of its blocks, each a power of two.
    """

    DIM: int
    IN_DIM: int
    BLOCK_B: int
    BLOCK_D: int
    BLOCK_I: int
    BLOCK_K: int

    @property
    def options(self) -> dict[str, Any]:
        """Triton's options. Loads run one step ahead: each further stage takes shared memory."""
        is_small = self.BLOCK_D * self.BLOCK_I * self.BLOCK_K <= 2048
        return {"num_warps": 4 if is_small else 8, "num_stages": 2, "enable_fp_fusion": True}


def choose_tile(dim: int, in_dim: int) -> Tile:
    """The tile for these sizes of a parent's and of a child's pose.

    They were chosen by `python tools/compile_kernels.py`. The tile depends on nothing else: if
    it followed a trial or the batch, two processes could differ in the last bits of their results.
    """
    block_k = max(4, 1 << (in_dim - 1).bit_length())
    block_d = max(16, 1 << (dim - 1).bit_length())
    # With more columns, products in float32 spill registers.
    block_i = max(1, 2048 // block_d // block_k)
    return Tile(dim, in_dim, 32, block_d, block_i, block_k)


def product_mode(pose: torch.dtype, weight: torch.dtype) -> str:
    """How matrices of these types are multiplied.

    "ieee" is float32; tensor cores multiply in "tf32" or "bf16".
    Numbers in float16 are exact in TF32, which has room for their gradients.
    """
    if torch.bfloat16 in (pose, weight):
        return "bf16"
    allowed = torch.float16 in (pose, weight) or torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if allowed else "ieee"


def obstacle(votes: Any) -> str | None:
    """Why the GPU kernels cannot route these votes."""
    if reason := not_linear(votes) if HAS_TRITON else "Triton is not installed":
        return reason
    weight = votes.weight
    device = weight.device
    is_gpu = device.type == "cuda"
    if not is_gpu and not (device.type == "cpu" and _is_interpreting()):
        return f"weight is on {device}, not on a GPU"

    dtypes = (torch.float32, *HALF_PRECISION)
    reason = device_mismatch(vote_operands(votes), device)
    reason = reason or wrong_dtype("weight", weight, dtypes)
    reason = reason or wrong_dtype("pose", votes.children.pose, dtypes)
    sizes = {"dim": (votes.dim, MAX_DIM), "in_dim": (weight.shape[2], MAX_IN_DIM)}
    for name, (size, limit) in sizes.items():
        if size > limit:
            reason = reason or f"{name} is {size}; the GPU kernels take at most {limit}"
    if reason is None and is_gpu:
        reason = missing_hardware(device, (votes.autocast_dtype, weight.dtype, votes.pose.dtype))
    return reason


def drawback(votes: Any) -> str | None:
    """Why other implementations are better for these votes."""
    return None if votes.weight.is_cuda else "kernels are interpreted"


def missing_hardware(device: torch.device, dtypes: Collection[torch.dtype | None]) -> str | None:
    """Reason why Triton cannot compile kernels for a GPU here; None if it can.

    Args:
        device: the GPU.
        dtypes: types of the operands, and of products under autocast.
    """
    if torch.compiler.is_compiling():  # a first call without the compiler has asked before
        return None
    if not any(map(shutil.which, COMPILERS)):
        return f"Triton needs a C compiler, and there is none of {', '.join(COMPILERS)}"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        architecture = properties.gcnArchName.partition(":")[0]
        if architecture.startswith(ROCM_ARCHITECTURES):
            return None
        return f"the GPU is a {architecture}; supported: {', '.join(ROCM_ARCHITECTURES)}"
    capability = (properties.major, properties.minor)
    minimum = BF16_CAPABILITY if torch.bfloat16 in dtypes else MIN_CAPABILITY
    if capability >= minimum:
        return None
    products = "products in bfloat16" if torch.bfloat16 in dtypes else "Triton"
    return (
        f"the GPU has compute capability {capability[0]}.{capability[1]}; {products} needs "
        f"{minimum[0]}.{minimum[1]}"
    )


def _is_interpreting() -> bool:
    """Whether Triton is imported and interprets its kernels on the CPU (TRITON_INTERPRET=1)."""
    if torch.compiler.is_compiling():  # no compiler sees through Triton's knobs
        return False
    triton = sys.modules.get("triton")
    return triton is not None and bool(triton.knobs.runtime.interpret)


# What the kernel `agreements` returns: `[1 or 2, j, b, i]` and `[2 or 3, b, i]`, the larger ones
# with gradients.
_Agreements = tuple[Tensor, Tensor]


class _TritonPasses(Passes):
    """All samples at once; poses and weights of any strides, each in float32 or half precision."""

    def __init__(self, problem: Problem, backward: bool) -> None:
        weight: Any = problem.weight
        self.pose = clamp_finite(problem.pose.detach(), gradient_limit).contiguous()
        self.weight = clamp_finite(weight.detach(), gradient_limit).contiguous()
        dim, in_dim = weight.shape[2:]
        self.tile = choose_tile(dim, in_dim)
        self.mode = product_mode(self.pose.dtype, weight.dtype)
        self.leaky = problem.leaky
        self.detach = problem.detach
        self.agreements: _Agreements | None = None
        self.uniform = 1.0 / (weight.shape[1] + problem.leaky)
        if backward:
            self.grad_pose = torch.zeros_like(self.pose, dtype=torch.float32)
            self.grad_weight: Tensor = torch.zeros_like(self.weight, dtype=torch.float32)

    def blocks(self) -> Iterator[slice]:
        yield slice(None)

    def weighted_sums(self, V: Tensor | None) -> Tensor:
        self.agreements = None if V is None else self._agreements(V)
        return self._sums(self.agreements)

    def coupling(self) -> Tensor:
        if self.agreements is None:
            return self.weight.new_tensor(self.uniform, dtype=torch.float32)
        logits, (largest, inverse_total) = self.agreements
        return ((logits[0] - largest).exp_() * inverse_total).permute(1, 2, 0)

    def pass_backward(
        self, V: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        """Adds the pass's part to the gradients of poses and weights, in float32."""
        agreements = None
        if V is not None and self.detach:
            agreements = self._agreements(V)
        elif V is not None:
            by_parent = None
            if grad_coupling is not None:
                by_parent = grad_coupling.permute(2, 0, 1).contiguous()
            agreements = self._agreements(V, grad_s, by_parent)

        vectors = (grad_s if V is None else V, grad_s, *(agreements or (grad_s, grad_s)))
        options = {"uniform": self.uniform, "FACTOR": _factor(agreements)}
        self._launch(
            "pose_gradient", self._grid("ib"), self.weight, *vectors, self.grad_pose, **options
        )
        self._launch(
            "weight_gradient", self._grid("ij"), self.pose, *vectors, self.grad_weight, **options
        )
        return None if agreements is None or self.detach else self._sums(agreements)

    def votes_backward(self) -> Tensor:
        return self.grad_pose

    def squash(self, s: Tensor) -> Capsules:
        v = torch.empty_like(s)
        length = s.new_empty(s.shape[:-1])
        self._launch_on_parents("squash", s, v, length)
        return Capsules(v, length)

    def squash_backward(self, s: Tensor, grad_v: Tensor, grad_length: Tensor | None) -> Tensor:
        grad_s = torch.empty_like(s)
        lengths = s if grad_length is None else grad_length.contiguous()
        self._launch_on_parents(
            "squash_gradient", s, grad_v, lengths, grad_s, HAS_LENGTH=grad_length is not None
        )
        return grad_s

    def _agreements(
        self, V: Tensor, grad_s: Tensor | None = None, grad_coupling: Tensor | None = None
    ) -> _Agreements:
        """Logits of a pass and, given dL/ds, the gradient of its couplings.

        Args:
            V: sum of the parents of the passes before, `[b, j, d]`.
            grad_s: dL/ds `[b, j, d]`, or None.
            grad_coupling: gradient of the couplings themselves, `[j, b, i]`, or None.
        """
        batch = len(self.pose)
        children, parents = self.weight.shape[:2]
        backward = grad_s is not None
        logits = V.new_empty(1 + backward, parents, batch, children)
        stats = V.new_empty(2 + backward, batch, children)
        self._launch(
            "agreements",
            self._grid("ib"),
            self.pose,
            self.weight,
            V,
            V if grad_s is None else grad_s,
            V if grad_coupling is None else grad_coupling,
            logits,
            stats,
            LEAKY=self.leaky,
            BACKWARD=backward,
            OUTER=grad_coupling is not None,
        )
        return logits, stats

    def _sums(self, agreements: _Agreements | None) -> Tensor:
        """Votes summed over children, `[b, j, d]`.

        They are weighted by couplings, or by the gradients of logits if there are any.
        """
        children, parents, dim, _ = self.weight.shape
        per_split = BLOCKS_PER_SPLIT * self.tile.BLOCK_I
        num_splits = -(-children // per_split)
        size = (num_splits, len(self.pose), parents, dim)
        partial = self.pose.new_empty(size, dtype=torch.float32)
        self._launch(
            "sums",
            (num_splits, *self._grid("bj")),
            self.pose,
            self.weight,
            *(agreements or (partial, partial)),
            partial,
            per_split=per_split,
            FACTOR=_factor(agreements),
        )
        s = partial.sum(dim=0)
        return s * self.uniform if agreements is None else s

    def _grid(self, axes: str) -> tuple[int, ...]:
        """Programs: one for each block of samples b or of children i, or for each parent j."""
        children, parents = self.weight.shape[:2]
        counts = {
            "b": -(-len(self.pose) // self.tile.BLOCK_B),
            "i": -(-children // self.tile.BLOCK_I),
            "j": parents,
        }
        return tuple(counts[axis] for axis in axes)

    def _launch(self, kernel: str, grid: tuple[int, ...], *tensors: Tensor, **options: Any) -> None:
        """Run a kernel on poses or weights."""
        options |= {"batch": len(self.pose), "children": len(self.weight), "MODE": self.mode}
        self._run(kernel, grid, *tensors, **options)

    def _launch_on_parents(self, kernel: str, s: Tensor, *tensors: Tensor, **options: Any) -> None:
        """Run a kernel on vectors of parents `[..., b, j, d]`."""
        batch = math.prod(s.shape[:-2])
        grid = (-(-batch // self.tile.BLOCK_B), s.shape[-2])
        self._run(kernel, grid, s, *tensors, batch=batch, **options)

    def _run(self, kernel: str, grid: tuple[int, ...], *tensors: Tensor, **options: Any) -> None:
        """Run a kernel of `_triton_passes.py`."""
        from torchcaps.kernels.dynamic import _triton_passes

        options |= {"parents": self.weight.shape[1], "TILE": self.tile, **self.tile.options}
        with torch.cuda.device_of(tensors[0]):
            getattr(_triton_passes, kernel)[grid](*tensors, **options)


def _factor(agreements: _Agreements | None) -> int:
    """What votes are weighted by, in the kernels' numbers: nothing, couplings, or gradients."""
    return 0 if agreements is None else len(agreements[0])


# Of the implementations of an operation, those of lower rank are tried first.
fast_path(
    "dynamic_routing",
    "triton",
    obstacle,
    rank=5,
    reason="GPU kernels: products of matrices over many children, no votes",
    drawback=drawback,
)(define_route("triton", _TritonPasses, in_autocast=True))
