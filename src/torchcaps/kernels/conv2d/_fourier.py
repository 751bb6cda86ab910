"""Convolution as products of numbers: a window of a map and the taps of a kernel, each turned into POINTS numbers.

The two-dimensional Fourier transform makes the correlation of a real window with real taps a product at each frequency.
Frequencies come in pairs of conjugates, of which one suffices; its complex product takes three real ones (Gauss):
(a + ib)(c + id) = c (a + b) - b (c + d) + i (c (a + b) + a (d - c)). So with three constant real matrices

    out = back @ ((to_points @ window) * (of_taps @ taps))

where `*` is elementwise. A window of 10x10 gives 6x6 outputs of 5x5 taps by 148 products in the place of 900.
"""

import math
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[int, int]
# Cost of a product within a transform, beside one of two transforms: its matrices are narrow.
TRANSFORM_COST = 1.5
# Products of a direct convolution that cost as much as one of this kind, overheads included.
ADVANTAGE = 1.6
LARGEST_WINDOW = 16


class Plan(NamedTuple):
    """How a convolution is cut up.

    Attributes:
        kernel, stride: of the convolution.
        out: height and width of the output.
        tile: height and width of the outputs of one window.
    """

    kernel: Pair
    stride: Pair
    out: Pair
    tile: Pair

    @property
    def taps(self) -> Pair:
        """Most taps of a phase of the kernel; a stride has as many phases as steps."""
        height = math.ceil(self.kernel[0] / self.stride[0])
        width = math.ceil(self.kernel[1] / self.stride[1])
        return height, width

    @property
    def window(self) -> Pair:
        """Pixels of a phase of the map that a tile depends on."""
        return self.tile[0] + self.taps[0] - 1, self.tile[1] + self.taps[1] - 1

    @property
    def tiles(self) -> Pair:
        """Rows and columns of tiles that cover the output."""
        return math.ceil(self.out[0] / self.tile[0]), math.ceil(self.out[1] / self.tile[1])

    @property
    def needed(self) -> Pair:
        """Height and width of the map that the tiles read, with zeros beyond the map."""
        rows = self.tiles[0] * self.tile[0] + self.taps[0] - 1
        columns = self.tiles[1] * self.tile[1] + self.taps[1] - 1
        return self.stride[0] * rows, self.stride[1] * columns

    def phases(self) -> list[Pair]:
        """Offsets of the phases that have taps."""
        rows = range(min(self.stride[0], self.kernel[0]))
        columns = range(min(self.stride[1], self.kernel[1]))
        return list(product(rows, columns))

    def cost(self, batch: int, channels: int, outputs: int) -> float:
        """Weighted number of multiply-adds of the three transforms and the products."""
        num_windows = batch * math.prod(self.tiles)
        num_phases = len(self.phases())
        window_transform = math.prod(self.window) * num_windows * channels * num_phases
        tap_transform = math.prod(self.taps) * outputs * channels * num_phases
        output_transform = math.prod(self.tile) * num_windows * outputs
        transforms = window_transform + tap_transform + output_transform
        products = num_windows * outputs * channels * num_phases
        return count_points(self.window) * (products + TRANSFORM_COST * transforms)


@lru_cache(maxsize=64)
def make_plan(
    batch: int, weight: tuple[int, int, int, int], size: Pair, stride: Pair
) -> Plan | None:
    """The cheapest plan of a convolution; None if the direct convolution costs less.

    Args:
        batch: number of samples.
        weight: shape `(outputs, channels, height, width)` of the weight.
        size: height and width of the map.
        stride: of rows and columns.
    """
    outputs, channels, height, width = weight
    out = (size[0] - height) // stride[0] + 1, (size[1] - width) // stride[1] + 1
    costs = {
        plan: plan.cost(batch, channels, outputs)
        for plan in _list_plans((height, width), stride, out)
    }
    if not costs:
        return None
    best = min(costs, key=costs.__getitem__)
    direct_cost = batch * math.prod(out) * height * width * outputs * channels
    return best if ADVANTAGE * costs[best] < direct_cost else None


def _list_plans(kernel: Pair, stride: Pair, out: Pair) -> list[Plan]:
    """Plans up to the largest window, of each size of tile that saves a tile."""
    heights, widths = (sorted({math.ceil(size / n) for n in range(1, size + 1)}) for size in out)
    plans = [Plan(kernel, stride, out, tile) for tile in product(heights, widths)]
    return [plan for plan in plans if max(plan.window) <= LARGEST_WINDOW]


def count_points(window: Pair) -> int:
    """Products of a window: one for each real frequency, three for each pair of conjugates."""
    num_real = (2 - window[0] % 2) * (2 - window[1] % 2)
    num_pairs = (math.prod(window) - num_real) // 2
    return num_real + 3 * num_pairs


class Matrices(NamedTuple):
    """The constant matrices.

    Attributes:
        to_points: `[points, window]`.
        of_taps: `[points, rows, columns]`.
        back: `[tile, points]`.
    """

    to_points: Tensor
    of_taps: Tensor
    back: Tensor


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # they outlive the call
def make_matrices(window: Pair, taps: Pair, tile: Pair, dtype: torch.dtype) -> Matrices:
    """The matrices for a window of these sizes."""
    to_points = []
    of_taps = []
    back = []
    scale = 1.0 / math.prod(window)
    for frequency in product(range(window[0]), range(window[1])):
        conjugate = (-frequency[0] % window[0], -frequency[1] % window[1])
        if conjugate < frequency:
            continue
        x = _angles(frequency, window, window)
        w = _angles(frequency, window, taps)
        y = _angles(frequency, window, tile)
        # a + ib of the window; c + id of the taps is conjugated, as this is a correlation.
        a, b = x.cos(), -x.sin()
        c, d = w.cos(), w.sin()
        if conjugate == frequency:  # a real one
            to_points += [a]
            of_taps += [c]
            back += [scale * y.cos()]
        else:
            to_points += [a + b, a, b]
            of_taps += [c, d - c, c + d]
            back += [2 * scale * part for part in (y.cos() - y.sin(), -y.sin(), -y.cos())]
    return Matrices(
        torch.stack(to_points).to(dtype),
        torch.stack(of_taps).unflatten(1, taps).to(dtype),
        torch.stack(back, dim=1).to(dtype),
    )


def _angles(frequency: Pair, window: Pair, size: Pair) -> Tensor:
    """2 pi <frequency, position / window> at all positions of a grid, flat.

    Whole turns are taken off exactly.
    """
    turns = []
    for axis in range(2):
        positions = torch.arange(size[axis], dtype=torch.float64)
        turns.append(positions * frequency[axis] % window[axis] / window[axis])
    rows, columns = turns
    return (2.0 * math.pi * (rows[:, None] + columns[None, :])).flatten()
