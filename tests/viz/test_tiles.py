from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from torchcaps.viz import coupling_map, overlaps, perturbations, reconstructions
from torchcaps.viz.tiles import overlaid

from .drawing import assert_nothing_cut, long_names, texts

RANDOM = np.random.default_rng(0)


def gray(count: int, height: int = 6, width: int = 4) -> np.ndarray:
    return np.linspace(0, 1, count * height * width).reshape(count, 1, height, width)


def test_originals_stand_over_their_reconstructions() -> None:
    images = gray(3)
    figure = reconstructions(
        images, 1 - images, [0, 1, 2], predictions=[0, 2, 2], classes=["cat", "dog", "owl"]
    )
    axes = figure.axes[0]
    assert len(axes.images) == 6
    above, below = axes.images[2], axes.images[3]
    assert np.array_equal(above.get_array()[..., 0], np.rint(images[1, 0] * 255))
    assert np.array_equal(below.get_array()[..., 0], np.rint(255 - images[1, 0] * 255))
    assert above.get_extent()[:2] == below.get_extent()[:2]
    assert above.get_extent()[2] < below.get_extent()[3]  # y grows downwards
    left, right, bottom, top = above.get_extent()
    assert (bottom - top) / (right - left) == pytest.approx(6 / 4)


def test_a_wrong_prediction_is_named_and_framed() -> None:
    images = gray(3)
    figure = reconstructions(
        images, images, [0, 1, 2], predictions=[0, 2, 2], classes=["cat", "dog", "owl"]
    )
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["cat", "dog\n→ owl", "owl"]
    frames = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(frames) == 1
    assert frames[0].get_x() == axes.images[3].get_extent()[0]
    assert "1 of 3 taken for another class" in figure.get_suptitle()


def test_nothing_is_framed_when_all_are_right() -> None:
    figure = reconstructions(gray(2), gray(2), [0, 0], predictions=[0, 0], classes=["cat"])
    assert not figure.axes[0].patches
    assert figure.get_suptitle() == "originals above, reconstructions below"


@pytest.mark.parametrize(
    ("count", "shape"),
    [(1, (1, 28, 28)), (3, (1, 40, 28)), (13, (3, 40, 28)), (11, (3, 20, 60)), (80, (2, 8, 8))],
)
def test_any_shape_and_number_is_whole(count: int, shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).random((count, *shape))
    labels = np.arange(count) % 43
    figure = reconstructions(
        images, images, labels, predictions=labels[::-1].copy(), classes=long_names(43)
    )
    assert len(figure.axes[0].images) == 2 * count
    assert (figure.get_size_inches() <= [16, 20]).all()
    assert_nothing_cut(figure)


def test_tensors_are_arrays_too() -> None:
    images = torch.rand(2, 3, 5, 5)
    figure = reconstructions(
        images, images, torch.tensor([0, 0]), predictions=torch.tensor([0, 0]), classes=["cat"]
    )
    assert len(figure.axes[0].images) == 4


@pytest.mark.parametrize(
    ("images", "rebuilt", "labels", "message"),
    [
        (gray(2), gray(3), [0, 0], r"reconstructions: expected the shape of the images"),
        (gray(81), gray(81), [0] * 81, "number of images: expected at most 80, got 81"),
        (gray(2), gray(2), [0], "labels: expected .n=2., got .n=1."),
        (gray(2), gray(2), [0, 1], "labels: expected class indices from 0 to 0, got 1"),
        (gray(2)[0], gray(2), [0, 0], r"images: expected \[n, channels, height, width\]"),
    ],
)
def test_pairs_that_do_not_fit(
    images: np.ndarray, rebuilt: np.ndarray, labels: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reconstructions(images, rebuilt, labels, predictions=labels, classes=["cat"])


def some(
    count: int, shape: tuple[int, ...] = (1, 36, 36), classes: int = 10
) -> dict[str, np.ndarray]:
    return {
        "images": RANDOM.random((count, *shape)),
        "drawn": RANDOM.random((count, 2, *shape)),
        "labels": RANDOM.integers(0, classes, (count, 2)),
        "shown": RANDOM.integers(0, classes, (count, 2)),
        "lengths": RANDOM.random((count, 2)),
    }


@pytest.mark.parametrize(
    ("count", "shape", "names"),
    [(1, (1, 36, 36), "digits"), (9, (3, 20, 40), "long"), (40, (1, 9, 5), "digits")],
)
def test_two_tiles_an_image(count: int, shape, names: str) -> None:
    classes = [str(i) for i in range(10)] if names == "digits" else long_names(10)
    figure = overlaps(**some(count, shape), classes=classes)
    assert len(figure.axes[0].images) == 2 * count
    assert_nothing_cut(figure)


def test_first_magenta_second_green_both_white_over_a_dark_input() -> None:
    given = some(1, (1, 2, 2)) | {"images": np.array([1.0, 0, 0, 0]).reshape(1, 1, 2, 2)}
    given["drawn"] = np.array([[0, 1, 0, 1], [0, 0, 1, 1]], dtype=float).reshape(1, 2, 1, 2, 2)
    _, tile = overlaps(**given, classes=list("abcdefghij")).axes[0].images
    pixels = np.asarray(tile.get_array())[[0, -1]][:, [0, -1]].reshape(4, 3)
    assert pixels.tolist() == [[76, 76, 76], [255, 0, 255], [0, 255, 0], [255, 255, 255]]


def test_a_star_marks_what_is_no_label() -> None:
    given = some(1) | {
        "labels": np.array([[3, 5]]),
        "shown": np.array([[5, 7]]),
        "lengths": np.array([[0.91, 0.25]]),
    }
    words = {text.get_text() for text in texts(overlaps(**given, classes=list("0123456789")))}
    assert {"3 + 5", "5  0.91", "*7  0.25"} <= words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"drawn": np.zeros((2, 1, 1, 36, 36))},
            r"drawn: expected \[n=2, k=2, channels, height=36, width=36\]",
        ),
        ({"labels": np.full((2, 2), 10)}, "labels: expected class indices from 0 to 9, got 10"),
        ({"shown": np.zeros((2, 3), int)}, r"shown: expected \[n=2, k=2\], got \[n=2, k=3\]"),
        ({"lengths": np.zeros(2)}, r"lengths: expected \[n=2, k=2\]"),
        (some(41), "number of images: expected at most 40, got 41"),
    ],
)
def test_arguments_that_do_not_fit(change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlaps(**some(2) | change, classes=list("0123456789"))


def arguments(count=3, channels=1, size=(18, 20), classes=3):
    random = np.random.default_rng(0)
    return {
        "images": random.random((count, channels, *size)),
        "maps": random.normal(size=(count, *size)),
        "labels": np.arange(count) % classes,
        "shown": np.zeros(count, int),
        "lengths": np.full(count, 0.5),
        "classes": long_names(classes),
    }


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"count": 1},
        {"count": 40, "channels": 3, "classes": 43},
        {"count": 12, "size": (48, 16)},
    ],
)
def test_nothing_is_cut(sizes):
    assert_nothing_cut(coupling_map(**arguments(**sizes)))


def test_the_class_shown_and_its_length_stand_below_in_red_where_it_is_wrong():
    figure = coupling_map(**arguments() | {"classes": ["a", "b", "c"]})
    below = [text for text in texts(figure) if text.get_text() == "a\n0.50"]
    assert [text.get_color() for text in below] == ["black", "#D55E00", "#D55E00"]


def test_support_is_orange_and_opposition_blue_over_a_gray_image():
    image = np.full((1, 3, 3), 200, np.uint8)
    orange, gray, blue = overlaid(image, np.array([[2.0, 0.0, -2.0]]))[0].astype(int)
    assert orange[0] > orange[1] > orange[2]
    assert blue[2] > blue[1] > blue[0]
    assert gray.tolist() == [120, 120, 120]


def test_a_map_of_nothing_leaves_the_image():
    image = np.full((2, 2, 3), 100, np.uint8)
    assert (overlaid(image, np.zeros((2, 2))) == 60).all()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"maps": np.zeros((3, 18, 19))}, "maps: expected .n=3, height=18, width=20."),
        ({"maps": np.zeros((3, 18))}, "maps: expected .n=3, height=18, width=20., got .3, 18."),
        ({"maps": np.full((3, 18, 20), np.nan)}, "maps: expected finite numbers"),
        ({"lengths": np.zeros(2)}, "lengths: expected .n=3., got .n=2."),
        ({"shown": np.array([0, 1, 3])}, "shown: expected class indices from 0 to 2, got 3"),
        ({"labels": np.array([0])}, "labels: expected .n=3., got .n=1."),
    ],
)
def test_what_does_not_fit_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        coupling_map(**arguments() | changes)


def test_more_images_than_can_be_seen_are_refused():
    with pytest.raises(ValueError, match="number of images: expected at most 40, got 41"):
        coupling_map(**arguments(count=41))


def test_a_row_a_dimension_and_a_column_a_step() -> None:
    values = np.zeros((16, 11, 1, 28, 28))
    values[2, 7] = 1.0
    figure = perturbations(values, np.linspace(-0.25, 0.25, 11), title="digit 5")
    axes = figure.axes[0]
    whole = np.asarray(axes.images[0].get_array())[..., 0]
    cells = whole.reshape(16, whole.shape[0] // 16, 11, whole.shape[1] // 11)[:, 1:29, :, 1:29]
    assert np.argwhere(cells.any(axis=(1, 3))).tolist() == [[2, 7]]
    assert (axes.get_xticks()[7], axes.get_yticks()[2]) == (7.5, 2.5)
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(i) for i in range(1, 17)]
    offsets = [label.get_text() for label in axes.get_xticklabels()]
    assert offsets == [
        "−0.25",
        "−0.2",
        "−0.15",
        "−0.1",
        "−0.05",
        "0",
        "+0.05",
        "+0.1",
        "+0.15",
        "+0.2",
        "+0.25",
    ]
    assert axes.get_title() == "digit 5"
    assert_nothing_cut(figure)


def test_the_column_of_the_capsule_as_it_is_is_framed() -> None:
    figure = perturbations(np.zeros((2, 3, 1, 4, 4)), [-0.1, 0.0, 0.1])
    (frame,) = figure.axes[0].patches
    assert frame.get_x() < figure.axes[0].get_xticks()[1] < frame.get_x() + frame.get_width()
    assert not perturbations(np.zeros((2, 2, 1, 4, 4)), [-0.1, 0.1]).axes[0].patches


@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 28, 28), (8, 5, 3, 40, 28), (4, 40, 1, 10, 30), (64, 11, 1, 8, 8)]
)
def test_grids_of_any_shape_are_bounded_and_whole(shape: tuple[int, ...]) -> None:
    figure = perturbations(np.zeros(shape), np.linspace(-0.25, 0.25, shape[1]))
    assert (figure.get_size_inches() <= [16, 20]).all()
    assert_nothing_cut(figure)


def test_grids_that_do_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"reconstructions: expected \[dims, steps, channels, height, width\]"
    ):
        perturbations(np.zeros((2, 3, 4, 4)), [0.0, 0.1, 0.2])
    with pytest.raises(ValueError, match="offsets: expected 3 entries, got 1"):
        perturbations(np.zeros((2, 3, 1, 4, 4)), [0.0])
    with pytest.raises(ValueError, match="number of reconstructions: expected at most 1024"):
        perturbations(np.zeros((1025, 1, 1, 2, 2)), [0.0])
