"""What the fake tensors of `memory.py` do not show, in one place: memory inside of kernels, and resident code.

Sizes follow `torchcaps.kernels`, which this package does not import: a test holds the constants together. Those of
torch's own kernels, and of code, were measured on Linux with torch 2.13.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from torchcaps.bench.timing import MIB

# Constants of torchcaps.kernels: samples.BLOCK_BYTES; dynamic.numba.FACTORS_BYTES and LANES;
# conv2d.frequency.BLOCK_BYTES and MOST_WINDOWS.
VOTES_BYTES, FACTORS_BYTES, LANES = 3 << 20, 24 << 20, 16
POINTS_BYTES, MOST_WINDOWS = 10 << 20, 256

# Bytes from which glibc always maps a block of its own; smaller ones lie on the heap, which does not shrink.
LARGE = 32 << 20
GAPS = 1.1  # size of the heap over the most that lies on it at once
TORCH = 168 * MIB  # code and tables of torch that a first training step makes resident
RESIDENT = {  # the same of an operator's first run
    "torchcaps::dynamic_routing_numba": 103 * MIB,
    "torchcaps::em_routing_numba": 103 * MIB,
    "torchcaps::map_routing_numba": 103 * MIB,
    "torchcaps::conv2d_frequency": 20 * MIB,
}


def resident(operators: Collection[str]) -> int:
    """Bytes of code and tables that become resident with the first run of these operators."""
    return TORCH + sum(RESIDENT.get(name, 0) for name in operators)


# Operators take (operands, settings); their gradients (operands, settings, kept, gradients, which are wanted).


def _blocked(pose: Tensor, weight: Tensor | None, *_: Any) -> int:
    """`dynamic.blocked`: three buffers of the votes of a block."""
    sizes = pose.shape[1:] if weight is None else weight.shape[:3]
    per_sample = math.prod(sizes) * pose.element_size()
    return 3 * per_sample * max(1, min(len(pose), VOTES_BYTES // max(1, per_sample)))


def _blocked_backward(pose: Tensor, weight: Tensor | None, *rest: Any) -> int:
    """The same, and a block's factors: 2 (T - 1) + 1 numbers for each pair, in a list and stacked."""
    (sums,) = rest[-3]
    dim, factors = sums.shape[-1], 2 * len(sums) - 1
    return _blocked(pose, weight) * (3 * dim + 2 * factors + 2) // (3 * dim)


def _compiled(pose: Tensor, weight: Tensor, *_: Any) -> int:
    """`dynamic.numba`: the poses once more, a sample to a lane."""
    return _lanes(pose) * weight.element_size()


def _compiled_backward(pose: Tensor, weight: Tensor, *rest: Any) -> int:
    """Poses and their gradients by lane, and the factors of a block of groups."""
    (sums,) = rest[-3]
    groups = -(-len(pose) // LANES)
    per_group = max(
        1, 2 * (len(sums) - 1) * math.prod(weight.shape[:2]) * LANES * weight.element_size()
    )
    taken = min(groups, max(torch.get_num_threads(), FACTORS_BYTES // per_group))
    return taken * per_group + 2 * _lanes(pose) * weight.element_size() * taken // groups


def _lanes(pose: Tensor) -> int:
    return -(-len(pose) // LANES) * LANES * math.prod(pose.shape[1:])


def _frequency(x: Tensor, weight: Tensor, _bias: Tensor | None, stride: Sequence[int]) -> int:
    """`conv2d.frequency`: the outcome at its points, and four shared buffers of a block of channels."""
    outputs, channels, *kernel = weight.shape
    window = [
        (n - k) // s + 1 + -(-k // s) - 1
        for n, k, s in zip(x.shape[2:], kernel, stride, strict=True)
    ]
    points = 3 * math.prod(window) // 2
    rows = min(len(x), MOST_WINDOWS)
    per_channel = points * max(rows, outputs) * x.element_size()
    block = min(channels, max(16, POINTS_BYTES // per_channel)) * x.element_size()
    buffers = (points + math.prod(window)) * rows * block + (points + points // 4) * outputs * block
    return points * rows * outputs * x.element_size() + buffers


def _frequency_backward(
    x: Tensor, weight: Tensor, _bias: Tensor | None, stride: Sequence[int], *rest: Any
) -> int:
    (grad,) = rest[-2]
    return _frequency(x, weight, None, stride) + int(grad.numel() * grad.element_size())


def _em_compiled(pose: Tensor, activation: Tensor, weight: Tensor, *_: Any) -> int:
    """`em.numba`: poses and activations once more, a sample to a lane."""
    return (_lanes(pose) + _lanes(activation)) * weight.element_size()


def _em_compiled_backward(pose: Tensor, activation: Tensor, weight: Tensor, *_: Any) -> int:
    """The same with its gradients, and those of the weights for each group of samples."""
    groups = -(-len(pose) // LANES)
    return (
        2 * _em_compiled(pose, activation, weight) + groups * weight.numel() * weight.element_size()
    )


def _direct(_x: Tensor, weight: Tensor, *_: Any) -> int:
    """torch's convolution: the weights once more, in the library's own order."""
    return weight.numel() * weight.element_size()


def _direct_backward(_grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> int:
    return _direct(x, weight)


WORKSPACE: dict[str, Callable[..., int]] = {
    "torchcaps::dynamic_routing_blocked": _blocked,
    "torchcaps::dynamic_routing_blocked_backward": _blocked_backward,
    "torchcaps::dynamic_routing_numba": _compiled,
    "torchcaps::dynamic_routing_numba_backward": _compiled_backward,
    "torchcaps::em_routing_numba": _em_compiled,
    "torchcaps::em_routing_numba_backward": _em_compiled_backward,
    "torchcaps::conv2d_frequency": _frequency,
    "torchcaps::conv2d_frequency_backward": _frequency_backward,
    "aten::convolution": _direct,
    "aten::convolution_backward": _direct_backward,
}
"""Bytes that an operator takes inside and gives back, from its arguments."""
