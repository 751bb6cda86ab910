"""Convolution in the frequency domain: how one is cut up, and the matrices of its transforms.

A convolution with a stride is a sum of convolutions with stride 1, one for each phase: the rows of
the map and of the kernel that are equal modulo the stride, and the columns likewise. Taps are the
elements of a kernel within a phase. The output is cut into tiles; the pixels of a phase that a tile
depends on are its window. Neighboring windows overlap.

The two-dimensional Fourier transform makes the correlation of a real window with real taps a
product at each frequency. Frequencies come in pairs of conjugates, of which one suffices. Its
complex product takes three real ones (Gauss):

    (a + ib)(c + id) = c (a + b) - b (c + d) + i (c (a + b) + a (d - c))

So window and taps become spectra of real numbers, one for each frequency that is real and three for
each pair of conjugates. With three constant matrices, and `*` elementwise:

    tile = spectrum_to_tile @ ((window_to_spectrum @ window) * (taps_to_spectrum @ taps))

A window of 10x10 gives 6x6 outputs of 5x5 taps by 148 products in the place of 900.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

# Height and width, or steps of rows and of columns.
Pair = tuple[int, int]
# Cost of a product within a transform, beside one of two spectra: its matrices are narrow.
TRANSFORM_COST = 1.5
# Products of a direct convolution that cost as much as one of this kind, overheads included.
ADVANTAGE = 1.6
LARGEST_WINDOW = 16


def _pair(function: Callable[..., int], *pairs: Pair) -> Pair:
    """A function of the numbers for rows, and of those for columns."""
    rows, columns = map(function, *pairs)
    return rows, columns


def _divide_up(x: int, y: int) -> int:
    """The quotient, rounded up."""
    return -(-x // y)


class Plan(NamedTuple):
    """How a convolution is cut up. Sizes are heights and widths.

    Attributes:
        kernel_size: of the convolution.
        stride: steps of rows and of columns.
        output_size: of the output.
        tile_size: of a tile, the outputs of one window.
    """

    kernel_size: Pair
    stride: Pair
    output_size: Pair
    tile_size: Pair

    @property
    def taps_size(self) -> Pair:
        """Most taps of a phase of the kernel; a stride has as many phases as steps."""
        return _pair(_divide_up, self.kernel_size, self.stride)

    @property
    def window_size(self) -> Pair:
        """Pixels of a phase of the map that a tile depends on."""
        return _pair(lambda tile, taps: tile + taps - 1, self.tile_size, self.taps_size)

    @property
    def num_tiles(self) -> Pair:
        """Rows and columns of tiles that cover the output."""
        return _pair(_divide_up, self.output_size, self.tile_size)

    @property
    def covered_size(self) -> Pair:
        """Outputs of all tiles; those beyond the output are not used."""
        return _pair(mul, self.num_tiles, self.tile_size)

    @property
    def map_size(self) -> Pair:
        """Pixels of all phases that the windows read; those beyond the map are zero."""
        pixels = _pair(lambda covered, taps: covered + taps - 1, self.covered_size, self.taps_size)
        return _pair(mul, self.stride, pixels)

    def phases(self) -> list[Pair]:
        """The phases that have taps, each by the row and column of its first pixel."""
        rows, columns = map(range, map(min, self.stride, self.kernel_size))
        return list(product(rows, columns))

    def cost(self, batch: int, channels: int, outputs: int) -> float:
        """Weighted number of multiply-adds of the three transforms and the products."""
        num_windows = batch * math.prod(self.num_tiles)
        num_phases = len(self.phases())
        window_transform = math.prod(self.window_size) * num_windows * channels * num_phases
        taps_transform = math.prod(self.taps_size) * outputs * channels * num_phases
        output_transform = math.prod(self.tile_size) * num_windows * outputs
        transforms = window_transform + taps_transform + output_transform
        products = num_windows * outputs * channels * num_phases
        return spectrum_length(self.window_size) * (products + TRANSFORM_COST * transforms)


@lru_cache(maxsize=64)
def make_plan(
    batch: int, weight: tuple[int, int, int, int], map_size: Pair, stride: Pair
) -> Plan | None:
    """The cheapest plan of a convolution; None if the direct convolution costs less.

    Args:
        batch: number of samples.
        weight: shape `(outputs, channels, height, width)` of the weight.
        map_size: height and width of the map.
        stride: of rows and columns.
    """
    outputs, channels, *_ = weight
    output_size = _pair(
        lambda side, kernel, step: (side - kernel) // step + 1, map_size, weight[2:], stride
    )
    direct_cost = batch * math.prod(output_size) * math.prod(weight)
    cheapest = None
    lowest = direct_cost / ADVANTAGE
    # Of each size of tile that saves a tile.
    heights, widths = (
        sorted({_divide_up(size, n) for n in range(1, size + 1)}) for size in output_size
    )
    for tile_size in product(heights, widths):
        plan = Plan(weight[2:], stride, output_size, tile_size)
        cost = plan.cost(batch, channels, outputs)
        if max(plan.window_size) <= LARGEST_WINDOW and cost < lowest:
            cheapest = plan
            lowest = cost
    return cheapest


def spectrum_length(window_size: Pair) -> int:
    """Numbers of a spectrum: one for each real frequency, three for each pair of conjugates."""
    num_real = (2 - window_size[0] % 2) * (2 - window_size[1] % 2)
    num_pairs = (math.prod(window_size) - num_real) // 2
    return num_real + 3 * num_pairs


class Matrices(NamedTuple):
    """The constant matrices of the transforms; r is the length of a spectrum.

    Attributes:
        window_to_spectrum: `[r, window height * width]`.
        taps_to_spectrum: `[r, taps height, taps width]`; a phase with fewer taps takes a part.
        spectrum_to_tile: `[tile height * width, r]`.
    """

    window_to_spectrum: Tensor
    taps_to_spectrum: Tensor
    spectrum_to_tile: Tensor


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # they outlive the call
def make_matrices(
    window_size: Pair, taps_size: Pair, tile_size: Pair, dtype: torch.dtype
) -> Matrices:
    """The matrices for a window of these sizes."""
    window_rows = []
    taps_rows = []
    tile_columns = []
    scale = 1.0 / math.prod(window_size)
    for frequency in product(range(window_size[0]), range(window_size[1])):
        conjugate = (-frequency[0] % window_size[0], -frequency[1] % window_size[1])
        if conjugate < frequency:
            continue
        window_angles = _angles(frequency, window_size, window_size)
        taps_angles = _angles(frequency, window_size, taps_size)
        tile_angles = _angles(frequency, window_size, tile_size)
        cos = tile_angles.cos()
        sin = tile_angles.sin()
        # a + ib of the window; c + id of the taps is conjugated, as this is a correlation.
        a = window_angles.cos()
        b = -window_angles.sin()
        c = taps_angles.cos()
        d = taps_angles.sin()
        if conjugate == frequency:  # a real one
            window_rows += [a]
            taps_rows += [c]
            tile_columns += [scale * cos]
        else:
            window_rows += [a + b, a, b]
            taps_rows += [c, d - c, c + d]
            tile_columns += [2 * scale * part for part in (cos - sin, -sin, -cos)]
    return Matrices(
        torch.stack(window_rows).to(dtype),
        torch.stack(taps_rows).unflatten(1, taps_size).to(dtype),
        torch.stack(tile_columns, dim=1).to(dtype),
    )


def _angles(frequency: Pair, window_size: Pair, grid_size: Pair) -> Tensor:
    """2 pi <frequency, position / window_size> at all positions of a grid, flat.

    Whole turns are taken off exactly.
    """
    turns = []
    for axis in range(2):
        positions = torch.arange(grid_size[axis], dtype=torch.float64)
        turns.append(positions * frequency[axis] % window_size[axis] / window_size[axis])
    row_turns, column_turns = turns
    return (2.0 * math.pi * (row_turns[:, None] + column_turns[None, :])).flatten()
