"""Images beside each other: originals and reconstructions, overlapping digits, masks, vote maps."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle
from numpy.typing import ArrayLike, NDArray

from torchcaps.data.masks import overlaid as with_mask, palette
from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.viz.canvas import BELOW, BLUE, ORANGE, RED, SMALL, TEXT, Axes, Figure, new_figure
from torchcaps.viz.images import pictures, pictures_like, tile_grid, tile_size
from torchcaps.viz.names import check_length, class_indices, short_names, sized_array

# Inches.
LINE_HEIGHT = 0.15
NAMES_WIDTH = 0.98
GAP = 0.06
TEXT_GAP = 0.04

CENTERED: dict[str, Any] = {"ha": "center", "fontsize": SMALL}

# Text in the colors of the two drawings, magenta and green, which suit color-blind readers.
INKS = ("#B000B0", "#007A00")

INPUT_SHADE = 0.3  # brightness of the input under the drawings
IMAGE_SHADE = 0.6  # brightness of the image under a map
MAP_OPACITY = 0.9  # of a map where it is largest

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
    """Draw originals over their reconstructions, ten pairs a row.

    Args:
        images: `[n, channels, height, width]` originals in [0, 1].
        reconstructions: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        predictions: `[n]` predicted classes; a wrong one is named and framed in red.
        classes: names of the classes.

    Raises:
        ArgumentError: for shapes that do not fit, or an index that is no class.
    """
    originals = pictures("images", images)
    decoded = pictures_like("reconstructions", reconstructions, originals)
    count = len(originals)
    true = class_indices("labels", labels, len(classes), n=count)
    predicted = class_indices("predictions", predictions, len(classes), n=count)
    names = short_names(classes, 13)

    pairs = []
    for original, reconstruction, label, answer in zip(
        originals,
        decoded,
        true,
        predicted,
        strict=True,
    ):
        is_wrong = bool(label != answer)
        text = f"{names[label]}\n→ {names[answer]}" if is_wrong else names[label]
        pairs.append(Pair(original, reconstruction, text, framed=is_wrong))

    title = "originals above, reconstructions below"
    num_wrong = sum(pair.framed for pair in pairs)
    if num_wrong:
        title += f"; {num_wrong} of {count} taken for another class (red)"
    return draw_pairs(pairs, title, max_columns=10)


def overlaps(
    images: ArrayLike,
    drawings: ArrayLike,
    labels: ArrayLike,
    *,
    selected: ArrayLike,
    lengths: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Draw overlapping digits over the two drawings that a decoder made of each image.

    The first drawing is magenta, the second green, and both together white, as in figure 5 of
    arXiv 1710.09829; of each the first channel is used. The labels stand above a pair, the decoded
    classes below it, with a star at a class that is no label.

    Args:
        images: `[n, channels, height, width]` inputs in [0, 1].
        drawings: `[n, 2, channels, height, width]` drawings in [0, 1].
        labels: `[n, 2]` true classes.
        selected: `[n, 2]` decoded classes.
        lengths: `[n, 2]` lengths of their capsules, in [0, 1].
        classes: names of the classes.

    Raises:
        ArgumentError: for shapes that do not fit, or an index that is no class.
    """
    inputs = pictures("images", images)
    count, height, width, _ = inputs.shape
    sizes = {"n": count, "k": 2}
    reconstructed = np.asarray(drawings)
    axes = ("n", "k", "channels", "height", "width")
    check_shape("drawings", reconstructed, axes, **sizes, height=height, width=width)
    flat = pictures("drawings", reconstructed.reshape(-1, *reconstructed.shape[2:]))
    layers = flat[..., 0].reshape(count, 2, height, width)
    true = class_indices("labels", labels, len(classes), **sizes)
    decoded = class_indices("selected", selected, len(classes), **sizes)
    activations = sized_array("lengths", lengths, **sizes)
    names = short_names(classes, 10)

    pairs = []
    for index, image in enumerate(inputs):
        below = []
        for label, length, ink in zip(decoded[index], activations[index], INKS, strict=True):
            star = "" if label in true[index] else "*"
            below.append((f"{star}{names[label]}  {length:.2f}", ink))
        above = " + ".join(names[label] for label in true[index])
        pairs.append(Pair(image, colored(image, layers[index]), above, below))
    title = "above: input; below: decoded alone, magenta and green; *: no label"
    return draw_pairs(pairs, title, max_columns=8, longest=1.15)


def colored(image: Pixels, layers: NDArray[np.uint8]) -> Pixels:
    """Draw two layers `[2, height, width]` in magenta and green over a dark input."""
    first, second = layers
    background = (image * INPUT_SHADE).astype(np.uint8)
    return np.maximum(background, np.stack([first, second, first], axis=-1))


def masks(
    images: ArrayLike,
    true: ArrayLike,
    predicted: ArrayLike,
    *,
    classes: Sequence[str],
) -> Figure:
    """Draw images, and the same under their true and predicted masks.

    Args:
        images: `[n, channels, height, width]` in [0, 1].
        true: `[n, height, width]` class of each pixel.
        predicted: `[n, height, width]` predicted class of each pixel.
        classes: names of the classes, the background first; the legend has those that appear.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    inputs = pictures("images", images)
    count, height, width, _ = inputs.shape
    rows = [inputs]
    present = set[int]()
    for name, labels in (("true", true), ("predicted", predicted)):
        indices = sized_array(name, labels, n=count, height=height, width=width).astype(np.uint8)
        present.update(indices.ravel().tolist())
        overlays = []
        for image, mask in zip(inputs, indices, strict=True):
            overlays.append(with_mask(image.transpose(2, 0, 1), mask, len(classes)))
        rows.append(np.stack(overlays))
    figure = tile_grid(np.concatenate(rows), ["image", "true", "found"], longest=1.1, below=0.4)

    colors = palette(len(classes)) / 255
    names = short_names(classes, 13)
    patches = []
    for label in sorted(present - {0}):
        patches.append(Patch(color=tuple(colors[label]), label=names[label]))
    figure.legend(handles=patches, ncols=min(6, max(1, len(patches))), **BELOW)
    return figure


def coupling_map(
    images: ArrayLike,
    maps: ArrayLike,
    labels: ArrayLike,
    *,
    selected: ArrayLike,
    lengths: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Draw images over the same with a map of votes.

    Votes for the class are orange, votes against it blue. Each map has its own scale, from zero to
    its largest magnitude. The class and the length of its capsule stand below, in red where the
    class is not the true one.

    Args:
        images: `[n, channels, height, width]` in [0, 1].
        maps: `[n, height, width]`, such as those of `evaluation.coupling_maps`.
        labels: `[n]` true classes.
        selected: `[n]` the classes whose votes the maps show.
        lengths: `[n]` lengths of their capsules, in [0, 1].
        classes: names of the classes.

    Raises:
        ArgumentError: for shapes that do not fit, an index that is no class, or a map that is not
            finite.
    """
    inputs = pictures("images", images)
    count, height, width, _ = inputs.shape
    support = sized_array("maps", maps, n=count, height=height, width=width).astype(np.float64)
    if not np.isfinite(support).all():
        raise ArgumentError("maps", "expected finite numbers, got NaN or infinity")
    true = class_indices("labels", labels, len(classes), n=count)
    decoded = class_indices("selected", selected, len(classes), n=count)
    activations = sized_array("lengths", lengths, n=count)
    names = short_names(classes, 13)

    pairs = []
    for index, image in enumerate(inputs):
        color = "black" if decoded[index] == true[index] else RED
        below = [(f"{names[decoded[index]]}\n{activations[index]:.2f}", color)]
        pairs.append(Pair(image, overlaid(image, support[index]), names[true[index]], below))
    title = "orange: votes for the class below; blue: against it"
    return draw_pairs(pairs, title, max_columns=10)


def overlaid(image: Pixels, support: NDArray[np.float64]) -> Pixels:
    """Draw a map `[height, width]` in its colors over an image in dark gray."""
    magnitude = np.abs(support)[..., None]
    largest = magnitude.max()
    alpha = magnitude / largest if largest > 0 else np.zeros_like(magnitude)
    color = np.where(support[..., None] >= 0, to_rgb(ORANGE), to_rgb(BLUE)) * 255
    gray = IMAGE_SHADE * image.mean(axis=-1, keepdims=True)
    mixed = gray * (1 - MAP_OPACITY * alpha) + MAP_OPACITY * alpha * color
    return (mixed + 0.5).clip(0, 255).astype(np.uint8)


def perturbations(reconstructions: ArrayLike, offsets: ArrayLike, *, title: str = "") -> Figure:
    """Draw reconstructions of one image while one pose dimension after the other moves.

    A row is a dimension, a column a step. The column of offset 0 is framed.

    Args:
        reconstructions: `[dims, steps, channels, height, width]` in [0, 1], at most 1024.
        offsets: `[steps]`, what is added to the dimension.
        title: title of the figure.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    decoded = np.asarray(reconstructions)
    moves = np.asarray(offsets)
    check_shape("reconstructions", decoded, ("dims", "steps", "channels", "height", "width"))
    num_dims, num_steps = decoded.shape[:2]
    check_length("offsets", moves, num_steps)
    tiles = pictures("reconstructions", decoded.reshape(-1, *decoded.shape[2:]))
    figure = tile_grid(tiles, [str(dim + 1) for dim in range(num_dims)], title, below=0.9)

    axes = figure.axes[0]
    ticks = [_signed(move) for move in moves]
    rotation = 90 if num_steps > 14 else 0
    axes.set_xticks(np.arange(num_steps) + 0.5, ticks, rotation=rotation)
    axes.set_xlabel("added to the dimension", fontsize=TEXT)
    axes.set_ylabel("pose dimension", fontsize=TEXT)
    if "0" in ticks:
        axes.add_patch(_frame(ticks.index("0"), 0, 1, num_dims, BLUE))
    return figure


def image_rows(rows: Mapping[str, ArrayLike], *, title: str = "") -> Figure:
    """Draw rows of images, each with its name on the left.

    Args:
        rows: name -> `[n, channels, height, width]` in [0, 1]; all of one number and size.
        title: title of the figure.

    Raises:
        ArgumentError: for no row, or rows that do not fit each other.
    """
    check_range("number of rows", len(rows), low=1)
    name, images = next(iter(rows.items()))
    first = pictures(name, images)
    tiles = [pictures_like(name, images, first) for name, images in rows.items()]
    return tile_grid(np.concatenate(tiles), list(rows), title)


def draw_pairs(
    pairs: Sequence[Pair],
    title: str,
    *,
    max_columns: int,
    longest: float = 1.0,
) -> Figure:
    """Draw pairs of images in rows.

    Args:
        pairs: pairs of images of one size, at least one.
        title: title of the figure.
        max_columns: largest number of pairs in a row.
        longest: length of the longer side of an image, in inches.
    """
    num_columns = min(max_columns, len(pairs))
    num_rows = -(-len(pairs) // num_columns)
    height, width = tile_size(pairs[0].upper.shape[:2], longest)

    # A cell has text above, two images and text below.
    num_lines_above = 0
    num_lines_below = 0
    for pair in pairs:
        num_lines_above = max(num_lines_above, pair.above.count("\n") + 1)
        below = "".join(f"{text}\n" for text, _ in pair.below)
        num_lines_below = max(num_lines_below, below.count("\n"))
    above_height = LINE_HEIGHT * num_lines_above + GAP
    below_height = LINE_HEIGHT * num_lines_below + GAP
    cell_height = above_height + 2 * height + GAP + below_height
    # Narrow images stand apart, so that their names do not touch.
    cell_width = max(width, NAMES_WIDTH) + 2 * GAP

    figure = new_figure(max(num_columns * cell_width, 5.2) + 0.2, num_rows * cell_height + 0.5)
    axes: Axes = figure.subplots()
    for index, pair in enumerate(pairs):
        row, column = divmod(index, num_columns)
        center = (column + 0.5) * cell_width
        top = row * cell_height + above_height
        _draw_pair(axes, pair, center, top, (height, width))
    axes.set(xlim=(0, num_columns * cell_width), ylim=(num_rows * cell_height, 0))
    axes.set_axis_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=TEXT)
    return figure


def _draw_pair(
    axes: Axes,
    pair: Pair,
    center: float,
    top: float,
    size: tuple[float, float],
) -> None:
    """Draw a pair, whose images have this size, around a vertical line."""
    height, width = size
    x_left = center - width / 2
    lower_top = top + height + GAP
    for image, y in ((pair.upper, top), (pair.lower, lower_top)):
        extent = (x_left, x_left + width, y + height, y)
        axes.imshow(image, extent=extent, interpolation="antialiased")

    color = RED if pair.framed else "black"
    axes.text(center, top - TEXT_GAP, pair.above, va="bottom", color=color, **CENTERED)
    for row, (text, ink) in enumerate(pair.below):
        y = lower_top + height + TEXT_GAP + row * LINE_HEIGHT
        axes.text(center, y, text, va="top", color=ink, **CENTERED)
    if pair.framed:
        axes.add_patch(_frame(x_left, lower_top, width, height, RED))


def _frame(x_left: float, top: float, width: float, height: float, color: str) -> Rectangle:
    corner = (x_left, top)
    return Rectangle(corner, width, height, fill=False, edgecolor=color, linewidth=2, clip_on=False)


def _signed(move: float) -> str:
    """Write an offset with its sign; "0" for next to nothing."""
    if abs(move) < 1e-6:
        return "0"
    return f"{move:+.3g}".replace("-", "−")
