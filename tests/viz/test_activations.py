import numpy as np
import pytest
from matplotlib.colors import to_hex

from torchcaps.viz import activation_bars
from torchcaps.viz.canvas import GRAY, ORANGE, SKY

from .drawing import assert_nothing_cut, long_names, numbered, widths, words

PICTURES = np.zeros((2, 1, 28, 28))
LENGTHS = np.array([[0.1, 0.9, 0.2], [0.7, 0.3, 0.8]])
CLASSES = ["cat", "dog", "owl"]


def bars(axes):
    """The length and the color of each bar."""
    colors = []
    for bar in axes.patches:
        colors.append(to_hex(bar.get_facecolor()).upper())
    return list(zip(widths(axes), colors, strict=True))


@pytest.mark.parametrize(
    ("labels", "title", "colors"),
    [
        ([1, 0], "dog", [(GRAY, SKY, GRAY), (SKY, GRAY, ORANGE)]),
        ([[1, 2], [0, 1]], "dog + owl", [(GRAY, SKY, SKY), (SKY, SKY, ORANGE)]),
    ],
)
def test_all_of_a_few_classes_have_a_bar_in_their_order(labels, title, colors):
    image, first, _, second = activation_bars(PICTURES, LENGTHS, labels, classes=CLASSES).axes
    assert image.get_title() == title
    for axes, lengths, expected in zip((first, second), LENGTHS, colors, strict=True):
        assert bars(axes) == list(zip(lengths, expected, strict=True))
    assert words(first.texts) == ["cat", "0.10", "dog", "0.90", "owl", "0.20"]
    assert first.get_xlim() == (0, 1)


def test_of_many_classes_the_longest_and_the_true_one_have_a_bar():
    lengths = np.tile(np.linspace(0.0, 0.86, 43), (2, 1))
    figure = activation_bars(
        PICTURES,
        lengths,
        [42, 0],
        classes=numbered(43),
    )
    _, first, _, second = figure.axes
    assert words(first.texts[::2]) == ["c42", "c41", "c40", "c39", "c38"]
    assert words(second.texts[::2]) == ["c42", "c41", "c40", "c39", "c0"]
    assert bars(second)[0] == (pytest.approx(0.86), ORANGE)
    assert bars(second)[4] == (0.0, SKY)


@pytest.mark.parametrize(
    ("count", "num_classes", "shape"), [(1, 3, (1, 40, 28)), (6, 43, (3, 20, 60))]
)
def test_nothing_is_cut(count, num_classes, shape):
    rng = np.random.default_rng(0)
    images = rng.random((count, *shape))
    lengths = rng.random((count, num_classes))
    labels = np.arange(count) % num_classes
    figure = activation_bars(
        images,
        lengths,
        labels,
        classes=long_names(num_classes),
    )
    assert len(figure.axes) == 2 * count
    assert_nothing_cut(figure)
