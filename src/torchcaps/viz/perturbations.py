"""What each dimension of a pose stands for."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, check_shape
from torchcaps.viz.canvas import BLUE, SMALL, TEXT, Axes, Figure, check_length, new_figure, short
from torchcaps.viz.images import GAP, Box, board, frame, pictures, place, tile_size

MOST_TILES = 1024


def perturbations(reconstructions: ArrayLike, offsets: ArrayLike, *, title: str = "") -> Figure:
    """What the decoder draws as one pose dimension after the other is moved: a row a dimension, a column a step.

    Args:
        reconstructions: `[dims, steps, channels, height, width]` in [0, 1] (integers: 0-255), of one image.
        offsets: `[steps]`, what was added to the dimension; the column of offset 0, the capsule as it is, is framed.
        title: a line above the grid.

    Raises:
        ValueError: for shapes that do not fit, or more than 1024 reconstructions.
    """
    values, moves = np.asarray(reconstructions), np.asarray(offsets)
    check_shape("reconstructions", values, ("dims", "steps", "channels", "height", "width"))
    dims, steps = values.shape[:2]
    check_length("offsets", moves, steps)
    check_range("number of reconstructions", dims * steps, high=MOST_TILES)
    longest = min(0.62, 17.0 / dims, 14.0 / steps)
    height, width = tile_size(values.shape[3:], longest)
    across, down = width + GAP, height + GAP
    figure = new_figure(max(steps * across, 3.0) + 0.8, dims * down + 1.0)
    axes = board(figure.subplots(), steps * across, dims * down)
    for i, image in enumerate(pictures("reconstructions", values.reshape(-1, *values.shape[2:]))):
        place(axes, image, Box(i % steps * across + GAP / 2, i // steps * down + GAP / 2, width, height))
    _label_grid(axes, moves, (across, down), dims)
    for column in np.flatnonzero(np.isclose(moves, 0, atol=1e-6)):
        frame(axes, Box(column * across, 0, across, dims * down), BLUE)
    axes.set_title(short(title, 90), fontsize=TEXT)
    return figure


def _label_grid(axes: Axes, offsets: NDArray[np.float64], cell: tuple[float, float], dims: int) -> None:
    """Offsets under the columns and the numbers of the dimensions, from 1, beside the rows."""
    across, down = cell
    texts = ["0" if abs(move) < 1e-6 else f"{move:+.3g}".replace("-", "−") for move in offsets]
    axes.set_xticks([(i + 0.5) * across for i in range(len(texts))], texts)
    axes.set_yticks([(i + 0.5) * down for i in range(dims)], [str(i + 1) for i in range(dims)])
    axes.tick_params(labelbottom=True, labelleft=True, labelsize=SMALL)
    if across < 0.45:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel("added to the dimension", fontsize=TEXT)
    axes.set_ylabel("pose dimension", fontsize=TEXT)
