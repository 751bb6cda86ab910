"""Calibration: does a model that is 80 % sure of its answers give 80 % right ones?

Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Q. Weinberger, "On Calibration of Modern Neural Networks",
ICML 2017, arXiv 1706.04599.

A capsule network has no one confidence: the lengths of its class capsules do not sum to one. Both
readings in use are measured, and the names say which is which:

- normalized: the activations divided by their sum over classes, of which the largest is the
  confidence;
- length: the largest activation as it is.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import Activations, Labels
from torchcaps.transfer import widen

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """A reliability table over equal-width bins of confidence, and the error that sums it up.

    Attributes:
        error: expected calibration error, in [0, 1].
        edges: `bins + 1` limits from 0 to 1. Bin i is above edges[i], up to edges[i + 1]; the first
            holds 0.
        count: samples in each bin.
        confidence: mean confidence in each bin; None in an empty one.
        accuracy: share of right answers in each bin; None in an empty one.
    """

    error: float
    edges: list[float]
    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


@dataclass(frozen=True)
class Calibration:
    """The two reliability tables of a capsule classifier.

    Attributes:
        normalized: confidence = the largest activation divided by the sum over classes.
        length: confidence = the largest activation itself.
    """

    normalized: Reliability
    length: Reliability


def reliability(
    confidence: Float[Tensor, " n"],
    correct: Bool[Tensor, " n"],
    bins: int = BINS,
) -> Reliability:
    """Return the reliability table and the expected calibration error.

    `ECE = sum_m |B_m| / n |acc(B_m) - conf(B_m)|`, equation 3 of arXiv 1706.04599.

    Args:
        confidence: `[n]` in [0, 1], n at least 1.
        correct: `[n]` whether the answers were right.
        bins: number of bins of equal width, at least 1; the paper uses 15.

    Returns:
        The table, with the expected calibration error in [0, 1].

    Raises:
        ArgumentError: for shapes that do not fit, no samples or no bins.
    """
    check_shape("confidence", confidence, ("n",))
    check_shape("correct", correct, ("n",), n=len(confidence))
    check_range("number of samples", len(confidence), low=1)
    check_range("bins", bins, low=1)
    wide = widen(confidence)
    edges = torch.linspace(0, 1, bins + 1, dtype=wide.dtype, device=wide.device)
    bin_of = torch.bucketize(wide, edges[1:-1])
    count = torch.bincount(bin_of, minlength=bins)
    confidence_sums = torch.bincount(bin_of, wide, bins)
    correct_sums = torch.bincount(bin_of, widen(correct), bins)
    return Reliability(
        error=float((correct_sums - confidence_sums).abs().sum() / len(confidence)),
        edges=edges.tolist(),
        count=count.tolist(),
        confidence=_means(confidence_sums, count),
        accuracy=_means(correct_sums, count),
    )


def calibration(activations: Activations, labels: Labels) -> Calibration:
    """Return both reliability tables of class activations.

    The answer is the class with the largest activation. In the normalized reading a row of zeros
    counts as 1 / classes for each class.

    Args:
        activations: `[n, classes]` in [0, 1], n at least 1.
        labels: `[n]` true classes.

    Returns:
        The tables of both readings, normalized and length.

    Raises:
        ArgumentError: for shapes that do not fit, or no samples.
    """
    check_shape("activations", activations, ("n", "classes"))
    wide = widen(activations)
    length = wide.amax(dim=1)
    total = wide.sum(dim=1)
    share = torch.where(total > 0, length / total, 1 / activations.shape[1])
    correct = activations.argmax(dim=1) == labels
    return Calibration(reliability(share, correct), reliability(length, correct))


def _means(sums: Tensor, count: Tensor) -> list[float | None]:
    return [
        total / number if number else None
        for total, number in zip(sums.tolist(), count.tolist(), strict=True)
    ]
