from __future__ import annotations

import numpy as np
import pytest

from torchcaps.viz import overlaps

from .drawing import assert_nothing_cut, long_names, texts

RANDOM = np.random.default_rng(0)


def some(count: int, shape: tuple[int, ...] = (1, 36, 36), classes: int = 10) -> dict[str, np.ndarray]:
    return {
        "images": RANDOM.random((count, *shape)),
        "drawn": RANDOM.random((count, 2, *shape)),
        "labels": RANDOM.integers(0, classes, (count, 2)),
        "shown": RANDOM.integers(0, classes, (count, 2)),
        "lengths": RANDOM.random((count, 2)),
    }


@pytest.mark.parametrize(
    ("count", "shape", "names"), [(1, (1, 36, 36), "digits"), (9, (3, 20, 40), "long"), (40, (1, 9, 5), "digits")]
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
    given = some(1) | {"labels": np.array([[3, 5]]), "shown": np.array([[5, 7]]), "lengths": np.array([[0.91, 0.25]])}
    words = {text.get_text() for text in texts(overlaps(**given, classes=list("0123456789")))}
    assert {"3 + 5", "5  0.91", "*7  0.25"} <= words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drawn": np.zeros((2, 1, 1, 36, 36))}, r"drawn: expected \[n=2, k=2, channels, height=36, width=36\]"),
        ({"labels": np.full((2, 2), 10)}, "labels: expected class indices from 0 to 9, got 10"),
        ({"shown": np.zeros((2, 3), int)}, r"shown: expected \[n=2, k=2\], got \[n=2, k=3\]"),
        ({"lengths": np.zeros(2)}, r"lengths: expected \[n=2, k=2\]"),
        (some(41), "number of images: expected at most 40, got 41"),
    ],
)
def test_arguments_that_do_not_fit(change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlaps(**some(2) | change, classes=list("0123456789"))
