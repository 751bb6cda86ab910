"""What all figures share: limits, colors, axes and lines, names that fit, and grids of images."""

from collections.abc import Sequence
from typing import Any
from unicodedata import bidirectional

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import ArgumentError, check_range, check_shape

try:
    from matplotlib.axes import Axes as Axes
    from matplotlib.colors import hsv_to_rgb
    from matplotlib.figure import Figure as Figure
except ImportError as error:
    raise ImportError(
        "plots need matplotlib; install it with: pip install 'torchcaps[plots]'"
    ) from error

Floats = NDArray[np.float64]
Names = Sequence[str]
Pixels = NDArray[np.uint8]

RIGHT_TO_LEFT = {"R", "AL"}  # classes of letters
MAX_IMAGES = 1024  # of one argument

# The largest grid, in inches.
MAX_GRID_HEIGHT = 17.0
MAX_GRID_WIDTH = 14.0

# The palette of Okabe and Ito: its colors differ for readers with any common color blindness.
BLUE = "#0072B2"
SKY = "#56B4E9"
ORANGE = "#E69F00"
RED = "#D55E00"
GREEN = "#009E73"
PINK = "#CC79A7"
GRAY = "#D0D0D0"
GRID_COLOR = "#E5E5E5"

# Color and marker of lines. The markers differ, so that lines can be distinguished in gray print, too.
STYLES = (
    (BLUE, "o"),
    (RED, "s"),
    (ORANGE, "^"),
    (SKY, "D"),
    (GREEN, "v"),
    (PINK, "P"),
)
MAX_MARKERS = 40

# Font sizes, in points.
TEXT = 9.0
SMALL = 7.5

# Options of a legend that belongs to all panels.
BELOW: dict[str, Any] = {"loc": "outside lower center", "fontsize": SMALL, "frameon": False}

# Inches. No number of classes or examples makes a figure larger.
MAX_WIDTH = 16.0
MAX_HEIGHT = 20.0


def new_figure(width: float, height: float) -> Figure:
    """Create an empty white figure with a constrained layout.

    Args:
        width: width in inches, cut to 16.
        height: height in inches, cut to 20.
    """
    size = (min(width, MAX_WIDTH), min(height, MAX_HEIGHT))
    return Figure(figsize=size, dpi=130, layout="constrained", facecolor="white")


def panels(
    count: int,
    max_columns: int,
    width: float,
    height: float,
    below: float = 0.0,
) -> tuple[Figure, list[Axes]]:
    """Create a figure of equal panels.

    Args:
        count: number of panels.
        max_columns: largest number of panels in a row.
        width: width of a panel, in inches.
        height: height of a panel, in inches.
        below: additional height for a legend, in inches.

    Returns:
        The figure and the axes of its panels.
    """
    num_columns = min(max_columns, count)
    num_rows = -(-count // num_columns)
    figure = new_figure(width * num_columns, height * num_rows + below)
    for unused in figure.subplots(num_rows, num_columns, squeeze=False).flat[count:]:
        unused.remove()
    return figure, figure.axes


def plain(
    axes: Axes,
    title: str = "",
    *,
    xlabel: str = "",
    ylabel: str = "",
    grid: bool = False,
) -> Axes:
    """Style axes: small tick labels, a title on the left, no frame above and on the right.

    Args:
        axes: axes to change.
        title: title of the panel.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
        grid: whether to draw pale grid lines.

    Returns:
        The same axes.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)
    axes.set_title(title, fontsize=TEXT, loc="left")
    axes.set_xlabel(xlabel, fontsize=SMALL)
    axes.set_ylabel(ylabel, fontsize=SMALL)
    if grid:
        axes.grid(color=GRID_COLOR, lw=0.6)
    return axes


def hues(count: int) -> Floats:
    """Return bright colors around the color circle.

    Returns:
        `[count, 3]` red, green and blue, in [0, 1].
    """
    # Steps of the golden ratio put neighbors far from each other.
    turns = np.arange(count) * 0.618034 % 1
    return np.asarray(hsv_to_rgb([(turn, 0.75, 1.0) for turn in turns]))


def line(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    style: tuple[str, str],
    label: str = "",
    ls: str = "-",
) -> None:
    """Draw a line, with markers on at most 40 points.

    Args:
        axes: axes to draw on.
        x: `[points]` horizontal coordinates.
        y: `[points]` vertical coordinates.
        style: color and marker.
        label: entry of the legend; none without it.
        ls: dashes, in matplotlib's notation.
    """
    color, marker = style
    if np.size(x) > MAX_MARKERS:
        marker = ""
    axes.plot(x, y, color=color, marker=marker, ms=4, lw=1.5, ls=ls, label=label)


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


def short(name: str, width: int) -> str:
    """Fit a name into one line; the middle of a long one is left out.

    Args:
        name: the name. A `$` in it does not start a formula.
        width: largest number of characters.
    """
    text = " ".join(name.split())
    if len(text) > width:
        text = f"{text[: width // 2]}…{text[len(text) - (width - 1) // 2 :]}"
    return text.replace("$", r"\$")


def short_names(classes: Sequence[str], width: int, noun: str = "class") -> list[str]:
    """Shorten all names; where that makes two of them equal, each begins with its index.

    Args:
        classes: the names; see `drawable`.
        width: largest number of characters of each.
        noun: what has these names.
    """
    classes = drawable(classes, noun)
    names = [short(name, width) for name in classes]
    if len(set(names)) < len(set(classes)):
        names = [short(f"{index}: {name}", width) for index, name in enumerate(classes)]
    return names


def sized_array(argument: str, entries: ArrayLike, **sizes: int) -> NDArray[Any]:
    """Convert an argument to an array of a known shape.

    Args:
        argument: its name, for the error.
        entries: its value.
        **sizes: size of each axis, by name.

    Raises:
        ArgumentError: if the array has another shape.
    """
    array = np.asarray(entries)
    check_shape(argument, array, tuple(sizes), **sizes)
    return array


def class_indices(
    argument: str,
    indices: ArrayLike,
    classes: Names,
    **sizes: int,
) -> NDArray[np.int64]:
    """Convert an argument to an array of class indices.

    Args:
        argument: its name, for the error.
        indices: its value.
        classes: names of the classes.
        **sizes: size of each axis, by name.

    Raises:
        ArgumentError: if the array has another shape, or holds an index that is no class.
    """
    num_classes = len(classes)
    array = sized_array(argument, indices, **sizes)
    outside = array[(array < 0) | (array >= num_classes)]
    if len(outside):
        raise ArgumentError(
            argument, f"expected class indices from 0 to {num_classes - 1}, got {outside[0]}"
        )
    return array.astype(np.int64)  # masks may be boolean


def drawable(classes: Sequence[str], noun: str = "class") -> list[str]:
    """Replace the names that a figure cannot show by numbers, such as "class 3".

    These are names with a letter that the font lacks, or in a script from right to left.
    """
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    codes = font.get_charmap().keys()
    names = []
    for index, name in enumerate(map(str, classes)):
        letters = set("".join(name.split()))
        has_glyphs = set(map(ord, letters)) <= codes
        is_reversed = RIGHT_TO_LEFT & set(map(bidirectional, letters))
        names.append(name if has_glyphs and not is_reversed else f"{noun} {index}")
    return names
