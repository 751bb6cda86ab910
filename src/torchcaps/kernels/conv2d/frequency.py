"""Convolution with large kernels in the frequency domain, on a CPU.

The operator `torchcaps::conv2d_frequency` computes `torch.nn.functional.conv2d` without padding,
for a stride (down, right):

    y[b, o, p, q] = bias[o] + sum_{c, h, w} weight[o, c, h, w] x[b, c, p down + h, q right + w]

It takes three steps:

1. Phases: rows that are equal modulo `down` and columns that are equal modulo `right`, of the map x
   and of the kernel. Only equal phases meet, in a convolution of stride 1, and y is the sum of
   these. The elements of a kernel within a phase are called taps.
2. Tiles: the output is cut into tiles of one size. A tile depends on one window of pixels of each
   phase. The windows of neighboring tiles overlap.
3. Spectra: three constant real matrices A, B, C turn windows and taps into spectra of r real
   numbers, and the products of these into the tile: `tile = C ((A window) * (B taps))`. The file
   `_fourier.py` derives the matrices and chooses the size of the tiles.

With channels, the products of number k of all spectra, k = 1 ... r, are a product of two matrices:

    V = A windows  [r, n, c]     U = B taps  [r, o, c]
    S_k = sum over phases of V_k U_k^T  [r, n, o]     tiles = C S

    G = C^T dL/dtiles  [r, n, o]
    dL/dwindows = A^T (G_k U_k)     dL/dtaps = B^T (G_k^T V_k)

Names here: `window_spectra` is V, `tap_spectra` U, `output_spectra` S and `grad_spectra` G. Of a
9x9 kernel with stride 2, a phase has 5x5 taps, and a tile of 6x6 outputs depends on a window of
10x10 pixels. The spectrum of such a window has 4 real numbers and 48 pairs of conjugate complex
ones. A product of complex numbers is computed by three products of real ones, so that a spectrum
has r = 4 + 3 x 48 = 148 real numbers. A tile and phase take 148 multiplications, where the direct
way takes 6 x 6 x 25 = 900. One phase of a block of channels is taken at a time, so that it stays in the cache. The
backward pass computes V and U again, which is faster than storing them.

A `Plan` says how a convolution is cut up: its phases, the sizes of tiles, windows and taps, and the
numbers of tiles down and across. `covered_size` is the size of all tiles of a sample together,
which is the output's or larger; `map_size` is the size of the windows together.

Letters of shapes: b samples, n windows of a phase (samples x tiles), c channels of the map, o
channels of the output, r numbers of a spectrum, h and w height and width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.kernels.conv2d._fourier import Pair, Plan, make_matrices, make_plan
from torchcaps.kernels.operator import Grads, define_operator
from torchcaps.kernels.registry import fast_path
from torchcaps.kernels.support import FULL_PRECISION, device_mismatch, wrong_dtype

# Side of the kernel and number of channels below which the frequency domain cannot pay.
MIN_KERNEL = 4
MIN_CHANNELS = 8
# Bytes of the larger one of V and U for one block of channels: a share of the cache.
BLOCK_BYTES = 10 << 20
MIN_BLOCK_CHANNELS = 16
# Windows that are taken at a time, unless one sample has more.
MAX_WINDOWS = 256


class Problem(NamedTuple):
    """Operands of the operator.

    Attributes:
        x: feature map `[b, c, h, w]`.
        weight: kernels `[o, c, h, w]`.
        bias: `[o]`, or None.
        stride: steps of rows and of columns.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: list[int]

    @property
    def plan(self) -> Plan | None:
        """How the convolution is cut up; None where the direct convolution costs less."""
        batch, _, height, width = self.x.shape
        down, right = self.stride
        return make_plan(batch, tuple(self.weight.shape), (height, width), (down, right))

    def empty_outputs(self) -> tuple[Tensor, ...]:
        """An empty output."""
        return (torch.empty_like(self.reference()[0], memory_format=torch.channels_last),)

    def forward(self) -> tuple[Tensor, ...]:
        """The output `[b, o, h, w]`."""
        plan = self.plan
        y = self.reference()[0] if plan is None else convolve(self.x, self.weight, plan)
        y = y.contiguous(memory_format=torch.channels_last)
        if plan is not None and self.bias is not None:
            y.add_(self.bias.view(-1, 1, 1))
        return (y,)

    def backward(
        self, _saved: Sequence[Tensor], grads: Sequence[Tensor], needed: Sequence[bool]
    ) -> Grads:
        """Gradients of x, weight and bias, of those that are needed; no output is saved for it."""
        (grad_y,) = grads
        needs_x, needs_weight, needs_bias = needed
        x, weight, _, stride = self
        plan = self.plan
        if plan is None:
            grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
                grad_y,
                x,
                weight,
                None,
                stride,
                [0, 0],  # padding
                [1, 1],  # dilation
                False,  # transposed
                [0, 0],  # padding of the output
                1,  # groups
                [needs_x, needs_weight, False],
            )
        else:
            grad_x, grad_weight = convolve_backward(
                grad_y, x, weight, plan, needed=(needs_x, needs_weight)
            )
        grad_bias = grad_y.sum(dim=(0, 2, 3)) if needs_bias else None
        return grad_x, grad_weight, grad_bias

    def reference(self) -> tuple[Tensor, ...]:
        """The output by torch's own convolution."""
        return (F.conv2d(self.x, self.weight, self.bias, self.stride),)


def obstacle(x: Tensor, weight: Tensor) -> str | None:
    """Why the operator cannot take this convolution.

    It takes float32, float64 (`FULL_PRECISION`) and bfloat16. For shapes where the frequency domain
    costs more than it saves, the operator itself convolves directly.
    """
    reason = device_mismatch({"x": x, "weight": weight}, torch.device("cpu"))
    reason = reason or wrong_dtype("weight", weight, (*FULL_PRECISION, torch.bfloat16))
    if reason is None and not torch.is_autocast_enabled("cpu"):
        reason = wrong_dtype("x", x, (weight.dtype,))
    return reason


def drawback(_x: Tensor, weight: Tensor) -> str | None:
    """Why a direct convolution is better."""
    if min(weight.shape[2:]) < MIN_KERNEL or min(weight.shape[:2]) < MIN_CHANNELS:
        limit = f"{MIN_KERNEL}x{MIN_KERNEL} pixels or {MIN_CHANNELS} channels"
        return f"kernels below {limit} cost less directly"
    return None


# Of the implementations of an operation, those of lower rank are tried first. Every implementation
# in blocks of torch operations is called "blocked".
@fast_path(
    "conv2d",
    "blocked",
    obstacle,
    rank=10,
    reason="frequency domain: a fraction of the products, in blocks that stay in the cache",
    drawback=drawback,
)
def run(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair) -> Tensor:
    """Convolve without padding; the implementation "blocked" of `torchcaps.ops.conv2d`.

    Args:
        x: map `[b, c, h, w]`.
        weight: kernels `[o, c, h, w]`.
        bias: `[o]`, or None.
        stride: steps of rows and of columns.

    Returns:
        `[b, o, h, w]`, channels last in memory, in the type of an autocast if there is one.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        x = x.to(dtype)
        weight = weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    (y,) = _conv2d(Problem(x, weight, bias, list(stride)))
    return y


# An operator of torch, `torchcaps::conv2d_frequency`, with its gradient.
_conv2d = define_operator(
    "conv2d_frequency",
    Problem,
    memory_format=torch.channels_last,
)


def convolve(x: Tensor, weight: Tensor, plan: Plan) -> Tensor:
    """The convolution by a plan, without bias.

    Args:
        x: map `[b, c, h, w]`.
        weight: kernels `[o, c, h, w]`.
        plan: how it is cut up.

    Returns:
        `[b, o, h, w]`.
    """
    y = x.new_empty(len(x), *plan.output_size, len(weight))  # [b, h, w, o]
    for samples in _split_samples(len(x), plan):
        transforms = _Transforms(x[samples], weight, plan)
        size = (transforms.spectrum_length, transforms.num_windows, len(weight))
        output_spectra = x.new_zeros(size)
        for block in transforms.blocks():
            tap_spectra = transforms.transform_taps(block)
            window_spectra = transforms.transform_windows(block)
            output_spectra.baddbmm_(window_spectra, tap_spectra.transpose(1, 2))
        y[samples] = transforms.make_output(output_spectra)
    return y.permute(0, 3, 1, 2)


def convolve_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, plan: Plan, needed: tuple[bool, bool]
) -> Grads:
    """Gradients of the convolution by a plan.

    Args:
        grad_y: gradient of the output, `[b, o, h, w]`.
        x: as in `convolve`.
        weight: as in `convolve`.
        plan: as in `convolve`.
        needed: whether the gradients of x and of weight are needed.

    Returns:
        The gradients of x and of weight; None for one that is not needed.
    """
    parts = _split_samples(len(x), plan)
    # A gradient is a sum over tiles and parts of the batch, which starts from zeros. Where every
    # number is written exactly once, it is written over memory that is not initialized. For a pixel
    # of the map this holds if the windows cover the map, each phase has taps and a phase has one
    # tile; for a tap, if all samples are taken at once.
    height, width = x.shape[2:]
    is_covered = height <= plan.map_size[0] and width <= plan.map_size[1]
    has_all_phases = len(plan.phases()) == math.prod(plan.stride)
    is_single = is_covered and has_all_phases and plan.num_tiles == (1, 1)
    make_map, write_map = _WAYS[is_single]
    make_taps, write_taps = _WAYS[len(parts) == 1]
    grad_x = make_map(x, memory_format=torch.channels_last) if needed[0] else None
    grad_weight = make_taps(weight, memory_format=torch.channels_last) if needed[1] else None
    for samples in parts:
        transforms = _Transforms(x[samples], weight, plan)
        grad_spectra = transforms.transform_gradient(grad_y[samples])
        for block in transforms.blocks():
            if grad_x is not None:
                transforms.add_map_gradient(block, grad_spectra, grad_x[samples], write_map)
            if grad_weight is not None:
                transforms.add_taps_gradient(block, grad_spectra, grad_weight, write_taps)
    return grad_x, grad_weight


_Write = Callable[[Tensor, Tensor], Tensor]
# What makes the memory of a gradient, and what writes there, by whether each number is written
# once. To clear fresh pages of memory takes as long as one of the matrix products.
_WAYS: dict[bool, tuple[Any, _Write]] = {
    False: (torch.zeros_like, Tensor.add_),
    True: (torch.empty_like, Tensor.copy_),
}

# One phase and some channels: slices of the axes of a map or kernels `[*, h, w, c]`.
_Block = tuple[slice, slice, slice, slice]


class _Transforms:
    """Transforms of the windows of some samples, and of the taps, to spectra and back.

    Args:
        x: map `[b, c, h, w]` of these samples.
        weight: kernels `[o, c, h, w]`.
        plan: how the convolution is cut up.

    Attributes:
        pixels: the map `[b, h, w, c]`, as large as the windows need it.
        kernels: `[o, h, w, c]`.
        matrices: A, B and C, the matrices of the transforms.
        spectrum_length, num_windows: r and n.
    """

    def __init__(self, x: Tensor, weight: Tensor, plan: Plan) -> None:
        self.plan = plan
        self.pixels = _fit_size(x.permute(0, 2, 3, 1), plan.map_size)
        self.kernels = weight.permute(0, 2, 3, 1)
        self.matrices = make_matrices(plan.window_size, plan.taps_size, plan.tile_size, x.dtype)
        self.spectrum_length = len(self.matrices.window_to_spectrum)
        self.num_windows = len(x) * math.prod(plan.num_tiles)
        self._buffers: dict[str, Tensor] = {}

    def blocks(self) -> Iterator[_Block]:
        """Blocks that together cover the map and the kernels."""
        channels = self.pixels.shape[3]
        num_rows = max(self.num_windows, len(self.kernels))
        channel_bytes = self.spectrum_length * num_rows * self.pixels.element_size()
        block_channels = max(MIN_BLOCK_CHANNELS, BLOCK_BYTES // channel_bytes)
        num_parts = math.ceil(channels / block_channels)
        down, right = self.plan.stride
        for top, left in self.plan.phases():
            for part in range(num_parts):
                start = channels * part // num_parts
                stop = channels * (part + 1) // num_parts
                rows = slice(top, None, down)
                columns = slice(left, None, right)
                yield slice(None), rows, columns, slice(start, stop)

    def transform_windows(self, block: _Block) -> Tensor:
        """V = A windows, `[r, n, c]`."""
        height, width = self.plan.window_size
        down, right = self.plan.tile_size
        phase = self.pixels[block]
        windows = phase.unfold(1, height, down).unfold(2, width, right)
        windows = windows.permute(4, 5, 0, 1, 2, 3)  # [h, w, b, tile rows, tile columns, c]
        flat = self._copy("windows", windows).view(height * width, -1)
        spectra = self._multiply("window spectra", self.matrices.window_to_spectrum, flat)
        return spectra.view(self.spectrum_length, self.num_windows, -1)

    def transform_taps(self, block: _Block) -> Tensor:
        """U = B taps, `[r, o, c]`."""
        taps = self.kernels[block]
        matrix = self._taps_matrix(taps)
        flat = self._copy("taps", taps.permute(1, 2, 0, 3)).view(matrix.shape[1], -1)
        spectra = self._multiply("tap spectra", matrix, flat)
        return spectra.view(self.spectrum_length, len(taps), -1)

    def make_output(self, output_spectra: Tensor) -> Tensor:
        """Output `[b, h, w, o]` from S `[r, n, o]`: tiles = C S."""
        rows, columns = self.plan.num_tiles
        height, width = self.plan.tile_size
        outputs = output_spectra.shape[2]
        flat = self.matrices.spectrum_to_tile @ output_spectra.view(self.spectrum_length, -1)
        tiles = flat.view(height, width, -1, rows, columns, outputs)
        tiles = tiles.permute(2, 3, 0, 4, 1, 5)  # [b, rows, h, columns, w, o]
        covered = tiles.reshape(-1, rows * height, columns * width, outputs)
        out_height, out_width = self.plan.output_size
        return covered[:, :out_height, :out_width]

    def transform_gradient(self, grad_y: Tensor) -> Tensor:
        """G = C^T dL/dtiles, `[r, n, o]`, from the gradient of the output `[b, o, h, w]`."""
        rows, columns = self.plan.num_tiles
        height, width = self.plan.tile_size
        covered = _fit_size(grad_y.permute(0, 2, 3, 1), self.plan.covered_size)
        tiles = covered.unflatten(2, (columns, width)).unflatten(1, (rows, height))
        tiles = tiles.permute(2, 4, 0, 1, 3, 5)  # [h, w, b, rows, columns, o]
        flat = tiles.reshape(height * width, -1)
        grad_spectra = self.matrices.spectrum_to_tile.t() @ flat
        return grad_spectra.view(self.spectrum_length, self.num_windows, -1)

    def add_map_gradient(
        self, block: _Block, grad_spectra: Tensor, grad_x: Tensor, write: _Write
    ) -> None:
        """Add dL/dwindows = A^T (G U) of a block to the gradient of the map.

        Args:
            block: of `blocks`.
            grad_spectra: G, of `transform_gradient`.
            grad_x: gradient of the map `[b, c, h, w]`, changed in place.
            write: how; `Tensor.copy_` or `Tensor.add_`.
        """
        height, width = self.plan.window_size
        rows, columns = self.plan.num_tiles
        tap_spectra = self.transform_taps(block)
        # G U has the shape of V, whose buffer is free here.
        products = self._multiply("window spectra", grad_spectra, tap_spectra)
        flat = products.view(self.spectrum_length, -1)
        flat_windows = self._multiply("windows", self.matrices.window_to_spectrum.t(), flat)
        windows = flat_windows.view(height, width, len(grad_x), rows, columns, -1)
        grad_phase = grad_x.permute(0, 2, 3, 1)[block]
        for row in range(rows):
            for column in range(columns):
                top = row * self.plan.tile_size[0]
                left = column * self.plan.tile_size[1]
                # The last windows may reach beyond the map.
                target = grad_phase[:, top : top + height, left : left + width]
                window = windows[: target.shape[1], : target.shape[2], :, row, column]
                write(target, window.permute(2, 0, 1, 3))

    def add_taps_gradient(
        self, block: _Block, grad_spectra: Tensor, grad_weight: Tensor, write: _Write
    ) -> None:
        """Add dL/dtaps = B^T (G^T V) of a block to the gradient of the weight `[o, c, h, w]`.

        The arguments are those of `add_map_gradient`.
        """
        target = grad_weight.permute(0, 2, 3, 1)[block]
        outputs, height, width, _ = target.shape
        window_spectra = self.transform_windows(block)
        # G^T V has the shape of U, whose buffer is free here.
        products = self._multiply("tap spectra", grad_spectra.transpose(1, 2), window_spectra)
        flat = products.view(self.spectrum_length, -1)
        flat_taps = self._multiply("taps", self._taps_matrix(target).t(), flat)
        taps = flat_taps.view(height, width, outputs, -1)
        write(target, taps.permute(2, 0, 1, 3))

    def _taps_matrix(self, taps: Tensor) -> Tensor:
        """B `[r, h w]` for the taps `[o, h, w, c]` of a phase, which may have fewer than others."""
        _, height, width, _ = taps.shape
        return self.matrices.taps_to_spectrum[:, :height, :width].flatten(1)

    def _copy(self, name: str, x: Tensor) -> Tensor:
        """A contiguous copy in the buffer of that name."""
        return self._buffer(name, x.shape).copy_(x)

    def _multiply(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """The product of matrices in the buffer of that name."""
        return torch.matmul(a, b, out=self._buffer(name, a.shape[:-1] + b.shape[-1:]))

    def _buffer(self, name: str, shape: torch.Size) -> Tensor:
        """Memory that all blocks share: fresh pages of memory take as long as the products."""
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count:
            buffer = self.pixels.new_empty(count)
            self._buffers[name] = buffer
        return buffer[:count].view(shape)


def _fit_size(pixels: Tensor, size: Pair) -> Tensor:
    """Cut `[b, h, w, c]` to a height and width, or fill it with zeros below and to the right."""
    height, width = size
    pixels = pixels[:, :height, :width]
    below = height - pixels.shape[1]
    right = width - pixels.shape[2]
    if below == right == 0:  # F.pad would copy
        return pixels
    return F.pad(pixels, (0, 0, 0, right, 0, below))  # axes c, w, h: before and behind


def _split_samples(batch: int, plan: Plan) -> list[slice]:
    """Slices of samples that have at most `MAX_WINDOWS` windows, or one sample each."""
    size = max(1, MAX_WINDOWS // math.prod(plan.num_tiles))
    return [slice(start, min(start + size, batch)) for start in range(0, batch, size)]
