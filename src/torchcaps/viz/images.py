"""Images made ready to draw, and an area to draw them in, measured in inches from its upper left corner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import named_shape
from torchcaps.viz.canvas import RED, SMALL, TEXT, Axes, Figure, new_figure

GAP, LINE, ROOM = 0.06, 0.15, 0.98  # inches: between images, of a line of names, across for the names of an image


class Box(NamedTuple):
    """Where an image stands, in inches from the upper left corner."""

    left: float
    top: float
    width: float
    height: float


def pictures(argument: str, images: ArrayLike) -> NDArray[np.uint8]:
    """Images `[n, channels, height, width]` as `[n, height, width, 3]` bytes.

    Integer images are in 0-255, others in [0, 1]; what lies outside is clipped and NaN is black. Three channels are
    colours; of any other number the first is shown in grey.

    Raises:
        ValueError: for an array with other axes, or without a pixel.
    """
    values = np.asarray(images)
    if values.ndim != 4 or values.size == 0:
        came = named_shape(("n", "channels", "height", "width"), values.shape)
        raise ValueError(f"{argument}: expected [n, channels, height, width] with at least one image, got {came}")
    if not np.issubdtype(values.dtype, np.integer):
        values = np.nan_to_num(values.astype(np.float32)) * 255 + 0.5
    last = values.clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    return last if last.shape[-1] == 3 else last[..., :1].repeat(3, axis=-1)


def tile_size(size: tuple[int, ...], longest: float) -> tuple[float, float]:
    """Height and width in inches of an image of `size` pixels whose longer side takes `longest` inches."""
    height, width = size
    scale = longest / max(size)
    return height * scale, width * scale


def board(axes: Axes, width: float, height: float) -> Axes:
    """Make `axes` an area of `width` by `height` inches, y downwards, without frame or ticks."""
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_aspect("equal")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelbottom=False, labelleft=False)
    return axes


def place(axes: Axes, image: NDArray[np.uint8], box: Box) -> None:
    """Draw `image` `[height, width, 3]` into `box`, leaving the limits of `axes` as they are."""
    extent = (box.left, box.left + box.width, box.top + box.height, box.top)
    axes.set_autoscale_on(False)
    axes.imshow(image, extent=extent, interpolation="antialiased")


def frame(axes: Axes, box: Box, colour: str) -> None:
    """A frame in this colour around `box`."""
    corner = (box.left, box.top)
    axes.add_patch(Rectangle(corner, *box[2:], fill=False, edgecolor=colour, linewidth=2, clip_on=False))


def draw_pairs(
    upper: NDArray[np.uint8], lower: NDArray[np.uint8], above: Sequence[str], *, columns: int, title: str,
    longest: float = 1.0, below: Sequence[Sequence[tuple[str, str]]] = (), framed: Sequence[bool] = (),
) -> Figure:  # fmt: skip
    """Images over others of their size, `[n, height, width, 3]` both, so many pairs a row.

    Args:
        upper: in the upper row of each pair.
        lower: in the lower row.
        above: text above each pair.
        columns: pairs in a row.
        title: of the figure.
        longest: inches of the longer side of an image.
        below: (text, colour) of the lines below each pair.
        framed: which of the lower images have a red frame, and red text above.
    """
    height, width = tile_size(upper.shape[1:3], longest)
    head = LINE * _lines([text] for text in above) + 0.06
    foot = LINE * _lines([text for text, _ in some] for some in below) + 0.06
    # Narrow images stand apart, so that the names do not touch.
    across, down = max(width, ROOM) + 2 * GAP, head + 2 * height + GAP + foot
    columns, rows = min(columns, len(upper)), -(-len(upper) // columns)
    figure = new_figure(max(columns * across, 5.2) + 0.2, rows * down + 0.5)
    axes = board(figure.subplots(), columns * across, rows * down)
    for i, pair in enumerate(zip(upper, lower, strict=True)):
        box = Box(i % columns * across + (across - width) / 2, i // columns * down + head, width, height)
        under, red = box._replace(top=box.top + height + GAP), bool(len(framed) and framed[i])
        centre = box.left + width / 2
        place(axes, pair[0], box)
        place(axes, pair[1], under)
        colour = RED if red else "black"
        axes.text(centre, box.top - 0.04, above[i], ha="center", va="bottom", fontsize=SMALL, color=colour)
        for row, (text, colour) in enumerate(below[i] if below else ()):
            bottom = under.top + height + 0.04 + row * LINE
            axes.text(centre, bottom, text, ha="center", va="top", fontsize=SMALL, color=colour)
        if red:
            frame(axes, under, RED)
    figure.suptitle(title, x=0.01, ha="left", fontsize=TEXT)
    return figure


def _lines(texts: Iterable[Sequence[str]]) -> int:
    """The most lines that any of these have together."""
    return max((sum(text.count("\n") + 1 for text in some) for some in texts), default=0)
