"""Convolution as products of numbers: a window of a map and the taps of a kernel, each turned into POINTS numbers.

The two-dimensional Fourier transform makes the correlation of a real window with real taps a product at each frequency.
Frequencies come in pairs of conjugates, of which one suffices; its complex product takes three real ones (Gauss):
(a + ib)(c + id) = c (a + b) - b (c + d) + i (c (a + b) + a (d - c)). So with three constant real matrices

    out = back @ ((to_points @ window) * (of_taps @ taps))

where `*` is elementwise. A window of 10x10 gives 6x6 outputs of 5x5 taps by 148 products in the place of 900.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[int, int]
# A product of transforms counts as one multiply-add; one of a transform itself as more, for its matrices are narrow.
TRANSFORM_COST = 1.5
# Products of a direct convolution that cost as much as one of this kind, overheads included.
ADVANTAGE = 1.6
LARGEST_WINDOW = 16


class Plan(NamedTuple):
    """How a convolution is cut up: its phases (one for each stride) have `taps`, and give `tile` outputs a window."""

    kernel: Pair
    stride: Pair
    out: Pair
    tile: Pair

    @property
    def taps(self) -> Pair:
        """Most taps of a phase of the kernel."""
        return _ceil(self.kernel[0], self.stride[0]), _ceil(self.kernel[1], self.stride[1])

    @property
    def window(self) -> Pair:
        """Pixels of a phase of the map that a tile depends on."""
        return self.tile[0] + self.taps[0] - 1, self.tile[1] + self.taps[1] - 1

    @property
    def tiles(self) -> Pair:
        """Tiles that cover the outputs."""
        return _ceil(self.out[0], self.tile[0]), _ceil(self.out[1], self.tile[1])

    @property
    def needed(self) -> Pair:
        """Height and width of the map that the tiles read; zeros where the map ends before."""
        each = zip(self.stride, self.tiles, self.tile, self.taps, strict=True)
        rows, columns = (s * (t * m + k - 1) for s, t, m, k in each)
        return rows, columns

    def phases(self) -> Iterator[Pair]:
        """Offsets of the phases that have taps."""
        rows, columns = (range(min(s, k)) for s, k in zip(self.stride, self.kernel, strict=True))
        return product(rows, columns)

    def cost(self, batch: int, channels: int, outputs: int) -> float:
        """Multiply-adds of the three transforms and the products, weighted."""
        rows, phases = batch * math.prod(self.tiles), len(list(self.phases()))
        into = (
            math.prod(self.window) * rows * channels * phases
            + math.prod(self.taps) * outputs * channels * phases
        )
        out_of = math.prod(self.tile) * rows * outputs
        return points(self.window) * (
            rows * outputs * channels * phases + TRANSFORM_COST * (into + out_of)
        )


@lru_cache(maxsize=64)
def plan(batch: int, weight: tuple[int, int, int, int], size: Pair, stride: Pair) -> Plan | None:
    """The cheapest way to cut up a convolution by weights `(outputs, channels, height, width)`; None if none pays."""
    outputs, channels, *kernel = weight
    out = (size[0] - kernel[0]) // stride[0] + 1, (size[1] - kernel[1]) // stride[1] + 1
    direct = batch * math.prod(out) * math.prod(kernel) * outputs * channels
    costs = {
        p: p.cost(batch, channels, outputs) for p in _plans((kernel[0], kernel[1]), stride, out)
    }
    best = min(costs, key=costs.__getitem__, default=None)
    return best if best is not None and ADVANTAGE * costs[best] < direct else None


def _plans(kernel: Pair, stride: Pair, out: Pair) -> Iterator[Plan]:
    """Every size of tile that covers the outputs with fewer tiles than the next smaller one, up to a largest window."""
    sizes = [sorted({_ceil(o, t) for t in range(1, o + 1)}) for o in out]
    for tile in product(*sizes):
        found = Plan(kernel, stride, out, (tile[0], tile[1]))
        if max(found.window) <= LARGEST_WINDOW:
            yield found


def points(window: Pair) -> int:
    """Products that a window takes: one for each real frequency, three for each pair of conjugates."""
    real = (2 - window[0] % 2) * (2 - window[1] % 2)
    return real + 3 * (math.prod(window) - real) // 2


class Matrices(NamedTuple):
    """The constants: `to_points` `[points, window]`, `of_taps` `[points, rows, columns]`, `back` `[tile, points]`."""

    to_points: Tensor
    of_taps: Tensor
    back: Tensor


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # they outlive the call
def matrices(window: Pair, taps: Pair, tile: Pair, dtype: torch.dtype) -> Matrices:
    """The matrices for a window of these sizes."""
    into, of, back = list[Tensor](), list[Tensor](), list[Tensor]()
    scale = 1.0 / math.prod(window)
    for frequency in product(range(window[0]), range(window[1])):
        mirrored = (-frequency[0] % window[0], -frequency[1] % window[1])
        if mirrored < frequency:
            continue  # the conjugate of one that was there before
        x, w, y = (_angles(frequency, window, sizes) for sizes in (window, taps, tile))
        a, b, c, d = (
            x.cos(),
            -x.sin(),
            w.cos(),
            w.sin(),
        )  # the taps' transform is conjugated: a correlation
        alone = mirrored == frequency
        into += [a] if alone else [a + b, a, b]
        of += [c] if alone else [c, d - c, c + d]
        back += (
            [scale * y.cos()]
            if alone
            else [2 * scale * z for z in (y.cos() - y.sin(), -y.sin(), -y.cos())]
        )
    found = torch.stack(into), torch.stack(of).unflatten(1, taps), torch.stack(back, dim=1)
    return Matrices(*(x.to(dtype) for x in found))


def _angles(frequency: Pair, window: Pair, sizes: Pair) -> Tensor:
    """2 pi <frequency, position> at all positions of a grid, flat; exact multiples of the window are taken off."""
    rows, columns = (
        torch.arange(n, dtype=torch.float64) * f % w / w
        for f, w, n in zip(frequency, window, sizes, strict=True)
    )
    return (2.0 * math.pi * (rows[:, None] + columns[None, :])).flatten()


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
