import numpy as np
import pytest

from torchcaps.errors import ArgumentError
from torchcaps.viz import confusion_matrix, per_class_bars

from .drawing import assert_nothing_cut, long_names, numbered, widths, words


def test_the_matrix_is_colored_by_row_and_written_in_counts():
    axes = confusion_matrix([[8, 2], [0, 5]], ["cat", "dog"]).axes[0]
    assert axes.images[0].get_array().tolist() == [[80, 20], [0, 100]]
    assert sorted(words(axes.texts)) == ["2", "5", "8"]
    assert axes.texts[1].get_text() == "2"
    assert axes.texts[1].get_position() == (1, 0)
    assert words(axes.get_yticklabels()) == ["cat", "dog"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert axes.get_title(loc="left") == "13 of 15 right (86.67 %)"


@pytest.mark.parametrize("count", [1, 10, 100])
def test_matrices_of_any_size_are_bounded_and_not_cut(count):
    figure = confusion_matrix(np.eye(count, dtype=int) * 300 + 1, long_names(count))
    assert_nothing_cut(figure)
    if count == 10:
        width, height = figure.axes[0].get_position().size * figure.get_size_inches()
        assert width / height == pytest.approx(1, abs=0.2)


def test_names_and_counts_thin_out_where_they_cannot_be_read():
    large = confusion_matrix(np.full((100, 100), 1234), numbered(100)).axes[0]
    assert words(large.get_xticklabels())[:3] == ["c0", "c2", "c4"]
    assert not large.texts
    middle = confusion_matrix(np.eye(43, dtype=int) * 300, numbered(43)).axes[0]
    assert len(middle.texts) == 43


def test_matrices_that_do_not_fit():
    with pytest.raises(
        ArgumentError,
        match=r"matrix: expected \[true=2, predicted=2\], got \[true=1, predicted=3\]",
    ):
        confusion_matrix([[1, 2, 3]], ["a", "b"])


def test_bars_hold_accuracy_and_counts():
    axes = per_class_bars([1.0, 0.5, None], ["cat", "dog", "yak"], [30, 10, 0]).axes[0]
    assert widths(axes) == [100, 50, 0]
    assert words(axes.get_yticklabels()) == ["cat", "dog", "yak"]
    assert words(axes.texts) == ["100.0 % of 30", "50.0 % of 10", "no samples"]
    assert axes.lines[0].get_xdata() == [87.5, 87.5]
    assert "over all samples 87.50 %" in axes.get_title(loc="left")


@pytest.mark.parametrize("count", [2, 43])
def test_bars_of_any_number_are_not_cut(count):
    figure = per_class_bars([0.9] * count, long_names(count), [100_000] * count)
    assert len(set(words(figure.axes[0].get_yticklabels()))) == count
    assert_nothing_cut(figure)


def test_of_many_classes_the_lowest_have_bars():
    accuracies = np.linspace(0, 1, 200).tolist()
    axes = per_class_bars(accuracies, numbered(200), [10] * 200).axes[0]
    assert words(axes.get_yticklabels()) == numbered(60)
    assert "the 60 lowest of 200 classes" in axes.get_title(loc="left")
