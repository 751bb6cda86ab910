"""What all figures share: size limits, colours, names that fit, and pictures ready to draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import named_shape

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("plots need matplotlib; install it with: pip install 'torchcaps[plots]'") from error

# Okabe and Ito's palette, told apart with every common colour blindness.
BLUE, SKY, ORANGE, RED, GREY = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#B3B3B3"
TEXT, SMALL = 9.0, 7.5
# Inches: no number of classes or examples makes a figure larger.
MAX_WIDTH, MAX_HEIGHT = 16.0, 20.0


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of about these inches, at most 16 by 20, which lays itself out."""
    size = (min(width, MAX_WIDTH), min(height, MAX_HEIGHT))
    return Figure(figsize=size, dpi=130, layout="constrained", facecolor="white")


def plain(axes: Axes) -> Axes:
    """Small tick labels, and no frame above and to the right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)
    return axes


def short(name: object, width: int) -> str:
    """`name` on one line of at most `width` characters, its middle left out where needed; `$` starts no formula."""
    text = " ".join(str(name).split())
    if len(text) > width:
        tail = (width - 1) // 2
        text = f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
    return text.replace("$", r"\$")


def pictures(argument: str, images: ArrayLike) -> NDArray[np.uint8]:
    """Images `[n, channels, height, width]` as `[n, height, width, 3]` bytes.

    Integer images are in 0-255, others in [0, 1], and what lies outside is clipped. Three channels are colours; of any
    other number the first is shown in grey.

    Raises:
        ValueError: for an array with other axes, or without a pixel.
    """
    values = np.asarray(images)
    if values.ndim != 4 or values.size == 0:
        shape = named_shape(("n", "channels", "height", "width"), values.shape)
        raise ValueError(f"{argument}: expected [n, channels, height, width] with at least one image, got {shape}")
    if not np.issubdtype(values.dtype, np.integer):
        values = np.nan_to_num(values.astype(np.float32)) * 255 + 0.5
    last = values.clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    return last if last.shape[-1] == 3 else last[..., :1].repeat(3, axis=-1)


def place(axes: Axes, image: NDArray[np.uint8], left: float, top: float, *, width: float, height: float) -> None:
    """Draw `image` into a box of `axes`, whose y axis points down."""
    axes.imshow(image, extent=(left, left + width, top + height, top), interpolation="antialiased")


def tile_size(height: int, width: int, longest: float) -> tuple[float, float]:
    """Height and width of an image whose longer side is drawn `longest` inches long."""
    scale = longest / max(height, width)
    return height * scale, width * scale


def check_length(argument: str, values: Sequence[object] | NDArray[np.generic], expected: int) -> None:
    """Raise ValueError unless `values` holds `expected` entries."""
    if len(values) != expected:
        raise ValueError(f"{argument}: expected {expected} entries, got {len(values)}")
