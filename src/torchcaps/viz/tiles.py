"""Images beside each other: originals and reconstructions, overlapping digits, maps of votes, moved dimensions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle
from numpy.typing import ArrayLike, NDArray

from torchcaps.data.masks import overlaid as masked
from torchcaps.data.masks import palette
from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.viz.canvas import BELOW, BLUE, ORANGE, RED, SMALL, TEXT, Axes, Figure, new_figure
from torchcaps.viz.images import check_alike, pictures, tile_grid, tile_size
from torchcaps.viz.names import check_length, class_indices, short_names

MOST_PAIRS, MOST_OVERLAPS, MOST_MAPS, MOST_TILES = 80, 40, 40, 1024
LINE, ROOM, GAP = (
    0.15,
    0.98,
    0.06,
)  # inches: a line of names, across for the names of an image, between images
CENTERED: dict[str, Any] = {"ha": "center", "fontsize": SMALL}
INKS = ("#B000B0", "#007A00")  # of text; the drawings: magenta, green, to suit color-blind readers
SHADE = 0.3  # of the input, under the drawings
GROUND, HEAT = 0.6, 0.9  # how much of the image and of the map is seen


def reconstructions(
    images: ArrayLike,
    reconstructions: ArrayLike,
    labels: ArrayLike,
    *,
    predictions: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Up to 80 originals over their reconstructions, ten pairs a row; a wrong prediction is named and framed in red.
    Raises ValueError for shapes that do not fit, or more images."""
    shown, rebuilt = pictures("images", images), pictures("reconstructions", reconstructions)
    check_alike("reconstructions", rebuilt, "the images", shown)
    count, names = len(shown), short_names(classes, 13)
    check_range("number of images", count, high=MOST_PAIRS)
    true = class_indices("labels", labels, len(classes), n=count)
    taken = class_indices("predictions", predictions, len(classes), n=count)
    wrong = true != taken
    above = [
        f"{names[k]}\n→ {names[other]}" if k != other else names[k]
        for k, other in zip(true, taken, strict=True)
    ]
    mistakes = f"; {wrong.sum()} of {count} taken for another class (red)" if wrong.any() else ""
    title = f"originals above, reconstructions below{mistakes}"
    return draw_pairs(shown, rebuilt, above, columns=10, title=title, framed=wrong.tolist())


def overlaps(
    images: ArrayLike,
    drawn: ArrayLike,
    labels: ArrayLike,
    *,
    shown: ArrayLike,
    lengths: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Up to 40 inputs above the two drawings `[n, 2, channels, height, width]` of each, the first in magenta, the
    second in green, white where both are; of each the first channel is shown.

    As in figure 5 of arXiv 1710.09829. The labels `[n, 2]` stand above each pair; below it the decoded classes and the
    lengths of their capsules, `[n, 2]` in [0, 1], with a star where the class is no label. Raises ValueError for shapes
    that do not fit, more images, or an index that is no class."""
    inputs, values = pictures("images", images), np.asarray(drawn)
    count = len(inputs)
    check_range("number of images", count, high=MOST_OVERLAPS)
    height, width = inputs.shape[1:3]
    check_shape(
        "drawn",
        values,
        ("n", "k", "channels", "height", "width"),
        n=count,
        k=2,
        height=height,
        width=width,
    )
    layers = pictures("drawn", values.reshape(-1, *values.shape[2:]))[..., 0].reshape(
        count, 2, height, width
    )
    true, taken, long = _decoded(labels, shown, lengths, len(classes), n=count, k=2)
    names = short_names(classes, 10)
    below = [
        [
            (f"{'' if k in true[i] else '*'}{names[k]}  {long[i, j]:.2f}", INKS[j])
            for j, k in enumerate(taken[i])
        ]
        for i in range(count)
    ]
    return draw_pairs(
        inputs,
        np.stack([colored(image, layer) for image, layer in zip(inputs, layers, strict=True)]),
        [" + ".join(names[k] for k in both) for both in true],
        below=below,
        columns=8,
        longest=1.15,
        title="above: input; below: decoded alone, magenta and green; *: no label",
    )


def masks(
    images: ArrayLike, true: ArrayLike, predicted: ArrayLike, *, classes: Sequence[str]
) -> Figure:
    """Up to 40 images, and the same under true and under predicted masks `[n, height, width]`, with the colors of the
    classes that appear; the background is the first class. Raises ValueError for shapes that do not fit, or more
    images."""
    shown, both = (
        pictures("images", images),
        [np.asarray(x, dtype=np.uint8) for x in (true, predicted)],
    )
    count, height, width, _ = shown.shape
    check_range("number of images", count, high=MOST_MAPS)
    for name, values in zip(("true", "predicted"), both, strict=True):
        check_shape(name, values, ("n", "height", "width"), n=count, height=height, width=width)
    rows = [
        masked(image.transpose(2, 0, 1), mask, len(classes))
        for values in both
        for image, mask in zip(shown, values, strict=True)
    ]
    figure = tile_grid(
        np.stack([*shown, *rows]), ["image", "true", "found"], longest=1.1, below=0.4
    )
    appear, colors = np.unique(np.stack(both)), palette(len(classes)) / 255
    patches = [
        Patch(color=tuple(colors[k]), label=short_names(classes, 13)[k]) for k in appear if k
    ]
    figure.legend(handles=patches, ncols=min(6, max(1, len(patches))), **BELOW)
    return figure


def _decoded(
    labels: ArrayLike, shown: ArrayLike, lengths: ArrayLike, classes: int, **sizes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """True classes, decoded classes and the lengths of their capsules, checked."""
    true, taken = (
        class_indices(name, v, classes, **sizes)
        for name, v in (("labels", labels), ("shown", shown))
    )
    long = np.asarray(lengths, dtype=np.float64)
    check_shape("lengths", long, tuple(sizes), **sizes)
    return true, taken, long


def colored(image: NDArray[np.uint8], layers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two drawings `[2, height, width]` in magenta and green over a dark `[height, width, 3]` input."""
    ground = (image * SHADE).astype(np.uint8)
    for channel, layer in enumerate((0, 1, 0)):
        ground[..., channel] = np.maximum(ground[..., channel], layers[layer])
    return ground


def coupling_map(
    images: ArrayLike,
    maps: ArrayLike,
    labels: ArrayLike,
    *,
    shown: ArrayLike,
    lengths: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Images over the same with a map on them: orange where votes support the class shown, blue where they oppose it.

    Each map `[n, height, width]`, such as those of `evaluation.coupling_maps`, has its own scale, from nothing to its
    largest value either way. Below stand the class shown and the length of its capsule, in [0, 1], in red where it is
    not the true one. Raises ValueError for shapes that do not fit, more than 40 images, an index that is no class, or a
    map that is not finite."""
    inputs, values = pictures("images", images), np.asarray(maps, dtype=np.float64)
    count = len(inputs)
    check_range("number of images", count, high=MOST_MAPS)
    check_shape(
        "maps",
        values,
        ("n", "height", "width"),
        n=count,
        height=inputs.shape[1],
        width=inputs.shape[2],
    )
    if not np.isfinite(values).all():
        raise ArgumentError("maps", "expected finite numbers, got NaN or infinity")
    true, taken, long = _decoded(labels, shown, lengths, len(classes), n=count)
    names = short_names(classes, 13)
    below = [
        [(f"{names[index]}\n{length:.2f}", "black" if index == right else RED)]
        for index, length, right in zip(taken, long, true, strict=True)
    ]
    return draw_pairs(
        inputs,
        np.stack([overlaid(image, map_) for image, map_ in zip(inputs, values, strict=True)]),
        [names[index] for index in true],
        below=below,
        columns=10,
        title="orange: votes for the class below; blue: against it",
    )


def overlaid(image: NDArray[np.uint8], values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """`[height, width, 3]`: the image in dark gray, with the map in its colors over it."""
    largest = np.abs(values).max()
    alpha = np.abs(values)[..., None] / largest if largest > 0 else np.zeros((*values.shape, 1))
    color = np.where(values[..., None] >= 0, to_rgb(ORANGE), to_rgb(BLUE)) * 255
    gray = GROUND * image.mean(axis=-1, keepdims=True)
    return (gray * (1 - HEAT * alpha) + HEAT * alpha * color + 0.5).clip(0, 255).astype(np.uint8)


def perturbations(reconstructions: ArrayLike, offsets: ArrayLike, *, title: str = "") -> Figure:
    """What the decoder draws as one pose dimension after the other is moved: a row a dimension, a column a step.

    Reconstructions are `[dims, steps, channels, height, width]`, of one image; the column of offset 0, the capsule as
    it is, is framed. Raises ValueError for shapes that do not fit, or more than 1024 reconstructions."""
    values, moves = np.asarray(reconstructions), np.asarray(offsets)
    check_shape("reconstructions", values, ("dims", "steps", "channels", "height", "width"))
    dims, steps = values.shape[:2]
    check_length("offsets", moves, steps)
    check_range("number of reconstructions", dims * steps, high=MOST_TILES)
    tiles = pictures("reconstructions", values.reshape(-1, *values.shape[2:]))
    figure = tile_grid(tiles, [str(i + 1) for i in range(dims)], title, below=0.9)
    [axes] = figure.axes
    texts = ["0" if abs(move) < 1e-6 else f"{move:+.3g}".replace("-", "−") for move in moves]
    axes.set_xticks(np.arange(steps) + 0.5, texts, rotation=90 if steps > 14 else 0)
    axes.set_xlabel("added to the dimension", fontsize=TEXT)
    axes.set_ylabel("pose dimension", fontsize=TEXT)
    if "0" in texts:
        axes.add_patch(_frame(texts.index("0"), 0, 1, dims, BLUE))
    return figure


def image_rows(rows: Mapping[str, ArrayLike], *, title: str = "") -> Figure:
    """Rows of images, of the same number and size, beside each other, each with its name on the left. Raises ValueError
    for no rows, rows that do not fit each other, or more than 1024 images."""
    tiles = [pictures(name, images) for name, images in rows.items()]
    check_range("number of rows", len(tiles), low=1)
    for name, row in zip(rows, tiles, strict=True):
        check_alike(name, row, "the first row", tiles[0])
    check_range("number of images", sum(map(len, tiles)), high=MOST_TILES)
    return tile_grid(np.concatenate(tiles), list(rows), title)


def draw_pairs(
    upper: NDArray[np.uint8],
    lower: NDArray[np.uint8],
    above: Sequence[str],
    *,
    columns: int,
    title: str,
    longest: float = 1.0,
    below: Sequence[Sequence[tuple[str, str]]] = (),
    framed: Sequence[bool] = (),
) -> Figure:
    """Images `[n, height, width, 3]` over others of their size, so many pairs a row, a longer side of `longest` inches.
    Text stands above each pair, and `below` it lines of (text, color); a framed lower image and its text are red."""
    height, width = tile_size(upper.shape[1:3], longest)
    head = LINE * _lines([text] for text in above) + 0.06
    foot = LINE * _lines([text for text, _ in some] for some in below) + 0.06
    # Narrow images stand apart, so that the names do not touch.
    across, down = max(width, ROOM) + 2 * GAP, head + 2 * height + GAP + foot
    columns, rows = min(columns, len(upper)), -(-len(upper) // columns)
    figure = new_figure(max(columns * across, 5.2) + 0.2, rows * down + 0.5)
    axes: Axes = figure.subplots()
    for i, pair in enumerate(zip(upper, lower, strict=True)):
        center, top = (i % columns + 0.5) * across, i // columns * down + head
        left, under = center - width / 2, top + height + GAP
        for image, y in zip(pair, (top, under), strict=True):
            axes.imshow(
                image, extent=(left, left + width, y + height, y), interpolation="antialiased"
            )
        red = bool(framed and framed[i])
        axes.text(
            center, top - 0.04, above[i], va="bottom", color=RED if red else "black", **CENTERED
        )
        for row, (text, color) in enumerate(below[i] if below else ()):
            axes.text(
                center, under + height + 0.04 + row * LINE, text, va="top", color=color, **CENTERED
            )
        if red:
            axes.add_patch(_frame(left, under, width, height, RED))
    axes.set(xlim=(0, columns * across), ylim=(rows * down, 0))
    axes.set_axis_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=TEXT)
    return figure


def _frame(left: float, top: float, width: float, height: float, color: str) -> Rectangle:
    return Rectangle(
        (left, top), width, height, fill=False, edgecolor=color, linewidth=2, clip_on=False
    )


def _lines(texts: Iterable[Sequence[str]]) -> int:
    """The most lines that any of these have together."""
    return max((sum(text.count("\n") + 1 for text in some) for some in texts), default=0)
