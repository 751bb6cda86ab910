from __future__ import annotations

import numpy as np
import pytest

from torchcaps.viz import perturbations

from .drawing import assert_nothing_cut


def test_a_row_a_dimension_and_a_column_a_step() -> None:
    values = np.zeros((16, 11, 1, 28, 28))
    values[2, 7] = 1.0
    figure = perturbations(values, np.linspace(-0.25, 0.25, 11), title="digit 5")
    axes = figure.axes[0]
    assert len(axes.images) == 176
    lit = [i for i, image in enumerate(axes.images) if image.get_array().any()]
    assert lit == [2 * 11 + 7]
    left, right, bottom, top = axes.images[lit[0]].get_extent()
    assert (left + right) / 2 == pytest.approx(axes.get_xticks()[7])
    assert (bottom + top) / 2 == pytest.approx(axes.get_yticks()[2])
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(i) for i in range(1, 17)]
    offsets = [label.get_text() for label in axes.get_xticklabels()]
    assert offsets == ["−0.25", "−0.2", "−0.15", "−0.1", "−0.05", "0", "+0.05", "+0.1", "+0.15", "+0.2", "+0.25"]
    assert axes.get_title() == "digit 5"
    assert_nothing_cut(figure)


def test_the_column_of_the_capsule_as_it_is_is_framed() -> None:
    figure = perturbations(np.zeros((2, 3, 1, 4, 4)), [-0.1, 0.0, 0.1])
    (frame,) = figure.axes[0].patches
    assert frame.get_x() < figure.axes[0].get_xticks()[1] < frame.get_x() + frame.get_width()
    assert not perturbations(np.zeros((2, 2, 1, 4, 4)), [-0.1, 0.1]).axes[0].patches


@pytest.mark.parametrize("shape", [(1, 2, 1, 28, 28), (8, 5, 3, 40, 28), (4, 40, 1, 10, 30), (64, 11, 1, 8, 8)])
def test_grids_of_any_shape_are_bounded_and_whole(shape: tuple[int, ...]) -> None:
    figure = perturbations(np.zeros(shape), np.linspace(-0.25, 0.25, shape[1]))
    assert (figure.get_size_inches() <= [16, 20]).all()
    assert_nothing_cut(figure)


def test_grids_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"reconstructions: expected \[dims, steps, channels, height, width\]"):
        perturbations(np.zeros((2, 3, 4, 4)), [0.0, 0.1, 0.2])
    with pytest.raises(ValueError, match="offsets: expected 3 entries, got 1"):
        perturbations(np.zeros((2, 3, 1, 4, 4)), [0.0])
    with pytest.raises(ValueError, match="number of reconstructions: expected at most 1024"):
        perturbations(np.zeros((1025, 1, 1, 2, 2)), [0.0])
