"""Images made ready to draw, and grids of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import ArgumentError, named_shape
from torchcaps.viz.canvas import SMALL, TEXT, Axes, Figure, new_figure
from torchcaps.viz.names import short


def pictures(argument: str, images: ArrayLike) -> NDArray[np.uint8]:
    """Images `[n, channels, height, width]` as `[n, height, width, 3]` bytes. Integer images are in 0-255, others in
    [0, 1]; what lies outside is clipped and NaN is black. Three channels are colors; of any other number the first is
    shown in gray. Raises ValueError for an array with other axes, or without a pixel."""
    values = np.asarray(images)
    if values.ndim != 4 or values.size == 0:
        came = named_shape(("n", "channels", "height", "width"), values.shape)
        raise ArgumentError(
            argument, f"expected [n, channels, height, width] with at least one image, got {came}"
        )
    if not np.issubdtype(values.dtype, np.integer):
        values = np.nan_to_num(values.astype(np.float32)) * 255 + 0.5
    last = values.clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    return last if last.shape[-1] == 3 else last[..., :1].repeat(3, axis=-1)


def check_alike(
    argument: str, images: NDArray[np.uint8], of: str, others: NDArray[np.uint8]
) -> None:
    """Raise ValueError unless these pictures have the shape of the others, which are named in words."""
    if images.shape != others.shape:
        want, came = (
            named_shape(("n", "height", "width", "colors"), each.shape) for each in (others, images)
        )
        raise ArgumentError(argument, f"expected the shape of {of}, {want}, got {came}")


def tile_size(size: tuple[int, ...], longest: float) -> tuple[float, float]:
    """Height and width in inches of an image of `size` pixels whose longer side takes `longest` inches."""
    scale = longest / max(size)
    return size[0] * scale, size[1] * scale


def tile_grid(
    tiles: NDArray[np.uint8],
    names: Sequence[str],
    title: str = "",
    *,
    longest: float = 0.65,
    below: float = 0.0,
) -> Figure:
    """Images `[n, height, width, 3]` in as many rows as there are names, with a longer side of so many inches or less.
    The one axes is in cells: image k of a row spans k to k + 1, and the rows go down from 0. There is room `below`."""
    rows, columns = len(names), len(tiles) // len(names)
    gap = max(1, round(max(tiles.shape[1:3]) / 28))  # pixels on each side
    cells = np.pad(tiles, ((0, 0), (gap, gap), (gap, gap), (0, 0)), constant_values=255)
    height, width = cells.shape[1:3]
    whole = (
        cells.reshape(rows, columns, height, width, 3)
        .swapaxes(1, 2)
        .reshape(rows * height, columns * width, 3)
    )
    down, across = tile_size((height, width), min(longest, 17.0 / rows, 14.0 / columns))
    figure = new_figure(
        max(columns * across, 3.0) + 0.9, rows * down + below + (0.4 if title else 0.2)
    )
    axes: Axes = figure.subplots()
    how = (
        "nearest" if height < down * figure.dpi else "antialiased"
    )  # slow, and of use where pixels are lost
    axes.imshow(whole, extent=(0, columns, rows, 0), aspect=height / width, interpolation=how)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=SMALL)
    axes.set_xticks([])
    axes.set_yticks(np.arange(rows) + 0.5, names)
    axes.set_title(short(title, 90), fontsize=TEXT)
    return figure
