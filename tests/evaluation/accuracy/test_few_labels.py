import pytest

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import labels_needed, log_area


def test_every_doubling_weighs_alike():
    assert log_area([1, 2, 5, 1000], [0.7] * 4) == pytest.approx(0.7)
    assert log_area([1, 2, 4], [0.2, 0.6, 1.0]) == pytest.approx(0.6)
    assert log_area([1, 10, 1000], [0.0, 1.0, 1.0]) == pytest.approx((0.5 + 2) / 3)


def test_labels_needed_lie_on_the_line_between():
    counts = [1, 10, 100]
    accuracy = [0.5, 0.7, 0.9]
    assert labels_needed(counts, accuracy, 0.5) == 1
    assert labels_needed(counts, accuracy, 0.8) == pytest.approx(10 * 10**0.5)
    assert labels_needed(counts, accuracy, 0.9) == pytest.approx(100)
    assert labels_needed(counts, accuracy, 0.95) is None


@pytest.mark.parametrize(
    ("counts", "accuracy", "message"),
    [
        ([1], [0.5], "number of counts: expected at least 2"),
        ([0, 1], [0.5, 0.5], "counts: expected at least 1"),
        ([2, 2], [0.5, 0.5], "counts: expected ascending numbers"),
        ([1, 2], [0.5], "accuracy: expected 2 values"),
    ],
)
def test_curves_that_do_not_fit(counts, accuracy, message):
    with pytest.raises(ArgumentError, match=message):
        log_area(counts, accuracy)
