from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from torchcaps.viz import activation_bars
from torchcaps.viz.canvas import GRAY, ORANGE, SKY

from .drawing import assert_nothing_cut, long_names

PICTURES = np.zeros((2, 1, 28, 28))


def bars(axes: Axes) -> list[tuple[float, str]]:
    return [(bar.get_width(), to_hex(bar.get_facecolor()).upper()) for bar in axes.patches]


def test_all_of_a_few_classes_in_their_order() -> None:
    lengths = np.array([[0.1, 0.9, 0.2], [0.7, 0.3, 0.8]])
    figure = activation_bars(PICTURES, lengths, [1, 0], classes=["cat", "dog", "owl"])
    image, first, _, second = figure.axes
    assert image.get_title() == "dog"
    assert bars(first) == [(0.1, GRAY), (0.9, SKY), (0.2, GRAY)]
    assert bars(second) == [(0.7, SKY), (0.3, GRAY), (0.8, ORANGE)]
    assert [text.get_text() for text in first.texts] == [
        "cat",
        "0.10",
        "dog",
        "0.90",
        "owl",
        "0.20",
    ]
    assert first.get_xlim() == (0, 1)


def test_of_many_classes_the_longest_and_the_true_one() -> None:
    lengths = np.tile(np.linspace(0.0, 0.86, 43), (2, 1))
    figure = activation_bars(PICTURES, lengths, [42, 0], classes=[f"c{i}" for i in range(43)])
    names = [[text.get_text() for text in axes.texts[::2]] for axes in figure.axes[1::2]]
    assert names == [["c42", "c41", "c40", "c39", "c38"], ["c42", "c41", "c40", "c39", "c0"]]
    assert bars(figure.axes[3])[0] == (pytest.approx(0.86), ORANGE)
    assert bars(figure.axes[3])[4] == (0.0, SKY)


@pytest.mark.parametrize(
    ("count", "classes", "shape"),
    [(1, 3, (1, 40, 28)), (3, 2, (1, 28, 28)), (7, 10, (3, 20, 60)), (10, 43, (3, 32, 32))],
)
def test_nothing_is_cut(count: int, classes: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    figure = activation_bars(
        rng.random((count, *shape)),
        rng.random((count, classes)),
        labels,
        classes=long_names(classes),
    )
    assert len(figure.axes) == 2 * count
    assert (figure.get_size_inches() <= [16, 20]).all()
    assert_nothing_cut(figure)


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"activations: expected \[n=2, classes=3\], got \[n=2, classes=4\]"
    ):
        activation_bars(PICTURES, np.zeros((2, 4)), [0, 1], classes=["a", "b", "c"])
    with pytest.raises(ValueError, match="labels: expected .n=2., got .n=1."):
        activation_bars(PICTURES, np.zeros((2, 3)), [0], classes=["a", "b", "c"])
    with pytest.raises(ValueError, match="number of images: expected at most 20, got 21"):
        activation_bars(
            np.zeros((21, 1, 4, 4)), np.zeros((21, 3)), [0] * 21, classes=["a", "b", "c"]
        )


def test_images_of_several_classes_have_several_true_bars() -> None:
    lengths = np.array([[0.1, 0.9, 0.2], [0.7, 0.3, 0.8]])
    figure = activation_bars(PICTURES, lengths, [[1, 2], [0, 1]], classes=["cat", "dog", "owl"])
    assert figure.axes[0].get_title() == "dog + owl"
    assert bars(figure.axes[1]) == [(0.1, GRAY), (0.9, SKY), (0.2, SKY)]
    assert bars(figure.axes[3]) == [(0.7, SKY), (0.3, SKY), (0.8, ORANGE)]
