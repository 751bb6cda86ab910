"""How few labels are enough? Two figures of the curve of accuracy over the number of labels.

The curve is two lists: numbers of labeled samples of each class, and the accuracy of a model that
was trained with so many. `log_area` is a mean accuracy over the curve, `labels_needed` the number
at which it reaches a target.

`data.few_labels` draws the subsets. Train each model with the same number of UPDATES on every
subset, not of epochs, and on five seeds or more.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch

from torchcaps.errors import ArgumentError, check_range


def log_area(counts: Sequence[int], accuracy: Sequence[float]) -> float:
    """Return the area under accuracy against log(count), divided by its width.

    It is a mean accuracy that weights every doubling of the labels alike.

    Args:
        counts: samples of each class, strictly ascending from 1, two or more.
        accuracy: accuracy at each count.

    Returns:
        The mean accuracy.

    Raises:
        ArgumentError: for lists that do not fit.
    """
    _check_curve(counts, accuracy)
    x = torch.tensor(counts, dtype=torch.float64).log()
    y = torch.tensor(accuracy, dtype=torch.float64)
    return float(torch.trapezoid(y, x) / (x[-1] - x[0]))


def labels_needed(counts: Sequence[int], accuracy: Sequence[float], target: float) -> float | None:
    """Return the samples of each class at which accuracy first reaches a target.

    Between two counts the curve is straight over log(count). The ratio of two models' figures says
    how many times more labels one needs.

    Args:
        counts: samples of each class, strictly ascending from 1, two or more.
        accuracy: accuracy at each count.
        target: an accuracy.

    Returns:
        The number; None if accuracy never reaches the target.

    Raises:
        ArgumentError: for lists that do not fit.
    """
    _check_curve(counts, accuracy)
    if accuracy[0] >= target:
        return float(counts[0])
    for (count, low), (next_count, high) in pairwise(zip(counts, accuracy, strict=True)):
        if high >= target:
            position = (target - low) / (high - low)  # on the segment, from 0 to 1
            return float(count * (next_count / count) ** position)
    return None


def _check_curve(counts: Sequence[int], accuracy: Sequence[float]) -> None:
    """Raise ArgumentError for lists that are no curve."""
    check_range("number of counts", len(counts), low=2)
    check_range("counts", counts[0], low=1)
    if list(counts) != sorted(set(counts)):
        raise ArgumentError("counts", f"expected ascending numbers, got {list(counts)}")
    if len(accuracy) != len(counts):
        raise ArgumentError(
            "accuracy", f"expected {len(counts)} values, one for each count, got {len(accuracy)}"
        )
