"""Convolutions with large kernels as matrix products at the points of `_fourier.py`.

For each phase of the stride and each block of channels, windows `[pixels, n, c]` and taps
`[taps, o, c]` are transformed to the points by one product each, `[r, n, c]` and `[r, o, c]`, and
multiplied point by point, `[r, n, o]`. A block stays in the cache. The backward pass transforms
windows and taps again.

Letters: b batch, n windows (samples x tiles), c channels of the map, o of the output, r points,
h and w height and width.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.kernels.conv2d._fourier import Pair, Plan, make_matrices, make_plan
from torchcaps.kernels.operator import Grads, Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.support import FULL, device_mismatch, wrong_dtype

# Side of the kernel and number of channels below which the frequency domain cannot pay.
MIN_KERNEL = 4
MIN_CHANNELS = 8
# Bytes of the larger of a block's two factors at the points, and windows that are taken at a time.
BLOCK_BYTES = 10 << 20
MAX_WINDOWS = 256


class Problem(NamedTuple):
    """Operands of the operator.

    Attributes:
        x: map `[b, c, h, w]`.
        weight: `[o, c, h, w]`.
        bias: `[o]`, or None.
        stride: of rows and of columns.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: list[int]

    @property
    def plan(self) -> Plan | None:
        """How the convolution is cut up; None where the direct one costs less."""
        batch, _, height, width = self.x.shape
        down, right = self.stride
        return make_plan(batch, tuple(self.weight.shape), (height, width), (down, right))


def supports(x: Tensor, weight: Tensor) -> Support:
    """Whether the operator can take this convolution.

    Where the frequency domain does not pay, it computes the convolution directly.
    """
    reason = device_mismatch({"x": x, "weight": weight}, torch.device("cpu"))
    reason = reason or wrong_dtype("weight", weight, (*FULL, torch.bfloat16))
    if reason is None and not torch.is_autocast_enabled("cpu"):
        reason = wrong_dtype("x", x, (weight.dtype,))
    if reason is not None:
        return Support(False, reason)
    outputs, channels, *kernel = weight.shape
    if min(kernel) < MIN_KERNEL or min(outputs, channels) < MIN_CHANNELS:
        limit = f"{MIN_KERNEL}x{MIN_KERNEL} pixels and {MIN_CHANNELS} channels"
        return Support(True, f"kernels below {limit} cost less directly", worth_it=False)
    return Support(
        True, "frequency domain: a fraction of the products, in blocks that stay in the cache"
    )


@fast_path("conv2d", "blocked", supports, rank=10)
def run(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair) -> Tensor:
    """Convolution without padding; channels-last memory."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        x = x.to(dtype)
        weight = weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return _conv2d(Problem(x, weight, bias, list(stride)))[0]


def _forward(problem: Problem) -> tuple[Tensor, ...]:
    x, weight, bias, stride = problem
    plan = problem.plan
    if plan is None:
        y = F.conv2d(x, weight, bias, stride)
        return (y.contiguous(memory_format=torch.channels_last),)
    y = convolve(x, weight, plan).contiguous(memory_format=torch.channels_last)
    return (y if bias is None else y.add_(bias.view(-1, 1, 1)),)


def _backward(
    problem: Problem, _kept: Sequence[Tensor], grads: Sequence[Tensor], needed: Sequence[bool]
) -> Grads:
    (grad,) = grads
    x, weight, _, stride = problem
    plan = problem.plan
    if plan is None:
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad,
            x,
            weight,
            None,
            stride,
            [0, 0],  # padding
            [1, 1],  # dilation
            False,  # transposed
            [0, 0],  # padding of the output
            1,  # groups
            [needed[0], needed[1], False],
        )
    else:
        grad_x, grad_weight = convolve_backward(grad, x, weight, plan, (needed[0], needed[1]))
    return grad_x, grad_weight, grad.sum(dim=(0, 2, 3)) if needed[2] else None


def _shapes(problem: Problem) -> tuple[Tensor, ...]:
    x, weight, _, (down, right) = problem
    rows = (x.shape[2] - weight.shape[2]) // down + 1
    columns = (x.shape[3] - weight.shape[3]) // right + 1
    size = (x.shape[0], weight.shape[0], rows, columns)
    return (torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last),)


def _reference(problem: Problem) -> tuple[Tensor, ...]:
    return (F.conv2d(*problem),)


_conv2d = operator(
    "conv2d_frequency",
    Problem,
    1,
    Parts(_forward, _backward, _shapes, _reference, memory_format=torch.channels_last),
)


def convolve(x: Tensor, weight: Tensor, plan: Plan) -> Tensor:
    """The convolution by a plan.

    Args:
        x: map `[b, c, h, w]`.
        weight: `[o, c, h, w]`.
        plan: how it is cut up.

    Returns:
        `[b, o, h, w]`.
    """
    y = x.new_empty(len(x), *plan.out, len(weight))  # [b, h, w, o]
    for samples in _split_samples(len(x), plan):
        work = _Work(x[samples], weight, plan)
        total = x.new_zeros(work.num_points, work.num_windows, len(weight))
        for block in work.blocks():
            taps = work.transform_taps(block)
            total.baddbmm_(work.transform_windows(block), taps.transpose(1, 2))
        y[samples] = work.transform_back(total)
    return y.permute(0, 3, 1, 2)


def convolve_backward(
    grad: Tensor, x: Tensor, weight: Tensor, plan: Plan, needed: tuple[bool, bool]
) -> Grads:
    """Gradients of the convolution by a plan.

    Args:
        grad: of the output, `[b, o, h, w]`.
        x, weight, plan: as in `convolve`.
        needed: whether the gradients of x and of weight are needed.

    Returns:
        The gradients of x and of weight; None for one that is not needed.
    """
    parts = _split_samples(len(x), plan)
    # Memory that is written once and whole needs no zeros: clearing fresh pages costs as much as a
    # product. Each pixel of the map is written once if the tiles read all of it, each phase has
    # taps and a phase has one tile.
    is_read_whole = x.shape[2] <= plan.needed[0] and x.shape[3] <= plan.needed[1]
    has_all_phases = len(plan.phases()) == math.prod(plan.stride)
    map_once = is_read_whole and has_all_phases and plan.tiles == (1, 1)
    taps_once = len(parts) == 1
    grad_x = _gradient_memory(x, map_once) if needed[0] else None
    grad_weight = _gradient_memory(weight, taps_once) if needed[1] else None
    for samples in parts:
        work = _Work(x[samples], weight, plan)
        at_points = work.transform_gradient(grad[samples])
        for block in work.blocks():
            if grad_x is not None:
                work.add_map_gradient(block, at_points, grad_x[samples], map_once)
            if grad_weight is not None:
                work.add_tap_gradient(block, at_points, grad_weight, taps_once)
    return grad_x, grad_weight


def _gradient_memory(x: Tensor, is_written_once: bool) -> Tensor:
    """Memory for the gradient of a tensor, filled with zeros unless it is written once."""
    make = torch.empty_like if is_written_once else torch.zeros_like
    return make(x, memory_format=torch.channels_last)


# Slices of the rows, columns and channels of a map or of taps `[*, h, w, c]`: a phase of the stride
# and some of the channels.
_Block = tuple[slice, slice, slice]


class _Work:
    """Some samples' map and the taps, cut up by a plan.

    Args:
        x: map `[b, c, h, w]`.
        weight: `[o, c, h, w]`.
        plan: how the convolution is cut up.

    Attributes:
        pixels: `[b, h, w, c]`, as large as the tiles read.
        taps: `[o, h, w, c]`.
        num_points, num_windows: r and n.
    """

    def __init__(self, x: Tensor, weight: Tensor, plan: Plan) -> None:
        self.plan = plan
        self.pixels = _fit_size(x.permute(0, 2, 3, 1), plan.needed)
        self.taps = weight.permute(0, 2, 3, 1)
        self.matrices = make_matrices(plan.window, plan.taps, plan.tile, x.dtype)
        self.num_points = len(self.matrices.to_points)
        self.num_windows = len(x) * math.prod(plan.tiles)
        self._buffers: dict[str, Tensor] = {}

    def blocks(self) -> Iterator[_Block]:
        """Blocks that together cover the map and the taps."""
        channels = self.pixels.shape[3]
        rows = max(self.num_windows, len(self.taps))
        channel_bytes = self.num_points * rows * self.pixels.element_size()
        num_parts = math.ceil(channels / max(16, BLOCK_BYTES // channel_bytes))
        down, right = self.plan.stride
        for top, left in self.plan.phases():
            for part in range(num_parts):
                first = channels * part // num_parts
                last = channels * (part + 1) // num_parts
                yield slice(top, None, down), slice(left, None, right), slice(first, last)

    def transform_windows(self, block: _Block) -> Tensor:
        """Windows at the points, `[r, n, c]`."""
        height, width = self.plan.window
        windows = self.pixels[:, *block].unfold(1, height, self.plan.tile[0])
        windows = windows.unfold(2, width, self.plan.tile[1])  # [b, tiles, tiles, c, h, w]
        flat = self._copy("windows", windows.permute(4, 5, 0, 1, 2, 3)).view(height * width, -1)
        at_points = self._multiply("windows at points", self.matrices.to_points, flat)
        return at_points.view(self.num_points, self.num_windows, -1)

    def transform_taps(self, block: _Block) -> Tensor:
        """Taps at the points, `[r, o, c]`."""
        taps = self.taps[:, *block]
        matrix = self._tap_matrix(taps)
        flat = self._copy("taps", taps.permute(1, 2, 0, 3)).view(matrix.shape[1], -1)
        at_points = self._multiply("taps at points", matrix, flat)
        return at_points.view(self.num_points, len(taps), -1)

    def transform_gradient(self, grad: Tensor) -> Tensor:
        """Gradient of the output `[b, o, h, w]` at the points, `[r, n, o]`."""
        (rows, columns), (height, width) = self.plan.tiles, self.plan.tile
        grad = _fit_size(grad.permute(0, 2, 3, 1), (rows * height, columns * width))
        tiles = grad.unflatten(2, (columns, width)).unflatten(1, (rows, height))
        flat = tiles.permute(2, 4, 0, 1, 3, 5).reshape(height * width, -1)
        return (self.matrices.back.t() @ flat).view(self.num_points, self.num_windows, -1)

    def transform_back(self, total: Tensor) -> Tensor:
        """Sums at the points `[r, n, o]` -> output `[b, h, w, o]`."""
        (rows, columns), (height, width) = self.plan.tiles, self.plan.tile
        outputs = total.shape[2]
        flat = self.matrices.back @ total.view(self.num_points, -1)
        tiles = flat.view(height, width, -1, rows, columns, outputs).permute(2, 3, 0, 4, 1, 5)
        whole = tiles.reshape(-1, rows * height, columns * width, outputs)
        return whole[:, : self.plan.out[0], : self.plan.out[1]]

    def add_map_gradient(
        self, block: _Block, at_points: Tensor, grad_x: Tensor, is_written_once: bool
    ) -> None:
        """Add the gradient of a block's windows to that of the map `[b, c, h, w]`.

        Args:
            block: of `blocks`.
            at_points: of `transform_gradient`.
            grad_x: gradient that is added to.
            is_written_once: whether to write instead of adding.
        """
        (height, width), (rows, columns) = self.plan.window, self.plan.tiles
        products = self._multiply("windows at points", at_points, self.transform_taps(block))
        flat = products.view(self.num_points, -1)
        windows = self._multiply("windows", self.matrices.to_points.t(), flat)
        windows = windows.view(height, width, len(grad_x), rows, columns, -1)
        phase = grad_x.permute(0, 2, 3, 1)[:, *block]
        for row in range(rows):
            for column in range(columns):
                top = row * self.plan.tile[0]
                left = column * self.plan.tile[1]
                target = phase[:, top : top + height, left : left + width]
                window = windows[: target.shape[1], : target.shape[2], :, row, column]
                _write(target, window.permute(2, 0, 1, 3), is_written_once)

    def add_tap_gradient(
        self, block: _Block, at_points: Tensor, grad_weight: Tensor, is_written_once: bool
    ) -> None:
        """Add the gradient of a block's taps to that of the weight `[o, c, h, w]`.

        The arguments are those of `add_map_gradient`.
        """
        target = grad_weight.permute(0, 2, 3, 1)[:, *block]
        outputs, height, width, _ = target.shape
        windows = self.transform_windows(block)
        products = self._multiply("taps at points", at_points.transpose(1, 2), windows)
        flat = products.view(self.num_points, -1)
        taps = self._multiply("taps", self._tap_matrix(target).t(), flat)
        taps = taps.view(height, width, outputs, -1).permute(2, 0, 1, 3)
        _write(target, taps, is_written_once)

    def _tap_matrix(self, taps: Tensor) -> Tensor:
        """The matrix `[r, taps]` of a phase, which may have fewer taps than others."""
        return self.matrices.of_taps[:, : taps.shape[1], : taps.shape[2]].flatten(1)

    def _copy(self, name: str, x: Tensor) -> Tensor:
        """A contiguous copy in memory that all blocks share: fresh pages cost as much as products."""
        return self._buffer(name, *x.shape).copy_(x)

    def _multiply(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """The product of matrices in memory that all blocks share."""
        return torch.matmul(a, b, out=self._buffer(name, *a.shape[:-1], b.shape[-1]))

    def _buffer(self, name: str, *shape: int) -> Tensor:
        """Shared memory of that name."""
        count = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < count:
            self._buffers[name] = self.pixels.new_empty(count)
        return self._buffers[name][:count].view(shape)


def _write(target: Tensor, x: Tensor, is_written_once: bool) -> None:
    """Add to the target, or write it."""
    if is_written_once:
        target.copy_(x)
    else:
        target.add_(x)


def _fit_size(pixels: Tensor, size: Pair) -> Tensor:
    """Cut `[b, h, w, c]` to a size, or fill it with zeros below and to the right."""
    pixels = pixels[:, : size[0], : size[1]]
    below = size[0] - pixels.shape[1]
    right = size[1] - pixels.shape[2]
    if below == right == 0:  # F.pad would copy
        return pixels
    return F.pad(pixels, (0, 0, 0, right, 0, below))


def _split_samples(batch: int, plan: Plan) -> list[slice]:
    """Slices of samples that have at most `MAX_WINDOWS` windows, or one sample each."""
    size = max(1, MAX_WINDOWS // math.prod(plan.tiles))
    return [slice(start, min(start + size, batch)) for start in range(0, batch, size)]
