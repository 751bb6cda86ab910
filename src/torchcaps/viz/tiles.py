"""Figures of images beside each other: reconstructions, overlapping digits, masks, maps of support.

Six functions take arrays (numpy or torch) of n images and return a matplotlib figure:
`reconstructions`, `overlaps`, `masks`, `coupling_map`, `perturbations` and `image_rows`. They first
convert images to *pictures*: bytes of three colors, `[n, height, width, 3]`. Then they arrange them
in one of two layouts:

- `draw_pairs`: *pairs*, an image over another one, with text above the upper and below the lower
  image. One matplotlib axes holds all pairs. Its unit is the inch, its y grows downwards. (A figure
  that would be too large is made smaller; then the unit is less than an inch.)
- `tile_grid`: rows of equal *tiles*, each row with a name on its left. Tile k of a row spans x from
  k to k + 1, and row r spans y from r to r + 1.

A *reconstruction* is an image that a model's decoder made from the pose of one class capsule. The
*length* of a capsule is the length of its pose vector. It says how probable the capsule's class is.

Helpers: `pictures` converts images, and refuses none and more than 1024, and other numbers and sizes
than those of other pictures; `sized_array` and `class_indices` convert an argument
and check its shape, which is given by axis (`n=...`); `short_names` cuts names to a number of
characters; `palette` has a color for each class of a mask. `TEXT` and `SMALL` are font sizes,
`BELOW` the options of a legend under all images. Sizes of a figure are in inches: `longest` is the
longer side of an image, and `below`, an argument of `tile_grid`, the room for a legend.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle
from numpy.typing import ArrayLike

from torchcaps.data.masks import overlaid as overlay_mask, palette
from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.viz.canvas import (
    BELOW,
    BLUE,
    ORANGE,
    RED,
    SMALL,
    TEXT,
    Figure,
    Floats,
    Names,
    Pixels,
    class_indices,
    new_figure,
    pictures,
    short_names,
    sized_array,
    tile_grid,
    tile_size,
)

# Sizes of the layout in pairs, in inches.
LINE_HEIGHT = 0.15
MIN_CELL_WIDTH = 0.98  # room for the name of a class
GAP = 0.06  # between images, and around a cell
TEXT_GAP = 0.04  # between an image and its text
MIN_WIDTH = 5.2  # of all columns, room for the title
MARGIN = 0.2  # width beside all columns
TITLE_HEIGHT = 0.5

CENTERED: dict[str, Any] = {"ha": "center", "fontsize": SMALL}  # options of `Axes.text`

# Dark magenta and green: colors of the text about the first and the second reconstruction of an
# image with two digits. Color-blind readers can tell them apart.
TEXT_COLORS = ("#B000B0", "#007A00")

INPUT_BRIGHTNESS = 0.3  # factor, of an image under its two reconstructions
MAP_IMAGE_BRIGHTNESS = 0.6  # factor, of an image under its map of support
MAP_OPACITY = 0.9  # opacity of a map of support where its magnitude is largest

# Share of the weights within the scale of gray: one outlier must not turn all others gray.
SCALE_QUANTILE = 0.999

HARDLY = 0.2  # largest change of a pixel, along all dimensions of a pose that encode little


class Pair(NamedTuple):
    """An image over another of its size, with text above and below the two."""

    upper: Pixels  # `[height, width, 3]`
    lower: Pixels
    text_above: str
    texts_below: Sequence[tuple[str, str]] = ()  # (text, color) of each line, from the top down
    is_wrong: bool | np.bool_ = False  # then the text above and a frame of the lower image are red


def reconstructions(
    images: ArrayLike,
    reconstructions: ArrayLike,
    labels: ArrayLike,
    *,
    predictions: ArrayLike,
    classes: Names,
) -> Figure:
    """Draw originals over their reconstructions, ten pairs a row.

    Args:
        images: `[n, channels, height, width]` originals in [0, 1].
        reconstructions: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        predictions: `[n]` predicted classes; a wrong one is named and framed in red.
        classes: names of the classes.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit, or an index that is no class.
    """
    originals = pictures("images", images)
    decoded = pictures("reconstructions", reconstructions, originals)
    count = len(originals)
    true = class_indices("labels", labels, classes, n=count)
    predicted = class_indices("predictions", predictions, classes, n=count)
    names = short_names(classes, 13)

    pairs = []
    for original, drawing, label, prediction in zip(
        originals, decoded, true, predicted, strict=True
    ):
        text = names[label] if label == prediction else f"{names[label]}\n→ {names[prediction]}"
        pairs.append(Pair(original, drawing, text, is_wrong=label != prediction))

    title = "originals above, reconstructions below"
    num_wrong = (true != predicted).sum()
    if num_wrong:
        title += f"; {num_wrong} of {count} taken for another class (red)"
    return draw_pairs(pairs, title)


def overlaps(
    images: ArrayLike,
    drawings: ArrayLike,
    labels: ArrayLike,
    *,
    selected: ArrayLike,
    lengths: ArrayLike,
    classes: Names,
) -> Figure:
    """Draw images of two overlapping digits over the two reconstructions of each.

    The first reconstruction is magenta, the second green, and where both are bright it is white, as
    in figure 5 of arXiv 1710.09829; of each the first channel is used. The labels stand above a
    pair. The decoded classes stand below it with the lengths of their capsules, and with a star
    where the class is neither of the two labels.

    Args:
        images: `[n, channels, height, width]` inputs in [0, 1].
        drawings: `[n, 2, channels, height, width]` the two reconstructions of each image, in [0, 1];
            index 0 is drawn in magenta, 1 in green.
        labels: `[n, 2]` true classes, in any order.
        selected: `[n, 2]` classes whose capsules were decoded, in the order of `drawings`.
        lengths: `[n, 2]` lengths of these capsules, in [0, 1].
        classes: names of the classes.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit, or an index that is no class.
    """
    inputs = pictures("images", images)
    count, height, width, _ = inputs.shape
    sizes = {"n": count, "k": 2}  # k: the two digits of an image
    decoded = np.asarray(drawings)
    decoded_axes = ("n", "k", "channels", "height", "width")
    check_shape("drawings", decoded, decoded_axes, **sizes, height=height, width=width)
    flat = pictures("drawings", decoded.reshape(-1, *decoded.shape[2:]))
    gray_pairs = flat[..., 0].reshape(-1, 2, height, width)
    true = class_indices("labels", labels, classes, **sizes)
    decoded_classes = class_indices("selected", selected, classes, **sizes)
    capsule_lengths = sized_array("lengths", lengths, **sizes)
    names = short_names(classes, 10)

    pairs = []
    for index, image in enumerate(inputs):
        text_above = " + ".join(names[label] for label in true[index])
        texts_below = []
        for k, color in enumerate(TEXT_COLORS):
            decoded_class = decoded_classes[index, k]
            star = "" if decoded_class in true[index] else "*"
            text = f"{star}{names[decoded_class]}  {capsule_lengths[index, k]:.2f}"
            texts_below.append((text, color))
        overlay = overlay_reconstructions(image, gray_pairs[index])
        pairs.append(Pair(image, overlay, text_above, texts_below))
    title = "above: input; below: decoded alone, magenta and green; *: wrong class"
    return draw_pairs(pairs, title, max_columns=8, longest=1.15)


def overlay_reconstructions(image: Pixels, gray_pair: Pixels) -> Pixels:
    """Draw two gray images in magenta and green over a dark input.

    Args:
        image: the input.
        gray_pair: `[2, height, width]`, of which the first is drawn in magenta.
    """
    first, second = gray_pair
    background = (image * INPUT_BRIGHTNESS).astype(np.uint8)
    # Magenta is red and blue.
    return np.maximum(background, np.stack([first, second, first], axis=-1))


def masks(
    images: ArrayLike,
    true: ArrayLike,
    predicted: ArrayLike,
    *,
    classes: Names,
) -> Figure:
    """Draw a row of images, and rows of the same under their true and predicted masks.

    A mask has the class of each pixel, which is drawn as a color over the image.

    Args:
        images: `[n, channels, height, width]` in [0, 1].
        true: `[n, height, width]` class of each pixel.
        predicted: `[n, height, width]` predicted class of each pixel.
        classes: names of the classes, the background first; the legend has those that appear.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit, or an index that is no class.
    """
    inputs = pictures("images", images)
    count, height, width, _ = inputs.shape
    sizes = {"n": count, "height": height, "width": width}
    all_masks = np.stack(
        [
            class_indices("true", true, classes, **sizes),
            class_indices("predicted", predicted, classes, **sizes),
        ]
    )
    rows = [inputs]
    for row in all_masks:
        for image, mask in zip(inputs.transpose(0, 3, 1, 2), row, strict=True):
            rows.append(overlay_mask(image, mask, len(classes))[None])
    figure = tile_grid(np.concatenate(rows), ["image", "true", "found"], longest=1.1, below=0.4)

    # The legend: a patch of color for every class but the background, 0.
    colors = palette(len(classes)) / 255
    names = short_names(classes, 13)
    patches = [
        Patch(color=tuple(colors[label]), label=names[label])
        for label in np.unique(all_masks)
        if label
    ]
    figure.legend(handles=patches, ncols=6, **BELOW)
    return figure


def coupling_map(
    images: ArrayLike,
    maps: ArrayLike,
    labels: ArrayLike,
    *,
    selected: ArrayLike,
    lengths: ArrayLike,
    classes: Names,
) -> Figure:
    """Draw images over the same with a map of support.

    A map says how much each place of an image supports a class: its votes, weighted by their
    couplings, along the pose of the class capsule. Orange votes for the class, blue against it. Each
    map has its own scale, from zero to its largest magnitude. The class and the length of its
    capsule stand below, in red where the class is not the true one.

    Args:
        images: `[n, channels, height, width]` in [0, 1].
        maps: `[n, height, width]`, any finite numbers: above 0 for the class, below 0 against it;
            such as those of `evaluation.coupling_maps`.
        labels: `[n]` true classes.
        selected: `[n]` the classes whose votes the maps show.
        lengths: `[n]` lengths of their capsules, in [0, 1].
        classes: names of the classes.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit, an index that is no class, or a map that is not
            finite.
    """
    inputs = pictures("images", images)
    count, height, width, _ = inputs.shape
    support = sized_array("maps", maps, n=count, height=height, width=width).astype(float)
    if not np.isfinite(support).all():
        raise ArgumentError("maps", "expected finite numbers, got NaN or infinity")
    true = class_indices("labels", labels, classes, n=count)
    map_classes = class_indices("selected", selected, classes, n=count)
    capsule_lengths = sized_array("lengths", lengths, n=count)
    names = short_names(classes, 13)

    pairs = []
    for index, image in enumerate(inputs):
        map_class = map_classes[index]
        color = "black" if map_class == true[index] else RED
        texts_below = [(names[map_class], color), (f"{capsule_lengths[index]:.2f}", color)]
        overlay = overlay_support(image, support[index])
        pairs.append(Pair(image, overlay, names[true[index]], texts_below))
    return draw_pairs(pairs, "orange: votes for the class below; blue: against it")


def overlay_support(image: Pixels, support: Floats) -> Pixels:
    """Draw a map of support in orange and blue over an image in dark gray.

    Args:
        image: the image.
        support: `[height, width]`, above 0 for the class and below 0 against it.
    """
    magnitude = np.abs(support)[..., None]
    alpha = magnitude / (magnitude.max() or 1)
    color = np.where(support[..., None] >= 0, to_rgb(ORANGE), to_rgb(BLUE)) * 255
    gray = MAP_IMAGE_BRIGHTNESS * image.mean(axis=-1, keepdims=True)
    mixed = gray * (1 - MAP_OPACITY * alpha) + MAP_OPACITY * alpha * color
    return (mixed + 0.5).clip(0, 255).astype(np.uint8)


def perturbations(
    reconstructions: ArrayLike,
    offsets: ArrayLike,
    *,
    title: str = "",
    names: Names = (),
) -> Figure:
    """Draw reconstructions of one image from its pose with one changed dimension.

    A row is a dimension of the pose (named from 1), a column an offset that is added to it. The
    column of offset 0 is framed. On the right stands the difference of the last drawing and the
    first: orange where the last is brighter, blue where it is darker. Where no dimension changes a
    pixel by more than 0.2, the title says so.

    Args:
        reconstructions: `[dims, steps, channels, height, width]` in [0, 1]; at most 1024 images,
            `dims * steps`.
        offsets: `[steps]`, what is added to the dimension.
        title: title of the figure.
        names: what each dimension changes; empty where that is not known.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    decoded = np.asarray(reconstructions)
    check_shape("reconstructions", decoded, ("dims", "steps", "channels", "height", "width"))
    num_dims, num_steps = decoded.shape[:2]
    steps = sized_array("offsets", offsets, steps=num_steps).round(6) + 0.0  # no negative zero
    tiles = pictures("reconstructions", decoded.reshape(-1, *decoded.shape[2:]))
    height, width = tiles.shape[1:3]
    rows = tiles.reshape(num_dims, num_steps, height, width, 3)
    brighter = (rows[:, -1].astype(float) - rows[:, 0]).mean(axis=-1) / 255
    if np.abs(brighter).max() < HARDLY:
        title += "; poses hardly change the drawing yet: train longer"
    # On white, orange where the last drawing is brighter, blue where it is darker.
    change = brighter[:, None, ..., None]
    color = np.where(change > 0, to_rgb(ORANGE), to_rgb(BLUE))
    white = 255 * (1 - np.abs(change) * (1 - color))
    differences = (white + 0.5).clip(0, 255).astype(np.uint8)
    tiles = np.concatenate([rows, differences], axis=1).reshape(-1, height, width, 3)
    labels = [str(dim + 1) for dim in range(num_dims)]
    if len(names):
        sized_array("names", names, dims=num_dims)
        labels = [f"{label} {name}".strip() for label, name in zip(labels, names, strict=True)]
    figure = tile_grid(tiles, labels, title, below=0.9)

    axes = figure.axes[0]
    texts = [f"{step:+.3g}".replace("-", "−") if step else "0" for step in steps]
    texts.append("change")
    rotation = 90 if num_steps > 14 else 0
    axes.set_xticks(np.arange(num_steps + 1) + 0.5, texts, rotation=rotation)
    axes.set_xlabel("added to the dimension", fontsize=TEXT)
    axes.set_ylabel("pose dimension", fontsize=TEXT)
    if "0" in texts:
        axes.add_patch(_frame(texts.index("0"), 0, 1, num_dims, BLUE))
    return figure


def image_rows(rows: Mapping[str, ArrayLike], longest: float = 0.65) -> Figure:
    """Draw rows of images, each with its name on the left.

    Args:
        rows: name -> `[n, channels, height, width]` in [0, 1], what lies outside is clipped; all of
            one number and size, at least one row.
        longest: inches of the longer side of an image.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for rows that do not fit each other.
    """
    tiles: list[Pixels] = []
    for name, images in rows.items():
        tiles.append(pictures(name, images, tiles[0] if tiles else None))
    return tile_grid(np.concatenate(tiles), list(rows), longest=longest)


def generation_weights(weights: ArrayLike, *, title: str = "") -> Figure:
    """Draw the outgoing weights of generation units, a row for each capsule.

    Gray is 0; a white weight makes the pixel brighter, a black one darker.

    Args:
        weights: `[capsules, units, height, width]`, any numbers, all drawn at one scale; at most
            1024 units in all.
        title: title of the figure.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for an array of other axes, or too many units.
    """
    array = np.asarray(weights, dtype=float)
    check_shape("weights", array, ("capsules", "units", "height", "width"))
    check_range("weights: number of values", array.size, low=1)
    scale = max(float(np.quantile(np.abs(array), SCALE_QUANTILE)), 1e-12)
    # From -scale..scale to 0..1; `pictures` clips the outliers.
    gray = 0.5 + 0.5 * array / scale
    tiles = pictures("weights", gray.reshape(-1, 1, *array.shape[2:]))
    names = [str(capsule + 1) for capsule in range(len(array))]
    figure = tile_grid(tiles, names, title)
    figure.axes[0].set_ylabel("capsule", fontsize=TEXT)
    return figure


def draw_pairs(
    pairs: Sequence[Pair],
    title: str,
    *,
    max_columns: int = 10,
    longest: float = 1.0,
) -> Figure:
    """Draw pairs of images in rows.

    Args:
        pairs: pairs of images of one size, at least one.
        title: title of the figure.
        max_columns: largest number of pairs in a row.
        longest: length of the longer side of an image, in inches.

    Returns:
        A matplotlib figure.
    """
    num_columns = min(max_columns, len(pairs))
    num_rows = -(-len(pairs) // num_columns)  # rounded up
    height, width = tile_size(pairs[0].upper.shape[:2], longest)  # of an image, in inches

    # A cell holds a pair: text above, two images and text below.
    num_lines_above = 1 + max(pair.text_above.count("\n") for pair in pairs)
    num_lines_below = max(len(pair.texts_below) for pair in pairs)
    above_height = LINE_HEIGHT * num_lines_above + GAP
    below_height = LINE_HEIGHT * num_lines_below + GAP
    cell_height = above_height + 2 * height + GAP + below_height
    # Narrow images stand apart, so that their names do not touch.
    cell_width = max(width, MIN_CELL_WIDTH) + 2 * GAP

    figure = new_figure(
        max(num_columns * cell_width, MIN_WIDTH) + MARGIN, num_rows * cell_height + TITLE_HEIGHT
    )
    axes = figure.subplots()
    for index, pair in enumerate(pairs):
        row, column = divmod(index, num_columns)
        x_center = (column + 0.5) * cell_width
        x_start = x_center - width / 2
        y_upper = row * cell_height + above_height
        y_lower = y_upper + height + GAP
        for image, y in ((pair.upper, y_upper), (pair.lower, y_lower)):
            extent = (x_start, x_start + width, y + height, y)
            axes.imshow(image, extent=extent, interpolation="antialiased")

        color = "black"
        if pair.is_wrong:
            color = RED
            axes.add_patch(_frame(x_start, y_lower, width, height, RED))
        axes.text(
            x_center, y_upper - TEXT_GAP, pair.text_above, va="bottom", color=color, **CENTERED
        )
        y_text = y_lower + height + TEXT_GAP
        for text, text_color in pair.texts_below:
            axes.text(x_center, y_text, text, va="top", color=text_color, **CENTERED)
            y_text += LINE_HEIGHT
    axes.set(xlim=(0, num_columns * cell_width), ylim=(num_rows * cell_height, 0))
    axes.set_axis_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=TEXT)
    return figure


def _frame(x_start: float, y_top: float, width: float, height: float, color: str) -> Rectangle:
    """An empty rectangle, in the units of the axes."""
    return Rectangle(
        (x_start, y_top), width, height, fill=False, edgecolor=color, linewidth=2, clip_on=False
    )
