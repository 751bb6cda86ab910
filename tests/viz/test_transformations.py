import numpy as np
import pytest

from torchcaps.errors import ArgumentError
from torchcaps.viz import generation_weights, image_rows, predicted_transformations

from .drawing import assert_nothing_cut, long_names, panels, titles, words

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("count", "shape"), [(20, (3, 20, 40)), (2, (1, 40, 9))])
def test_a_column_is_an_image_and_a_row_a_kind(count, shape):
    source, output, target = RANDOM.random((3, count, *shape))
    figure = image_rows({"input": source, "output": 3 * output - 1, "target": target})
    [axes] = figure.axes
    assert axes.get_xlim() == (0, count)
    assert words(axes.get_yticklabels()) == ["input", "output", "target"]
    assert_nothing_cut(figure)


@pytest.mark.parametrize("names", [["dx"], ["dx", "dy"], long_names(6)])
def test_a_panel_is_a_number(names):
    true = RANDOM.normal(size=(50, len(names)))
    figure = predicted_transformations(
        true,
        2 * true,
        names=names,
        unit="pixels",
    )
    assert len(panels(figure)) == len(names)
    for title in titles(figure):
        assert "correlation 1.000" in title
    _, points = figure.axes[0].lines
    assert np.array_equal(points.get_ydata(), 2 * true[:, 0])
    assert_nothing_cut(figure)


def test_a_number_that_never_changes_has_no_correlation():
    figure = predicted_transformations(
        np.ones((3, 1)),
        np.zeros((3, 1)),
        names=["dx"],
    )
    assert titles(figure) == ["dx"]


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (6, 20, 28, 28)])
def test_weights_in_gray_around_zero(shape):
    weights = RANDOM.normal(size=shape)
    weights[0, 0] = 0
    figure = generation_weights(weights, title="strokes of the units")
    grid = np.asarray(figure.axes[0].images[0].get_array())
    cell = grid[: grid.shape[0] // shape[0], : grid.shape[1] // shape[1]]
    assert np.unique(cell).tolist() == [128, 255]  # and white around it
    assert_nothing_cut(figure)


def test_arguments_that_do_not_fit():
    numbers = np.zeros((2, 2))
    with pytest.raises(ArgumentError, match=r"predicted: expected \[n=2, m=2\], got \[n=2, m=3\]"):
        predicted_transformations(numbers, np.zeros((2, 3)), names=["dx", "dy"])
