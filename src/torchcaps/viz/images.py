"""Images converted for drawing, and grids of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, check_shape
from torchcaps.viz.canvas import SMALL, TEXT, Figure, new_figure
from torchcaps.viz.names import short

Pixels = NDArray[np.uint8]

MAX_IMAGES = 1024  # of one argument

# The largest grid, in inches.
MAX_GRID_HEIGHT = 17.0
MAX_GRID_WIDTH = 14.0


def pictures(
    argument: str,
    images: ArrayLike,
    reference: Pixels | None = None,
) -> Pixels:
    """Convert images to bytes of three colors.

    Args:
        argument: name of the argument, for errors.
        images: `[n, channels, height, width]`, 1 to 1024 of them. Integers are in 0-255, other
            numbers in [0, 1]; what lies outside is clipped, and NaN is black. Three channels are
            colors; of any other number the first is drawn in gray.
        reference: `[n, height, width, 3]` pictures, whose number and size the images must have.

    Returns:
        `[n, height, width, 3]`.

    Raises:
        ArgumentError: for an array with other axes or sizes, no pixel, or too many images.
    """
    pixels = np.asarray(images)
    sizes = {}
    if reference is not None:
        sizes = dict(zip(("n", "height", "width"), reference.shape, strict=False))
    check_shape(argument, pixels, ("n", "channels", "height", "width"), **sizes)
    check_range(f"{argument}: number of values", pixels.size, low=1)
    check_range(f"{argument}: number of images", len(pixels), high=MAX_IMAGES)
    if not np.issubdtype(pixels.dtype, np.integer):
        pixels = np.nan_to_num(pixels.astype(np.float32)) * 255 + 0.5
    channels_last = pixels.clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    if channels_last.shape[-1] == 3:
        return channels_last
    return channels_last[..., :1].repeat(3, axis=-1)


def tile_size(size: tuple[int, ...], longest: float) -> tuple[float, float]:
    """Return the height and width of an image, in inches.

    Args:
        size: height and width in pixels.
        longest: length of the longer side, in inches.
    """
    scale = longest / max(size)
    return size[0] * scale, size[1] * scale


def tile_grid(
    tiles: Pixels,
    names: Sequence[str],
    title: str = "",
    *,
    longest: float = 0.65,
    below: float = 0.0,
) -> Figure:
    """Draw images in rows.

    The one axes of the figure is in cells: image k of a row spans k to k + 1, and the rows go down
    from 0.

    Args:
        tiles: `[n, height, width, 3]`, row after row.
        names: name of each row.
        title: title of the figure.
        longest: largest length of the longer side of an image, in inches.
        below: additional height for a legend, in inches.
    """
    num_rows = len(names)
    num_columns = len(tiles) // num_rows

    # One image of all cells, with white pixels on each side of a tile.
    gap = max(1, round(max(tiles.shape[1:3]) / 28))
    cells = np.pad(tiles, ((0, 0), (gap, gap), (gap, gap), (0, 0)), constant_values=255)
    height, width = cells.shape[1:3]
    rows = cells.reshape(num_rows, num_columns, height, width, 3).swapaxes(1, 2)
    grid = rows.reshape(num_rows * height, num_columns * width, 3)

    longest = min(longest, MAX_GRID_HEIGHT / num_rows, MAX_GRID_WIDTH / num_columns)
    cell_height, cell_width = tile_size((height, width), longest)
    title_height = 0.4 if title else 0.2
    figure = new_figure(
        max(num_columns * cell_width, 3.0) + 0.9, num_rows * cell_height + below + title_height
    )

    axes = figure.subplots()
    # Smoothing is slow, and only helps where pixels are lost.
    has_all_pixels = height < cell_height * figure.dpi
    axes.imshow(
        grid,
        extent=(0, num_columns, num_rows, 0),
        aspect=height / width,
        interpolation="nearest" if has_all_pixels else "antialiased",
    )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=SMALL)
    axes.set_xticks([])
    axes.set_yticks(np.arange(num_rows) + 0.5, names)
    axes.set_title(short(title, 90), fontsize=TEXT)
    return figure
