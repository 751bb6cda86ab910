import numpy as np
import pytest
from matplotlib.text import Text

from torchcaps.errors import ArgumentError
from torchcaps.viz import coupling_map, overlaps, perturbations, reconstructions
from torchcaps.viz.canvas import RED
from torchcaps.viz.tiles import masks, overlay_support

from .drawing import assert_nothing_cut, long_names, numbered, texts, words

RANDOM = np.random.default_rng(0)
DIGITS = list("0123456789")
PETS = ["cat", "dog", "owl"]


def gray(count, height=6, width=4):
    return np.linspace(0, 1, count * height * width).reshape(count, 1, height, width)


def test_originals_stand_over_their_reconstructions_and_a_wrong_one_is_framed():
    images = gray(3)
    figure = reconstructions(images, 1 - images, [0, 1, 2], predictions=[0, 2, 2], classes=PETS)
    [axes] = figure.axes
    assert len(axes.images) == 6
    assert words(axes.texts) == ["cat", "dog\n→ owl", "owl"]
    [frame] = axes.patches
    assert frame.get_x() == axes.images[3].get_extent()[0]
    assert "1 of 3 taken for another class" in figure.get_suptitle()
    upper, lower = axes.images[2:4]
    assert np.array_equal(upper.get_array()[..., 0], np.rint(images[1, 0] * 255))
    assert np.array_equal(lower.get_array()[..., 0], np.rint(255 - images[1, 0] * 255))
    left, right, bottom, top = upper.get_extent()
    *lower_sides, _, lower_top = lower.get_extent()
    assert lower_sides == [left, right]
    assert bottom < lower_top  # y grows downwards
    assert (bottom - top) / (right - left) == pytest.approx(6 / 4)


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 28, 28)), (13, (3, 40, 28)), (11, (3, 20, 60))]
)
def test_pairs_of_any_shape_and_number_are_not_cut(count, shape):
    images = RANDOM.random((count, *shape))
    labels = np.arange(count)
    figure = reconstructions(
        images,
        images,
        labels,
        predictions=labels[::-1].copy(),
        classes=long_names(43),
    )
    assert len(figure.axes[0].images) == 2 * count
    assert_nothing_cut(figure)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reconstructions": gray(3)}, r"reconstructions: expected \[n=2, .* got \[n=3"),
        ({"labels": [0, 1]}, "labels: expected class indices from 0 to 0, got 1"),
    ],
)
def test_pairs_that_do_not_fit(changes, message):
    arguments = {
        "images": gray(2),
        "reconstructions": gray(2),
        "labels": [0, 0],
        "predictions": [0, 0],
        "classes": ["cat"],
    }
    with pytest.raises(ArgumentError, match=message):
        reconstructions(**arguments | changes)


@pytest.mark.parametrize(("argument", "index"), [("true", -1), ("predicted", 2)])
def test_masks_refuse_an_index_that_is_no_class(argument, index):
    indices = dict.fromkeys(("true", "predicted"), np.ones((1, 4, 6), int))
    indices[argument] = np.full((1, 4, 6), index)
    with pytest.raises(
        ArgumentError, match=f"{argument}: expected class indices from 0 to 1, got {index}"
    ):
        masks(np.zeros((1, 1, 4, 6)), **indices, classes=["background", "cell"])


def composites(count, shape=(1, 36, 36), classes=DIGITS):
    """Random arguments of `overlaps`."""
    return {
        "images": RANDOM.random((count, *shape)),
        "drawings": RANDOM.random((count, 2, *shape)),
        "labels": RANDOM.integers(0, 10, (count, 2)),
        "selected": RANDOM.integers(0, 10, (count, 2)),
        "lengths": RANDOM.random((count, 2)),
        "classes": classes,
    }


@pytest.mark.parametrize(
    ("count", "shape", "classes"),
    [(1, (1, 36, 36), DIGITS), (9, (3, 20, 40), long_names(10))],
)
def test_a_composite_has_two_tiles(count, shape, classes):
    figure = overlaps(**composites(count, shape, classes))
    assert len(figure.axes[0].images) == 2 * count
    assert_nothing_cut(figure)


def test_first_magenta_second_green_both_white_over_a_dark_input():
    arguments = composites(1, (1, 2, 2))
    arguments["images"] = np.array([1.0, 0, 0, 0]).reshape(1, 1, 2, 2)
    arguments["drawings"] = np.array([[0.0, 1, 0, 1], [0, 0, 1, 1]]).reshape(1, 2, 1, 2, 2)
    _, tile = overlaps(**arguments).axes[0].images
    pixels = np.asarray(tile.get_array())[[0, -1]][:, [0, -1]].reshape(4, 3)
    assert pixels.tolist() == [[76, 76, 76], [255, 0, 255], [0, 255, 0], [255, 255, 255]]


def test_a_star_marks_a_class_that_is_no_label():
    arguments = composites(1)
    arguments["labels"] = [[3, 5]]
    arguments["selected"] = [[5, 7]]
    arguments["lengths"] = [[0.91, 0.25]]
    assert {"3 + 5", "5  0.91", "*7  0.25"} <= set(words(texts(overlaps(**arguments))))


def mapped():
    """Random arguments of `coupling_map`."""
    return {
        "images": RANDOM.random((3, 1, 18, 20)),
        "maps": RANDOM.normal(size=(3, 18, 20)),
        "labels": np.arange(3),
        "selected": np.zeros(3, int),
        "lengths": np.full(3, 0.5),
        "classes": long_names(3),
    }


def test_the_class_and_its_length_stand_below_in_red_where_it_is_wrong():
    figure = coupling_map(**mapped() | {"classes": ["a", "b", "c"]})
    assert_nothing_cut(figure)
    for word in ("a", "0.50"):
        below = [text for text in figure.axes[0].texts if text.get_text() == word][-3:]
        assert list(map(Text.get_color, below)) == ["black", RED, RED]


def test_support_is_orange_and_opposition_blue_over_a_gray_image():
    image = np.full((1, 3, 3), 200, np.uint8)
    support, nothing, opposition = overlay_support(image, np.array([[2.0, 0.0, -2.0]]))[0].tolist()
    assert support[0] > support[1] > support[2]
    assert opposition[2] > opposition[1] > opposition[0]
    assert nothing == [120, 120, 120]
    assert (overlay_support(image, np.zeros((1, 3))) == 120).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maps": np.zeros((3, 18, 19))}, "maps: expected .n=3, height=18, width=20."),
        ({"maps": np.full((3, 18, 20), np.nan)}, "maps: expected finite numbers"),
    ],
)
def test_maps_that_do_not_fit(changes, message):
    with pytest.raises(ArgumentError, match=message):
        coupling_map(**mapped() | changes)


def test_a_row_is_a_dimension_and_a_column_a_step():
    decoded = np.zeros((16, 11, 1, 28, 28))
    decoded[2, 7] = 1.0
    figure = perturbations(
        decoded,
        np.linspace(-0.25, 0.25, 11),
        title="digit 5",
    )
    [axes] = figure.axes
    grid = np.asarray(axes.images[0].get_array())[..., 0]
    cells = grid.reshape(16, grid.shape[0] // 16, 12, grid.shape[1] // 12)[:, 1:29, :11, 1:29]
    assert np.argwhere(cells.any(axis=(1, 3))).tolist() == [[2, 7]]
    assert (axes.get_xticks()[7], axes.get_yticks()[2]) == (7.5, 2.5)
    assert words(axes.get_yticklabels()) == numbered(17, "{}")[1:]
    offsets = "−0.25 −0.2 −0.15 −0.1 −0.05 0 +0.05 +0.1 +0.15 +0.2 +0.25"
    assert words(axes.get_xticklabels()) == [*offsets.split(), "change"]
    assert axes.get_title() == "digit 5; poses hardly change the drawing yet: train longer"
    assert_nothing_cut(figure)


def test_a_difference_is_orange_where_the_last_drawing_is_brighter():
    decoded = np.zeros((2, 3, 1, 4, 4))
    decoded[0, 2, 0, :, :2] = 1.0
    decoded[0, 0, 0, :, 2:] = 1.0
    figure = perturbations(decoded, [-1, 0, 1], title="x", names=["width", ""])
    [axes] = figure.axes
    assert axes.get_title() == "x"
    assert words(axes.get_yticklabels()) == ["1 width", "2"]
    grid = np.asarray(axes.images[0].get_array())
    size = grid.shape[1] // 4
    change = grid[: grid.shape[0] // 2, 3 * size :]
    assert change[2, 2].tolist() == [230, 159, 0]
    assert change[2, -3].tolist() == [0, 114, 178]


def test_the_column_of_the_capsule_as_it_is_is_framed():
    [axes] = perturbations(np.zeros((2, 3, 1, 4, 4)), [-0.1, 0.0, 0.1]).axes
    [frame] = axes.patches
    assert frame.get_x() < axes.get_xticks()[1] < frame.get_x() + frame.get_width()
    assert not perturbations(np.zeros((2, 2, 1, 4, 4)), [-0.1, 0.1]).axes[0].patches
