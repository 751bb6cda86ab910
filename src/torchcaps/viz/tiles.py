"""Images beside each other: originals and reconstructions, overlapping digits, maps of votes, moved dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, check_shape, named_shape
from torchcaps.viz.canvas import BLUE, ORANGE, RED, SMALL, TEXT, Axes, Figure, new_figure
from torchcaps.viz.images import GAP, Box, board, frame, pictures, place, tile_size
from torchcaps.viz.names import check_length, class_indices, short, short_names

MOST_PAIRS, MOST_OVERLAPS, MOST_MAPS, MOST_TILES = 80, 40, 40, 1024
LINE, ROOM = 0.15, 0.98  # inches: of a line of names, and across for the names of an image
INKS = ("#B000B0", "#007A00")  # of text; the drawings: magenta, green, to suit colour-blind readers
SHADE = 0.3  # of the input, under the drawings
GROUND, HEAT = 0.6, 0.9  # how much of the image and of the map is seen


def reconstructions(
    images: ArrayLike, reconstructions: ArrayLike, labels: ArrayLike, *,
    predictions: ArrayLike, classes: Sequence[str],
) -> Figure:  # fmt: skip
    """Originals over their reconstructions, ten pairs a row; a wrong prediction is named and framed in red.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 80.
        reconstructions: the same shape and range.
        labels: `[n]` indices of the true classes.
        predictions: `[n]` indices of the predicted classes.
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, or more than 80 images.
    """
    shown, rebuilt = pictures("images", images), pictures("reconstructions", reconstructions)
    if shown.shape != rebuilt.shape:
        want, came = (named_shape(("n", "height", "width", "colours"), each.shape) for each in (shown, rebuilt))
        raise ValueError(f"reconstructions: expected the shape of the images, {want}, got {came}")
    count, names = len(shown), short_names(classes, 13)
    check_range("number of images", count, high=MOST_PAIRS)
    true = class_indices("labels", labels, len(classes), n=count)
    taken = class_indices("predictions", predictions, len(classes), n=count)
    wrong = true != taken
    above = [f"{names[k]}\n→ {names[other]}" if k != other else names[k] for k, other in zip(true, taken, strict=True)]
    mistakes = f"; {wrong.sum()} of {count} taken for another class (red)" if wrong.any() else ""
    title = f"originals above, reconstructions below{mistakes}"
    return draw_pairs(shown, rebuilt, above, columns=10, title=title, framed=wrong.tolist())


def overlaps(
    images: ArrayLike, drawn: ArrayLike, labels: ArrayLike, *,
    shown: ArrayLike, lengths: ArrayLike, classes: Sequence[str],
) -> Figure:  # fmt: skip
    """Inputs above the two drawings of each, the first in magenta, the second in green, white where both are.

    As in figure 5 of arXiv 1710.09829. The labels stand above each pair; below it the decoded classes and the lengths
    of their capsules, with a star where the class is no label.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 40.
        drawn: `[n, 2, channels, height, width]`, the same range; the first channel is shown.
        labels: `[n, 2]` indices of the true classes.
        shown: `[n, 2]` indices of the decoded classes.
        lengths: `[n, 2]` of the decoded capsules, in [0, 1].
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, more than 40 images, or an index that is no class.
    """
    inputs, values = pictures("images", images), np.asarray(drawn)
    count = len(inputs)
    check_range("number of images", count, high=MOST_OVERLAPS)
    height, width = inputs.shape[1:3]
    check_shape("drawn", values, ("n", "k", "channels", "height", "width"), n=count, k=2, height=height, width=width)
    layers = pictures("drawn", values.reshape(-1, *values.shape[2:]))[..., 0].reshape(count, 2, height, width)
    true, taken = (
        class_indices(name, v, len(classes), n=count, k=2) for name, v in (("labels", labels), ("shown", shown))
    )
    long, names = np.asarray(lengths, dtype=np.float64), short_names(classes, 10)
    check_shape("lengths", long, ("n", "k"), n=count, k=2)
    below = [
        [(f"{'' if k in true[i] else '*'}{names[k]}  {long[i, j]:.2f}", INKS[j]) for j, k in enumerate(taken[i])]
        for i in range(count)
    ]
    return draw_pairs(
        inputs, np.stack([coloured(image, layer) for image, layer in zip(inputs, layers, strict=True)]),
        [" + ".join(names[k] for k in both) for both in true], below=below, columns=8, longest=1.15,
        title="above: input; below: decoded alone, magenta and green; *: no label",
    )  # fmt: skip


def coloured(image: NDArray[np.uint8], layers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two drawings `[2, height, width]` in magenta and green over a dark `[height, width, 3]` input."""
    ground = (image * SHADE).astype(np.uint8)
    for channel, layer in enumerate((0, 1, 0)):
        ground[..., channel] = np.maximum(ground[..., channel], layers[layer])
    return ground


def coupling_map(
    images: ArrayLike, maps: ArrayLike, labels: ArrayLike, *,
    shown: ArrayLike, lengths: ArrayLike, classes: Sequence[str],
) -> Figure:  # fmt: skip
    """Images over the same with a map on them: orange where votes support the class shown, blue where they oppose it.

    Each map has its own scale, from nothing to its largest value either way. Below stand the class shown and its
    length, in red where it is not the true one.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 40.
        maps: `[n, height, width]`, such as `evaluation.coupling_maps(...).maps`; any finite numbers.
        labels: `[n]` indices of the true classes.
        shown: `[n]` indices of the classes whose maps these are.
        lengths: `[n]` of their capsules, in [0, 1].
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, more than 40 images, an index that is no class, or a map that is not
            finite.
    """
    inputs, values = pictures("images", images), np.asarray(maps, dtype=np.float64)
    count = len(inputs)
    check_range("number of images", count, high=MOST_MAPS)
    check_shape("maps", values, ("n", "height", "width"), n=count, height=inputs.shape[1], width=inputs.shape[2])
    if not np.isfinite(values).all():
        raise ValueError("maps: expected finite numbers, got NaN or infinity")
    true, taken = (class_indices(name, v, len(classes), n=count) for name, v in (("labels", labels), ("shown", shown)))
    long = np.asarray(lengths, dtype=np.float64)
    check_shape("lengths", long, ("n",), n=count)
    names = short_names(classes, 13)
    below = [
        [(f"{names[index]}\n{length:.2f}", "black" if index == right else RED)]
        for index, length, right in zip(taken, long, true, strict=True)
    ]
    return draw_pairs(
        inputs, np.stack([overlaid(image, map_) for image, map_ in zip(inputs, values, strict=True)]),
        [names[index] for index in true], below=below, columns=10,
        title="orange: votes for the class below; blue: against it",
    )  # fmt: skip


def overlaid(image: NDArray[np.uint8], values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """`[height, width, 3]`: the image in dark grey, with the map in its colours over it."""
    largest = np.abs(values).max()
    alpha = np.abs(values)[..., None] / largest if largest > 0 else np.zeros((*values.shape, 1))
    colour = np.where(values[..., None] >= 0, to_rgb(ORANGE), to_rgb(BLUE)) * 255
    grey = GROUND * image.mean(axis=-1, keepdims=True)
    return (grey * (1 - HEAT * alpha) + HEAT * alpha * colour + 0.5).clip(0, 255).astype(np.uint8)


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


def draw_pairs(
    upper: NDArray[np.uint8], lower: NDArray[np.uint8], above: Sequence[str], *, columns: int, title: str,
    longest: float = 1.0, below: Sequence[Sequence[tuple[str, str]]] = (), framed: Sequence[bool] = (),
) -> Figure:  # fmt: skip
    """Images `[n, height, width, 3]` over others of their size, so many pairs a row, a longer side of `longest` inches.

    Text stands above each pair, and `below` it lines of (text, colour); a framed lower image and its text are red.
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
