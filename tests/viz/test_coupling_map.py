from __future__ import annotations

import numpy as np
import pytest

from torchcaps.viz import coupling_map
from torchcaps.viz.coupling_map import overlaid

from .drawing import assert_nothing_cut, long_names, texts


def arguments(count=3, channels=1, size=(18, 20), classes=3):
    random = np.random.default_rng(0)
    return {
        "images": random.random((count, channels, *size)), "maps": random.normal(size=(count, *size)),
        "labels": np.arange(count) % classes, "shown": np.zeros(count, int), "lengths": np.full(count, 0.5),
        "classes": long_names(classes),
    }  # fmt: skip


@pytest.mark.parametrize(
    "sizes", [{}, {"count": 1}, {"count": 40, "channels": 3, "classes": 43}, {"count": 12, "size": (48, 16)}]
)
def test_nothing_is_cut(sizes):
    assert_nothing_cut(coupling_map(**arguments(**sizes)))


def test_the_class_shown_and_its_length_stand_below_in_red_where_it_is_wrong():
    figure = coupling_map(**arguments() | {"classes": ["a", "b", "c"]})
    below = [text for text in texts(figure) if text.get_text() == "a\n0.50"]
    assert [text.get_color() for text in below] == ["black", "#D55E00", "#D55E00"]


def test_support_is_orange_and_opposition_blue_over_a_grey_image():
    image = np.full((1, 3, 3), 200, np.uint8)
    orange, grey, blue = overlaid(image, np.array([[2.0, 0.0, -2.0]]))[0].astype(int)
    assert orange[0] > orange[1] > orange[2]
    assert blue[2] > blue[1] > blue[0]
    assert grey.tolist() == [120, 120, 120]


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
