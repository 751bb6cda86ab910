from __future__ import annotations

import numpy as np
import pytest

from torchcaps.viz import generation_weights, predicted_transformations, transformed

from .drawing import assert_nothing_cut, long_names, texts

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 28, 28)), (12, (1, 28, 28)), (20, (3, 20, 40)), (2, (1, 40, 9))]
)
def test_a_column_an_image_and_a_row_a_kind(count, shape) -> None:
    source, drawn, target = RANDOM.random((3, count, *shape))
    figure = transformed(source, 3 * drawn - 1, target)
    assert (figure.axes[0].get_xlim()[1], figure.axes[0].get_ylim()[0]) == (count, 3)
    assert {"input", "output", "target"} <= {text.get_text() for text in texts(figure)}
    assert_nothing_cut(figure)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_panel_a_number(count) -> None:
    true = RANDOM.normal(size=(50, count))
    names = long_names(count) if count == 6 else ["dx", "dy"][:count]
    figure = predicted_transformations(true, 2 * true, names=names, unit="pixels")
    panels = [axes for axes in figure.axes if axes.axison]
    assert len(panels) == count
    assert all("correlation 1.000" in axes.get_title(loc="left") for axes in panels)
    assert np.array_equal(panels[0].lines[1].get_ydata(), 2 * true[:, 0])
    assert_nothing_cut(figure)


def test_a_number_that_never_changes_has_no_correlation() -> None:
    figure = predicted_transformations(np.ones((3, 1)), np.zeros((3, 1)), names=["dx"])
    assert figure.axes[0].get_title(loc="left") == "dx"


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (6, 20, 28, 28), (30, 10, 9, 14)])
def test_weights_in_gray_around_zero(shape) -> None:
    weights = RANDOM.normal(size=shape)
    weights[0, 0] = 0
    figure = generation_weights(weights, title="what the units draw")
    whole = np.asarray(figure.axes[0].images[0].get_array())
    cell = whole[: whole.shape[0] // shape[0], : whole.shape[1] // shape[1]]
    assert np.unique(cell).tolist() == [128, 255]  # and white around it
    assert_nothing_cut(figure)


def test_arguments_that_do_not_fit() -> None:
    images = np.zeros((2, 1, 4, 4))
    with pytest.raises(
        ValueError, match=r"target: expected the shape of source, \[n=2, .*\], got \[n=1"
    ):
        transformed(images, images, images[:1])
    with pytest.raises(ValueError, match="number of images: expected at most 20, got 21"):
        transformed(*np.zeros((3, 21, 1, 4, 4)))
    with pytest.raises(ValueError, match=r"predicted: expected \[n=2, m=2\], got \[n=2, m=3\]"):
        predicted_transformations(np.zeros((2, 2)), np.zeros((2, 3)), names=["dx", "dy"])
    with pytest.raises(
        ValueError, match=r"true: expected \[n, m\] with at least one row, got \[n=0, m=2\]"
    ):
        predicted_transformations(np.zeros((0, 2)), np.zeros((0, 2)), names=["dx", "dy"])
    with pytest.raises(ValueError, match="names: expected 2 entries, got 1"):
        predicted_transformations(np.zeros((2, 2)), np.zeros((2, 2)), names=["dx"])
    with pytest.raises(
        ValueError, match=r"weights: expected \[capsules, units, height, width\], got \[2, 3, 4\]"
    ):
        generation_weights(np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match="number of units: expected at most 400, got 420"):
        generation_weights(np.zeros((21, 20, 2, 2)))
