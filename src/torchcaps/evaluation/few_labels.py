"""How little is enough? Subsets with few labels for each class, and what the curve over their sizes says.

Train each model with the same number of UPDATES on every subset, not of epochs, and on five seeds or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.errors import check_range
from torchcaps.evaluation.examples import example_indices


def few_label_indices(labels: Int64[Tensor, " n"], per_class: int, seed: int = 0) -> Int64[Tensor, " subset"]:
    """Exactly `per_class` random samples of each class, ascending; of one seed, small subsets lie in larger ones.

    Args:
        labels: `[n]` class indices.
        per_class: at least 1.
        seed: of a generator of its own.

    Returns:
        `[classes * per_class]` int64 indices on the CPU.

    Raises:
        ValueError: if a class has fewer samples.
    """
    found = example_indices(labels, per_class, seed)
    classes, counts = labels.cpu().unique(return_counts=True)
    if len(found) and int(counts.min()) < per_class:
        poorest = int(classes[counts.argmin()])
        raise ValueError(
            f"per_class: expected at most {int(counts.min())}, the samples of class {poorest}, got {per_class}"
        )
    return torch.sort(found).values


def log_area(counts: Sequence[int], accuracy: Sequence[float]) -> float:
    """Area under accuracy against log(count), divided by its width: a mean that weights every doubling alike.

    Args:
        counts: samples of each class, at least 1, strictly ascending, two or more.
        accuracy: in [0, 1], for each count.

    Raises:
        ValueError: for lists that do not fit.
    """
    _check_curve(counts, accuracy)
    x = [math.log(count) for count in counts]
    area = sum((accuracy[k] + accuracy[k + 1]) / 2 * (x[k + 1] - x[k]) for k in range(len(x) - 1))
    return area / (x[-1] - x[0])


def labels_needed(counts: Sequence[int], accuracy: Sequence[float], target: float) -> float | None:
    """Samples of each class at which accuracy first reaches `target`, on straight lines over log(count); None if never.

    The ratio of two models' figures says how many times more labels one needs.

    Raises:
        ValueError: for lists that do not fit; see `log_area`.
    """
    _check_curve(counts, accuracy)
    if accuracy[0] >= target:
        return float(counts[0])
    for k in range(1, len(counts)):
        if accuracy[k] >= target:
            part = (target - accuracy[k - 1]) / (accuracy[k] - accuracy[k - 1])
            return float(counts[k - 1] * (counts[k] / counts[k - 1]) ** part)
    return None


def _check_curve(counts: Sequence[int], accuracy: Sequence[float]) -> None:
    check_range("number of counts", len(counts), low=2)
    check_range("counts", counts[0], low=1)
    if any(after <= before for before, after in pairwise(counts)):
        raise ValueError(f"counts: expected ascending numbers, got {list(counts)}")
    if len(accuracy) != len(counts):
        raise ValueError(f"accuracy: expected {len(counts)} values, one for each count, got {len(accuracy)}")
