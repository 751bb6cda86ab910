"""What fake tensors do not show of memory: what kernels take inside, and resident code.

Sizes follow `torchcaps.kernels`, which this package does not import: a test holds the constants
together. Those of torch's own kernels, and of code, were measured on Linux with torch 2.13.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

MIB = 1 << 20
# Constants of torchcaps.kernels: samples.BLOCK_BYTES; lanes.LANES; conv2d.frequency.BLOCK_BYTES and
# MAX_WINDOWS.
VOTES_BYTES = 3 << 20
LANES = 32
POINTS_BYTES = 10 << 20
MAX_WINDOWS = 256

# Bytes from which glibc always maps a block of its own. Smaller blocks lie on the heap, which does
# not shrink.
LARGE = 32 << 20
GAPS = 1.1  # size of the heap over the most that lies on it at once
TORCH = 168 * MIB  # code and tables of torch that a first training step makes resident
RESIDENT = {  # the same of an operator's first run
    "torchcaps::em_routing_numba": 103 * MIB,
    "torchcaps::map_routing_numba": 103 * MIB,
    "torchcaps::conv2d_frequency": 20 * MIB,
}


def resident(operators: Collection[str]) -> int:
    """Bytes of code and tables that become resident with the first run of these operators."""
    return TORCH + sum(RESIDENT.get(name, 0) for name in operators)


# The functions below are called with the arguments of an operator: (operands, settings), and for a
# gradient (operands, settings, saved tensors, gradients, flags of those that are needed).


def _blocked(pose: Tensor, weight: Tensor | None, *_: Any) -> int:
    """`dynamic.blocked`: three buffers of the votes of a block."""
    sizes = pose.shape[1:] if weight is None else weight.shape[:3]
    per_sample = math.prod(sizes) * pose.element_size()
    samples = min(len(pose), VOTES_BYTES // max(1, per_sample))
    return 3 * per_sample * max(1, samples)


def _blocked_backward(pose: Tensor, weight: Tensor | None, *rest: Any) -> int:
    """The same, and the factors of a block: 2 T - 1 numbers a pair, in a list and stacked."""
    (sums,) = rest[-3]
    dim = sums.shape[-1]
    factors = 2 * len(sums) - 1
    return _blocked(pose, weight) * (3 * dim + 2 * factors + 2) // (3 * dim)


def _frequency(x: Tensor, weight: Tensor, _bias: Tensor | None, stride: Sequence[int]) -> int:
    """`conv2d.frequency`: the output at its points, and four shared buffers of some channels."""
    outputs, channels, *kernel = weight.shape
    window = [
        (size - taps) // step + 1 + math.ceil(taps / step) - 1
        for size, taps, step in zip(x.shape[2:], kernel, stride, strict=True)
    ]
    pixels = math.prod(window)
    points = 3 * pixels // 2
    rows = min(len(x), MAX_WINDOWS)
    per_channel = points * max(rows, outputs) * x.element_size()
    block = min(channels, max(16, POINTS_BYTES // per_channel)) * x.element_size()
    buffers = (points + pixels) * rows * block + (points + points // 4) * outputs * block
    return points * rows * outputs * x.element_size() + buffers


def _frequency_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    *rest: Any,
) -> int:
    (gradient,) = rest[-2]
    return _frequency(x, weight, bias, stride) + int(gradient.numel() * gradient.element_size())


class _EMSizes(NamedTuple):
    """Sizes of a problem of `em.numba`, from the arguments of its operator.

    Attributes:
        groups: of samples, one sample to a lane.
        working: groups that are routed at once, one by each thread.
        layout: bytes of poses and activations, a sample to a lane.
        coupling: bytes of the couplings of a group.
        moments: bytes of the means of a group.
        tables: bytes of what all samples share: places, competitions, first couplings.
    """

    groups: int
    working: int
    layout: int
    coupling: int
    moments: int
    tables: int

    @classmethod
    def of(cls, pose: Tensor, activation: Tensor, weight: Tensor, *rest: Any) -> Self:
        """The sizes, with settings after beta_u, beta_a and shift."""
        kernel, stride = rest[3:5]
        children, parents, inner, outer = weight.shape
        parents *= math.prod((side - kernel) // stride + 1 for side in pose.shape[1:3])
        groups = math.ceil(len(pose) / LANES)
        lanes = LANES * weight.element_size()
        per_sample = math.prod(pose.shape[1:]) + math.prod(activation.shape[1:])
        return cls(
            groups,
            min(groups, torch.get_num_threads()),
            groups * lanes * per_sample,
            lanes * parents * children,
            lanes * parents * pose.shape[-1] // inner * outer,
            parents * children * (2 * torch.int64.itemsize + 3 * weight.element_size()),
        )


def _em_compiled(*arguments: Any) -> int:
    """`em.numba`: poses and activations once more, and couplings of the groups at work."""
    sizes = _EMSizes.of(*arguments)
    return sizes.layout + sizes.working * (sizes.coupling + 2 * sizes.moments) + sizes.tables


def _em_compiled_backward(*arguments: Any) -> int:
    """The same with gradients, of all iterations, and of the weights for each group."""
    sizes = _EMSizes.of(*arguments)
    weight, num_iterations = arguments[2], len(arguments[9])
    at_work = num_iterations * (2 * sizes.coupling + 4 * sizes.moments)
    gradients = sizes.groups * weight.numel() * weight.element_size()
    return 2 * sizes.layout + sizes.working * at_work + sizes.tables + gradients


def _direct(_x: Tensor, weight: Tensor, *_: Any) -> int:
    """torch's convolution: the weights once more, in the library's own order."""
    return weight.numel() * weight.element_size()


def _direct_backward(_grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> int:
    return _direct(x, weight)


WORKSPACE: dict[str, Callable[..., int]] = {
    "torchcaps::dynamic_routing_blocked": _blocked,
    "torchcaps::dynamic_routing_blocked_backward": _blocked_backward,
    "torchcaps::em_routing_numba": _em_compiled,
    "torchcaps::em_routing_numba_backward": _em_compiled_backward,
    "torchcaps::conv2d_frequency": _frequency,
    "torchcaps::conv2d_frequency_backward": _frequency_backward,
    "aten::convolution": _direct,
    "aten::convolution_backward": _direct_backward,
}
"""Bytes that an operator takes inside and gives back, from its arguments."""
