"""Convolutions with large kernels as matrix products at the points of `_fourier.py`, in blocks that stay in the cache.

Letters: n windows (samples x tiles), c channels of the map, o of the outcome, r points. For each phase of the stride
and each block of channels: windows `[pixels, n, c]` and taps `[taps, o, c]` go to their points by one product each,
`[r, n, c]` and `[r, o, c]`, and are multiplied point by point, `[r, n, o]`. The backward pass makes them anew.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.kernels.conv2d._fourier import Matrices, Pair, Plan, matrices, plan
from torchcaps.kernels.operator import Grads, Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.kernels.support import FULL, device_mismatch, wrong_dtype

# Kernel and channels below which the frequency domain has no chance.
LEAST_KERNEL, LEAST_CHANNELS = 4, 8
# Bytes of the larger of a block's two operands at the points, and windows that are taken at a time.
BLOCK_BYTES, MOST_WINDOWS = 10 << 20, 256


class Problem(NamedTuple):
    """Operands: x `[b, c, h, w]`, weight `[o, c, h, w]`, bias `[o]`; stride of rows and columns."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: list[int]

    @property
    def plan(self) -> Plan | None:
        """How it is cut up, where that pays."""
        (batch, _, *size), (down, right) = self.x.shape, self.stride
        return plan(batch, tuple(self.weight.shape), (size[0], size[1]), (down, right))


def supports(x: Tensor, weight: Tensor) -> Support:
    """Whether the frequency domain can take this convolution; sizes that do not pay there run directly within it."""
    reason = device_mismatch({"x": x, "weight": weight}, torch.device("cpu"))
    reason = reason or wrong_dtype("weight", weight, (*FULL, torch.bfloat16))
    if reason is None and not torch.is_autocast_enabled("cpu"):
        reason = wrong_dtype("x", x, (weight.dtype,))
    if reason is not None:
        return Support(False, reason)
    outputs, channels, *kernel = weight.shape
    if min(kernel) < LEAST_KERNEL or min(outputs, channels) < LEAST_CHANNELS:
        least = f"{LEAST_KERNEL}x{LEAST_KERNEL} pixels and {LEAST_CHANNELS} channels"
        return Support(True, f"kernels below {least} cost less directly", worth_it=False)
    return Support(
        True, "frequency domain: a fraction of the products, in blocks that stay in the cache"
    )


@fast_path("conv2d", "blocked", supports, rank=10)
def run(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair) -> Tensor:
    """Convolution without padding; channels-last memory."""
    if torch.is_autocast_enabled("cpu"):
        kind = torch.get_autocast_dtype("cpu")
        x, weight, bias = x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    return _conv2d(Problem(x, weight, bias, list(stride)))[0]


def _forward(given: Problem) -> tuple[Tensor, ...]:
    x, weight, bias, stride = given
    if given.plan is None:
        return (F.conv2d(x, weight, bias, stride).contiguous(memory_format=torch.channels_last),)
    y = at_points(x, weight, given.plan).contiguous(memory_format=torch.channels_last)
    return (y if bias is None else y.add_(bias.view(-1, 1, 1)),)


def _backward(
    given: Problem, _kept: Sequence[Tensor], grads: Sequence[Tensor], wanted: Sequence[bool]
) -> Grads:
    (grad,), x, weight, chosen = grads, given.x, given.weight, given.plan
    if chosen is None:
        both, none, one = [wanted[0], wanted[1], False], [0, 0], [1, 1]
        backward = torch.ops.aten.convolution_backward
        *found, _ = backward(grad, x, weight, None, given.stride, none, one, False, none, 1, both)
    else:
        found = at_points_backward(grad, x, weight, chosen, (wanted[0], wanted[1]))
    return *found, grad.sum(dim=(0, 2, 3)) if wanted[2] else None


def _shapes(given: Problem) -> tuple[Tensor, ...]:
    x, weight, _, stride = given
    rows, columns = ((x.shape[n] - weight.shape[n]) // stride[n - 2] + 1 for n in (2, 3))
    size = (x.shape[0], weight.shape[0], rows, columns)
    return (torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last),)


def _reference(operands: Problem) -> tuple[Tensor, ...]:
    return (F.conv2d(*operands),)


_conv2d = operator(
    "conv2d_frequency",
    Problem,
    1,
    Parts(_forward, _backward, _shapes, _reference, memory_format=torch.channels_last),
)


def at_points(x: Tensor, weight: Tensor, chosen: Plan) -> Tensor:
    """The convolution by this plan; `[b, o, h, w]`."""
    y = x.new_empty(len(x), *chosen.out, len(weight))  # [b, h, w, o]
    taps = weight.permute(0, 2, 3, 1)
    for samples in _samples(len(x), chosen):
        work = _Work(_fitted(x[samples].permute(0, 2, 3, 1), chosen.needed), taps, chosen)
        total = x.new_zeros(work.points, work.rows, len(weight))
        for block in work.blocks():
            total.baddbmm_(
                work.windows_at_points(block), work.taps_at_points(block).transpose(1, 2)
            )
        y[samples] = work.outcome(total)
    return y.permute(0, 3, 1, 2)


def at_points_backward(
    grad: Tensor, x: Tensor, weight: Tensor, chosen: Plan, wanted: tuple[bool, bool]
) -> Grads:
    """Gradients by this plan of the map `[b, c, h, w]` and of the weight `[o, c, h, w]`, where wanted."""
    batch, _, *size = x.shape
    taps, parts = weight.permute(0, 2, 3, 1), _samples(batch, chosen)
    # What is written once and whole need not be zero before: clearing fresh pages costs as much as a product.
    read = all(n <= most for n, most in zip(size, chosen.needed, strict=True))
    once = (
        read and len(list(chosen.phases())) == math.prod(chosen.stride) and chosen.tiles == (1, 1)
    )
    found = [
        (torch.empty_like if whole else torch.zeros_like)(tensor, memory_format=torch.channels_last)
        if want
        else None
        for tensor, whole, want in zip((x, weight), (once, len(parts) == 1), wanted, strict=True)
    ]
    grad_x, grad_taps = (None if grad is None else grad.permute(0, 2, 3, 1) for grad in found)
    for samples in parts:
        work = _Work(_fitted(x[samples].permute(0, 2, 3, 1), chosen.needed), taps, chosen)
        against = work.gradient_at_points(grad[samples].permute(0, 2, 3, 1))
        for block in work.blocks():
            if grad_x is not None:
                work.add_to_map(block, against, grad_x[samples], once)
            if grad_taps is not None:
                work.add_to_taps(block, against, grad_taps, len(parts) == 1)
    return found


_Block = tuple[
    slice, slice, slice
]  # of a map, or of taps: a phase of the stride, and some of the channels


class _Work:
    """Some samples' map `[b, h, w, c]` and the taps `[o, h, w, c]`, before a plan."""

    def __init__(self, pixels: Tensor, taps: Tensor, chosen: Plan) -> None:
        self.pixels, self.taps, self.plan = pixels, taps, chosen
        self.constants: Matrices = matrices(chosen.window, chosen.taps, chosen.tile, pixels.dtype)
        self.points = len(self.constants.to_points)
        self.rows = len(pixels) * math.prod(chosen.tiles)
        self._kept: dict[str, Tensor] = {}

    def blocks(self) -> Iterator[_Block]:
        channels = self.pixels.shape[3]
        per_channel = self.points * max(self.rows, len(self.taps)) * self.pixels.element_size()
        parts = -(-channels // max(16, BLOCK_BYTES // per_channel))
        for phase in self.plan.phases():
            rows, columns = (
                slice(at, None, step) for at, step in zip(phase, self.plan.stride, strict=True)
            )
            for part in range(parts):
                yield rows, columns, slice(channels * part // parts, channels * (part + 1) // parts)

    def windows_at_points(self, block: _Block) -> Tensor:
        """`[r, n, c]`"""
        (high, wide), (rows, columns) = self.plan.window, self.plan.tile
        windows = (
            self.pixels[:, *block].unfold(1, high, rows).unfold(2, wide, columns)
        )  # [b, tiles, tiles, c, h, w]
        flat = self._copy("windows", windows.permute(4, 5, 0, 1, 2, 3)).view(high * wide, -1)
        return self._product("windows at points", self.constants.to_points, flat).view(
            self.points, self.rows, -1
        )

    def taps_at_points(self, block: _Block) -> Tensor:
        """`[r, o, c]`"""
        taps = self.taps[:, *block]
        matrix = self._tap_matrix(taps)
        flat = self._copy("taps", taps.permute(1, 2, 0, 3)).view(matrix.shape[1], -1)
        return self._product("taps at points", matrix, flat).view(self.points, len(taps), -1)

    def gradient_at_points(self, grad: Tensor) -> Tensor:
        """Gradient of the outcome `[b, h, w, o]` -> `[r, n, o]`."""
        (rows, columns), (high, wide) = self.plan.tiles, self.plan.tile
        grad = _fitted(grad, (rows * high, columns * wide))
        tiles = (
            grad.unflatten(2, (columns, wide)).unflatten(1, (rows, high)).permute(2, 4, 0, 1, 3, 5)
        )
        return (self.constants.back.t() @ tiles.reshape(high * wide, -1)).view(
            self.points, self.rows, -1
        )

    def outcome(self, total: Tensor) -> Tensor:
        """`[r, n, o]` -> `[b, h, w, o]`."""
        (rows, columns), (high, wide) = self.plan.tiles, self.plan.tile
        tiles = (self.constants.back @ total.view(self.points, -1)).view(
            high, wide, -1, rows, columns, total.shape[2]
        )
        whole = tiles.permute(2, 3, 0, 4, 1, 5).reshape(
            -1, rows * high, columns * wide, total.shape[2]
        )
        return whole[:, : self.plan.out[0], : self.plan.out[1]]

    def add_to_map(self, block: _Block, against: Tensor, grad: Tensor, once: bool) -> None:
        """Add (once: write) what a block's windows get from the gradient at the points to the map's `[b, h, w, c]`."""
        (high, wide), (rows, columns) = self.plan.window, self.plan.tiles
        at_points = self._product("windows at points", against, self.taps_at_points(block))
        found = self._product(
            "windows", self.constants.to_points.t(), at_points.view(self.points, -1)
        )
        found = found.view(high, wide, len(grad), rows, columns, -1)
        place = grad[:, *block]
        for row in range(rows):
            for column in range(columns):
                top, left = row * self.plan.tile[0], column * self.plan.tile[1]
                there = place[:, top : top + high, left : left + wide]
                values = found[: there.shape[1], : there.shape[2], :, row, column].permute(
                    2, 0, 1, 3
                )
                (there.copy_ if once else there.add_)(values)

    def add_to_taps(self, block: _Block, against: Tensor, grad: Tensor, once: bool) -> None:
        """Add (once: write) what a block's taps get from the gradient at the points to that of all `[o, h, w, c]`."""
        place = grad[:, *block]
        at_points = self._product(
            "taps at points", against.transpose(1, 2), self.windows_at_points(block)
        )
        found = self._product("taps", self._tap_matrix(place).t(), at_points.view(self.points, -1))
        values = found.view(place.shape[1], place.shape[2], len(place), -1).permute(2, 0, 1, 3)
        (place.copy_ if once else place.add_)(values)

    def _copy(self, name: str, values: Tensor) -> Tensor:
        """A contiguous copy, in memory that all blocks share: fresh pages would cost as much as the products."""
        return self._room(name, *values.shape).copy_(values)

    def _product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """a @ b, in memory that all blocks share."""
        return torch.matmul(a, b, out=self._room(name, *a.shape[:-1], b.shape[-1]))

    def _room(self, name: str, *shape: int) -> Tensor:
        count = math.prod(shape)
        if name not in self._kept or self._kept[name].numel() < count:
            self._kept[name] = self.pixels.new_empty(count)
        return self._kept[name][:count].view(shape)

    def _tap_matrix(self, taps: Tensor) -> Tensor:
        """`[r, taps]` for a phase, which may have fewer taps than others."""
        return self.constants.of_taps[:, : taps.shape[1], : taps.shape[2]].flatten(1)


def _fitted(pixels: Tensor, size: Pair) -> Tensor:
    """`[b, h, w, c]` cut, or filled with zeros below and to the right; `F.pad` would copy if nothing is missing."""
    pixels = pixels[:, : size[0], : size[1]]
    missing = size[0] - pixels.shape[1], size[1] - pixels.shape[2]
    return F.pad(pixels, (0, 0, 0, missing[1], 0, missing[0])) if any(missing) else pixels


def _samples(batch: int, chosen: Plan) -> list[slice]:
    size = max(1, MOST_WINDOWS // math.prod(chosen.tiles))
    return [slice(start, min(start + size, batch)) for start in range(0, batch, size)]
