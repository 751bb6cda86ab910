"""Images made ready to draw, and an area to draw them in, measured in inches from its upper left corner."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import named_shape
from torchcaps.viz.canvas import Axes

GAP = 0.06  # inches between images


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
    scale = longest / max(size)
    return size[0] * scale, size[1] * scale


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
