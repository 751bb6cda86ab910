"""Several digits in one image: the k largest activations against the k labels.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv 1710.09829, section
6. Three figures are in use and are often mixed up, so all three are always given.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.evaluation.base import (
    EvaluationResult,
    Labels,
    TextTable,
    check_indices,
    check_lengths,
)
from torchcaps.words import percent


@dataclass(frozen=True)
class MultiLabel(EvaluationResult):
    """How many of an image's labels are among its k largest activations; shares are in [0, 1]."""

    exact: float  # share of images with all labels found; the paper's accuracy
    error: float  # 1 - exact; the paper's error
    almost: float  # share of images with at least one label found
    per_digit: (
        float  # share of labels found. With independent errors of 5 % here, `exact` is about 90 %
    )
    standard_error: float  # of `exact`. Images of one group count as one draw, for composites of one digit err together
    num_samples: int  # n
    num_labels: int  # k, labels of one image

    @property
    def summary(self) -> str:
        """One line."""
        return f"error {self.error:.2%} ± {self.standard_error:.2%} of {self.num_samples} images{self.extra_words}"

    def table(self) -> TextTable:
        """A row for each share."""
        rows = (
            ("all labels found", self.exact),
            ("at least one", self.almost),
            ("of single labels", self.per_digit),
        )
        return TextTable(("found", "share"), [(name, percent(value)) for name, value in rows])


def top_labels(activations: Float[Tensor, "n classes"], count: int = 2) -> Int64[Tensor, "n count"]:
    """The `count` most active classes of each image, the most active first, `[n, count]`. Raises ValueError for
    activations of another shape, or a count below 1 or above the number of classes."""
    check_shape("activations", activations, ("n", "classes"))
    check_range("count", count, low=1, high=activations.shape[1])
    return activations.topk(count, dim=1).indices


def score_multilabel(
    activations: Float[Tensor, "n classes"],
    labels: Int64[Tensor, "n k"],
    *,
    groups: Labels | None = None,
) -> MultiLabel:
    """Exact match, at least one right, and per-digit accuracy of the k largest activations. Raises ValueError for
    shapes that do not fit, labels that are no class or occur twice in an image, or activations that are not lengths.

    Args:
        activations: `[n, classes]` lengths in [0, 1], n at least 1, of any model.
        labels: `[n, k]` class indices, k = 2 for pairs of digits; those of one image differ, in any order.
        groups: `[n]` integers; images that share a digit have the same one. By default every image is its own group.
    """
    check_shape("activations", activations, ("n", "classes"))
    check_shape("labels", labels, ("n", "k"), n=len(activations))
    check_range("number of samples", len(labels), low=1)
    check_indices(labels, activations.shape[1])
    twice = (labels.sort(dim=1).values.diff(dim=1) == 0).any(dim=1)
    if twice.any():
        row = int(twice.nonzero()[0])
        raise ArgumentError(
            "labels",
            f"expected different classes in one image, got {labels[row].tolist()} in image {row}",
        )
    check_lengths(activations)
    predicted = top_labels(activations, labels.shape[1])
    hits = (labels.to(predicted.device).unsqueeze(2) == predicted.unsqueeze(1)).any(dim=2)  # [n, k]
    exact = hits.all(dim=1).double()
    return MultiLabel(
        exact=float(exact.mean()),
        error=float(1 - exact.mean()),
        almost=float(hits.any(dim=1).double().mean()),
        per_digit=float(hits.double().mean()),
        standard_error=_standard_error(exact.cpu(), groups),
        num_samples=len(labels),
        num_labels=labels.shape[1],
    )


def _standard_error(values: Tensor, groups: Tensor | None) -> float:
    """Of the mean of `values`, `sqrt(sum over groups of (sum of deviations)^2) / n`."""
    deviation = values - values.mean()
    if groups is not None:
        check_shape("groups", groups, ("n",), n=len(values))
        _, member = groups.cpu().unique(return_inverse=True)
        deviation = torch.bincount(member, deviation)
    return math.sqrt(float(deviation.square().sum())) / len(values)
