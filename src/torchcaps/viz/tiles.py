"""Images beside each other: originals and reconstructions, overlapping digits, maps of votes, moved dimensions."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle
from numpy.typing import ArrayLike, NDArray

from torchcaps.data.masks import overlaid as masked, palette
from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.viz.canvas import BELOW, BLUE, ORANGE, RED, SMALL, TEXT, Axes, Figure, new_figure
from torchcaps.viz.images import check_alike, pictures, tile_grid, tile_size
from torchcaps.viz.names import check_length, class_indices, short_names

MAX_PAIRS, MAX_OVERLAPS, MAX_MAPS, MAX_TILES = 80, 40, 40, 1024
# Inches: a line of names, across for the names of an image, between images.
LINE, NAMES_WIDTH, GAP = 0.15, 0.98, 0.06
CENTERED: dict[str, Any] = {"ha": "center", "fontsize": SMALL}
INKS = ("#B000B0", "#007A00")  # of text; the drawings: magenta, green, to suit color-blind readers
INPUT_SHADE = 0.3  # of the input, under the drawings
IMAGE_SHADE, MAP_OPACITY = 0.6, 0.9  # how much of the image and of the map is seen

Pixels = NDArray[np.uint8]
"""`[height, width, 3]`."""


class Pair(NamedTuple):
    """An image over another of its size, with text above and below."""

    upper: Pixels
    lower: Pixels
    above: str
    below: Sequence[tuple[str, str]] = ()  # lines of (text, color)
    framed: bool = False  # the lower image and the text above are red


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
    originals, rebuilt = pictures("images", images), pictures("reconstructions", reconstructions)
    check_alike("reconstructions", rebuilt, "the images", originals)
    count = len(originals)
    check_range("number of images", count, high=MAX_PAIRS)
    true = class_indices("labels", labels, len(classes), n=count)
    predicted = class_indices("predictions", predictions, len(classes), n=count)
    names = short_names(classes, 13)
    pairs = []
    for upper, lower, label, answer in zip(originals, rebuilt, true, predicted, strict=True):
        is_wrong = bool(label != answer)
        above = f"{names[label]}\n→ {names[answer]}" if is_wrong else names[label]
        pairs.append(Pair(upper, lower, above, framed=is_wrong))
    title = "originals above, reconstructions below"
    if mistakes := sum(pair.framed for pair in pairs):
        title += f"; {mistakes} of {count} taken for another class (red)"
    return draw_pairs(pairs, title, columns=10)


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
    count, height, width, _ = inputs.shape
    check_range("number of images", count, high=MAX_OVERLAPS)
    axes = ("n", "k", "channels", "height", "width")
    check_shape("drawn", values, axes, n=count, k=2, height=height, width=width)
    flat = pictures("drawn", values.reshape(-1, *values.shape[2:]))
    layers = flat[..., 0].reshape(count, 2, height, width)
    sizes = {"n": count, "k": 2}
    true = class_indices("labels", labels, len(classes), **sizes)
    decoded = class_indices("shown", shown, len(classes), **sizes)
    activations = _lengths(lengths, **sizes)
    names = short_names(classes, 10)
    pairs = []
    for i, image in enumerate(inputs):
        below = []
        for k, length, ink in zip(decoded[i], activations[i], INKS, strict=True):
            star = "" if k in true[i] else "*"
            below.append((f"{star}{names[k]}  {length:.2f}", ink))
        above = " + ".join(names[k] for k in true[i])
        pairs.append(Pair(image, colored(image, layers[i]), above, below))
    title = "above: input; below: decoded alone, magenta and green; *: no label"
    return draw_pairs(pairs, title, columns=8, longest=1.15)


def masks(
    images: ArrayLike, true: ArrayLike, predicted: ArrayLike, *, classes: Sequence[str]
) -> Figure:
    """Up to 40 images, and the same under true and under predicted masks `[n, height, width]`, with the colors of the
    classes that appear; the background is the first class. Raises ValueError for shapes that do not fit, or more
    images."""
    rows = [pictures("images", images)]
    count, height, width, _ = rows[0].shape
    check_range("number of images", count, high=MAX_MAPS)
    present = set[int]()
    for name, values in (("true", true), ("predicted", predicted)):
        indices = np.asarray(values, dtype=np.uint8)
        check_shape(name, indices, ("n", "height", "width"), n=count, height=height, width=width)
        present.update(indices.ravel().tolist())
        pairs = zip(rows[0], indices, strict=True)
        rows.append(np.stack([masked(x.transpose(2, 0, 1), m, len(classes)) for x, m in pairs]))
    figure = tile_grid(np.concatenate(rows), ["image", "true", "found"], longest=1.1, below=0.4)
    colors, names = palette(len(classes)) / 255, short_names(classes, 13)
    patches = [Patch(color=tuple(colors[k]), label=names[k]) for k in sorted(present - {0})]
    figure.legend(handles=patches, ncols=min(6, max(1, len(patches))), **BELOW)
    return figure


def _lengths(lengths: ArrayLike, **sizes: int) -> NDArray[np.float64]:
    values = np.asarray(lengths, dtype=np.float64)
    check_shape("lengths", values, tuple(sizes), **sizes)
    return values


def colored(image: Pixels, layers: NDArray[np.uint8]) -> Pixels:
    """Two drawings `[2, height, width]` in magenta and green over a dark input."""
    first, second = layers
    ground = (image * INPUT_SHADE).astype(np.uint8)
    return np.maximum(ground, np.stack([first, second, first], axis=-1))


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
    count, height, width, _ = inputs.shape
    check_range("number of images", count, high=MAX_MAPS)
    check_shape("maps", values, ("n", "height", "width"), n=count, height=height, width=width)
    if not np.isfinite(values).all():
        raise ArgumentError("maps", "expected finite numbers, got NaN or infinity")
    true = class_indices("labels", labels, len(classes), n=count)
    decoded = class_indices("shown", shown, len(classes), n=count)
    activations = _lengths(lengths, n=count)
    names = short_names(classes, 13)
    pairs = []
    for i, image in enumerate(inputs):
        color = "black" if decoded[i] == true[i] else RED
        below = [(f"{names[decoded[i]]}\n{activations[i]:.2f}", color)]
        pairs.append(Pair(image, overlaid(image, values[i]), names[true[i]], below))
    return draw_pairs(pairs, "orange: votes for the class below; blue: against it", columns=10)


def overlaid(image: Pixels, values: NDArray[np.float64]) -> Pixels:
    """The image in dark gray, with a map `[height, width]` in its colors over it."""
    largest = np.abs(values).max()
    alpha = np.abs(values)[..., None] / largest if largest > 0 else np.zeros((*values.shape, 1))
    color = np.where(values[..., None] >= 0, to_rgb(ORANGE), to_rgb(BLUE)) * 255
    gray = IMAGE_SHADE * image.mean(axis=-1, keepdims=True)
    mixed = gray * (1 - MAP_OPACITY * alpha) + MAP_OPACITY * alpha * color
    return (mixed + 0.5).clip(0, 255).astype(np.uint8)


def perturbations(reconstructions: ArrayLike, offsets: ArrayLike, *, title: str = "") -> Figure:
    """What the decoder draws as one pose dimension after the other is moved: a row a dimension, a column a step.

    Reconstructions are `[dims, steps, channels, height, width]`, of one image; the column of offset 0, the capsule as
    it is, is framed. Raises ValueError for shapes that do not fit, or more than 1024 reconstructions."""
    values, moves = np.asarray(reconstructions), np.asarray(offsets)
    check_shape("reconstructions", values, ("dims", "steps", "channels", "height", "width"))
    dims, steps = values.shape[:2]
    check_length("offsets", moves, steps)
    check_range("number of reconstructions", dims * steps, high=MAX_TILES)
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
    check_range("number of images", sum(map(len, tiles)), high=MAX_TILES)
    return tile_grid(np.concatenate(tiles), list(rows), title)


def draw_pairs(pairs: Sequence[Pair], title: str, *, columns: int, longest: float = 1.0) -> Figure:
    """So many pairs a row; the longer side of an image takes `longest` inches."""
    height, width = tile_size(pairs[0].upper.shape[:2], longest)
    head = LINE * max(pair.above.count("\n") + 1 for pair in pairs) + GAP
    foot = LINE * max(sum(t.count("\n") + 1 for t, _ in pair.below) for pair in pairs) + GAP
    # Narrow images stand apart, so that the names do not touch.
    across = max(width, NAMES_WIDTH) + 2 * GAP
    down = head + 2 * height + GAP + foot
    columns = min(columns, len(pairs))
    rows = -(-len(pairs) // columns)
    figure = new_figure(max(columns * across, 5.2) + 0.2, rows * down + 0.5)
    axes: Axes = figure.subplots()
    for i, pair in enumerate(pairs):
        center = (i % columns + 0.5) * across
        left = center - width / 2
        top = i // columns * down + head
        under = top + height + GAP
        for image, y in ((pair.upper, top), (pair.lower, under)):
            extent = (left, left + width, y + height, y)
            axes.imshow(image, extent=extent, interpolation="antialiased")
        color = RED if pair.framed else "black"
        axes.text(center, top - 0.04, pair.above, va="bottom", color=color, **CENTERED)
        for row, (text, ink) in enumerate(pair.below):
            y = under + height + 0.04 + row * LINE
            axes.text(center, y, text, va="top", color=ink, **CENTERED)
        if pair.framed:
            axes.add_patch(_frame(left, under, width, height, RED))
    axes.set(xlim=(0, columns * across), ylim=(rows * down, 0))
    axes.set_axis_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=TEXT)
    return figure


def _frame(left: float, top: float, width: float, height: float, color: str) -> Rectangle:
    corner = (left, top)
    return Rectangle(corner, width, height, fill=False, edgecolor=color, linewidth=2, clip_on=False)
