"""Calibration: does a model that is 80 % sure of its answers give 80 % right ones?

Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Q. Weinberger, "On Calibration of Modern Neural Networks", ICML 2017,
arXiv 1706.04599.

A capsule network has no one confidence: the lengths of its class capsules do not sum to one. Both readings in use are
measured, and the names say which is which:

- normalized: the activations divided by their sum over classes, of which the largest is the confidence;
- length: the largest activation as it is.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import Labels

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """A reliability table over equal-width bins of confidence, and the error that sums it up."""

    error: float  # expected calibration error, in [0, 1]
    edges: list[
        float
    ]  # `bins + 1` limits from 0 to 1; bin i is above edges[i], up to edges[i + 1]; the first holds 0
    count: list[int]  # samples in each bin
    confidence: list[float | None]  # mean confidence in each bin; None in an empty one
    accuracy: list[float | None]  # share of right answers in each bin; None in an empty one


@dataclass(frozen=True)
class Calibration:
    """The two reliability tables of a capsule classifier."""

    normalized: Reliability  # confidence = the largest activation divided by the sum of activations over classes
    length: Reliability  # confidence = the largest activation itself


def reliability(
    confidence: Float[Tensor, " n"], correct: Bool[Tensor, " n"], bins: int = BINS
) -> Reliability:
    """The reliability table and expected calibration error, `ECE = sum_m |B_m| / n |acc(B_m) - conf(B_m)|`.

    Of confidences `[n]` in [0, 1] and whether the answers were right, in `bins` bins of equal width; the paper uses 15.
    Source: arXiv 1706.04599, equation 3. Raises ValueError if the two do not have the same length, or for no samples or
    no bins."""
    check_shape("confidence", confidence, ("n",))
    check_shape("correct", correct, ("n",), n=len(confidence))
    check_range("number of samples", len(confidence), low=1)
    check_range("bins", bins, low=1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    index = torch.bucketize(confidence.double(), edges[1:-1])
    count = torch.bincount(index, minlength=bins)
    sure = torch.bincount(index, confidence.double(), bins)
    right = torch.bincount(index, correct.double(), bins)
    return Reliability(
        error=float((right - sure).abs().sum() / len(confidence)),
        edges=edges.tolist(),
        count=count.tolist(),
        confidence=_means(sure, count),
        accuracy=_means(right, count),
    )


def calibration(
    activations: Float[Tensor, "n classes"], labels: Labels, bins: int = BINS
) -> Calibration:
    """Both reliability tables of class activations `[n, classes]` in [0, 1]; the answer is the class with the largest
    one. A row of zeros counts as 1 / classes for each class in the normalized reading. Raises ValueError for shapes
    that do not fit, or fewer than one sample or bin."""
    check_shape("activations", activations, ("n", "classes"))
    predicted = activations.argmax(dim=1)
    length = activations.double().amax(dim=1)
    total = activations.double().sum(dim=1)
    share = torch.where(total > 0, length / total, 1 / activations.shape[1])
    correct = predicted == labels
    return Calibration(
        normalized=reliability(share, correct, bins), length=reliability(length, correct, bins)
    )


def _means(sums: Tensor, count: Tensor) -> list[float | None]:
    return [s / n if n else None for s, n in zip(sums.tolist(), count.tolist(), strict=True)]
