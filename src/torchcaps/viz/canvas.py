"""What all figures share: size limits, colors, lines."""

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

# Okabe and Ito's palette, told apart with every common color blindness.
BLUE, SKY, ORANGE, RED, GRAY = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#D0D0D0"
# Colors and markers of lines, which are told apart in gray print, too.
STYLES = ((BLUE, "o"), (RED, "s"), (ORANGE, "^"), (SKY, "D"), ("#009E73", "v"), ("#CC79A7", "P"))
# Points.
TEXT, SMALL = 9.0, 7.5
BELOW: dict[str, Any] = {
    "loc": "outside lower center",
    "fontsize": SMALL,
    "frameon": False,
}  # a legend of all panels
# Inches: no number of classes or examples makes a figure larger.
MAX_WIDTH, MAX_HEIGHT = 16.0, 20.0


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of these inches, at most 16 by 20, which lays itself out."""
    size = (min(width, MAX_WIDTH), min(height, MAX_HEIGHT))
    return Figure(figsize=size, dpi=130, layout="constrained", facecolor="white")


def panels(
    count: int, columns: int, width: float, height: float, below: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels of these inches, at most `columns` beside each other, with some room `below`."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = new_figure(width * columns, height * rows + below)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in axes[count:]:
        empty.remove()
    return figure, axes[:count]


def plain(
    axes: Axes, title: str = "", *, xlabel: str = "", ylabel: str = "", grid: bool = False
) -> Axes:
    """Small tick labels, no frame above and to the right; a title on the left, names of the axes, pale grid lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)
    axes.set_title(title, fontsize=TEXT, loc="left")
    axes.set_xlabel(xlabel, fontsize=SMALL)
    axes.set_ylabel(ylabel, fontsize=SMALL)
    if grid:
        axes.grid(True, color="#E5E5E5", lw=0.6)
    return axes


def hues(count: int) -> NDArray[np.float64]:
    """`[count, 3]` bright colors around the circle, red, green and blue in [0, 1]."""
    turns = np.arange(count) * 0.618034 % 1  # neighbors are far from each other
    return np.asarray(hsv_to_rgb(np.stack([turns, np.full(count, 0.75), np.ones(count)], axis=1)))


def line(
    axes: Axes, x: ArrayLike, y: ArrayLike, style: tuple[str, str], label: str, **options: Any
) -> None:
    """A line in this color with this marker, which goes without markers from 41 points on."""
    color, marker = style
    given: dict[str, Any] = {
        "color": color,
        "marker": marker if np.size(x) <= 40 else "",
        "ms": 4,
        "lw": 1.5,
    }
    axes.plot(x, y, **(given | options), label=label)
