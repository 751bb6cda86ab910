from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from torchcaps.viz import confusion_matrix, per_class_bars

from .drawing import assert_nothing_cut, long_names, texts


def test_the_matrix_is_colored_by_row_and_written_in_counts() -> None:
    figure = confusion_matrix([[8, 2], [0, 5]], ["cat", "dog"])
    axes = figure.axes[0]
    assert axes.images[0].get_array().tolist() == [[80, 20], [0, 100]]
    assert sorted(text.get_text() for text in axes.texts) == ["2", "5", "8"]
    assert {text.get_text(): text.get_position() for text in axes.texts}["2"] == (1, 0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert axes.get_title(loc="left") == "13 of 15 right (86.67 %)"


def test_a_class_without_samples_is_an_empty_row() -> None:
    figure = confusion_matrix([[3, 0], [0, 0]], ["cat", "dog"])
    assert figure.axes[0].images[0].get_array().tolist() == [[100, 0], [0, 0]]
    assert_nothing_cut(figure)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 43, 100])
def test_matrices_of_any_size_are_bounded_and_whole(count: int) -> None:
    figure = confusion_matrix(np.eye(count, dtype=int) * 300 + 1, long_names(count))
    assert (figure.get_size_inches() <= [16, 20]).all()
    assert_nothing_cut(figure)


def test_cells_are_about_square() -> None:
    figure = confusion_matrix(np.eye(10, dtype=int), long_names(10))
    assert_nothing_cut(figure)
    width, height = figure.axes[0].get_position().size * figure.get_size_inches()
    assert width / height == pytest.approx(1, abs=0.2)


def test_names_and_counts_thin_out_where_they_cannot_be_read() -> None:
    figure = confusion_matrix(np.full((100, 100), 1234), [str(i) for i in range(100)])
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()][:3] == ["0", "2", "4"]
    assert not figure.axes[0].texts
    many = confusion_matrix(np.eye(43, dtype=int) * 300, long_names(43))
    assert len(many.axes[0].texts) == 43


@pytest.mark.parametrize(
    ("matrix", "classes", "message"),
    [
        (
            [[1, 2, 3], [4, 5, 6]],
            ["a", "b"],
            r"matrix: expected \[classes, classes\], got \[2, 3\]",
        ),
        ([[0.5, 0.5], [0.0, 1.0]], ["a", "b"], "matrix: expected integer counts, got float64"),
        ([[1]], ["a", "b"], "classes: expected 1 entries, got 2"),
    ],
)
def test_matrices_that_do_not_fit(
    matrix: list[list[float]], classes: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        confusion_matrix(matrix, classes)


def test_bars_hold_accuracy_and_counts() -> None:
    figure = per_class_bars([1.0, 0.5, None], ["cat", "dog", "yak"], [30, 10, 0])
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] == [100, 50, 0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "yak"]
    assert [text.get_text() for text in axes.texts] == [
        "100.0 % of 30",
        "50.0 % of 10",
        "no samples",
    ]
    assert axes.lines[0].get_xdata() == [87.5, 87.5]
    assert "over all samples 87.50 %" in axes.get_title(loc="left")
    assert_nothing_cut(figure)


def test_no_samples_at_all() -> None:
    figure = per_class_bars([None], ["cat"], [0])
    assert figure.axes[0].get_title(loc="left") == "accuracy by class"
    assert not figure.axes[0].lines


@pytest.mark.parametrize("count", [2, 3, 10, 43])
def test_bars_of_any_number_are_whole(count: int) -> None:
    figure = per_class_bars([0.9] * count, long_names(count), [100_000] * count)
    assert (figure.get_size_inches() <= [16, 20]).all()
    assert len({text.get_text() for text in figure.axes[0].get_yticklabels()}) == count
    assert_nothing_cut(figure)


def test_of_many_classes_the_lowest_are_shown() -> None:
    figure = per_class_bars(
        [i / 200 for i in range(200)], [f"c{i}" for i in range(200)], [10] * 200
    )
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == [f"c{i}" for i in range(60)]
    assert any("the 60 lowest of 200 classes" in text.get_text() for text in texts(figure))


def test_bars_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="accuracies: expected at least one class, got none"):
        per_class_bars([], [], [])
    with pytest.raises(ValueError, match="counts: expected 1 entries, got 2"):
        per_class_bars([0.5], ["cat"], [1, 2])
