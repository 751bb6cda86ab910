"""What all figures share: size limits, colors, axes and lines."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    from matplotlib.axes import Axes as Axes
    from matplotlib.colors import hsv_to_rgb
    from matplotlib.figure import Figure as Figure
except ImportError as error:
    raise ImportError(
        "plots need matplotlib; install it with: pip install 'torchcaps[plots]'"
    ) from error

Floats = NDArray[np.float64]

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
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for unused in grid.flat[count:]:
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
        axes.grid(True, color=GRID_COLOR, lw=0.6)
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
