"""Several digits in one image: the k largest activations against the k labels.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017,
arXiv 1710.09829, section 6. Three figures are in use and are often mixed up, so all three are
always given.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.evaluation.base import (
    Activations,
    EvaluationResult,
    Labels,
    TextTable,
    check_indices,
    check_lengths,
)
from torchcaps.evaluation.forward import proportion
from torchcaps.transfer import widen
from torchcaps.words import percent


@dataclass(frozen=True)
class MultiLabel(EvaluationResult):
    """How many of an image's labels are among its k largest activations; shares are in [0, 1].

    Attributes:
        exact: share of images with all labels found; the paper's accuracy.
        error: 1 - exact; the paper's error.
        almost: share of images with at least one label found.
        per_digit: share of labels that were found. With independent errors of 5 % here, `exact` is
            about 90 %.
        standard_error: standard error of `exact`. Images of one group count as one draw, because
            composites of one digit err together.
        num_samples: n, number of images.
        num_labels: k, number of labels of one image.
    """

    exact: float
    error: float
    almost: float
    per_digit: float
    standard_error: float
    num_samples: int
    num_labels: int

    @property
    def summary(self) -> str:
        """One line."""
        error = f"error {self.error:.2%} ± {self.standard_error:.2%}"
        return f"{error} of {self.num_samples} images{self.extra_words}"

    def table(self) -> TextTable:
        """A row for each share."""
        rows = [
            ("all labels found", percent(self.exact)),
            ("at least one", percent(self.almost)),
            ("of single labels", percent(self.per_digit)),
        ]
        return TextTable(("found", "share"), rows)


def top_labels(activations: Activations, count: int = 2) -> Int64[Tensor, "n count"]:
    """Return the most active classes of each image, the most active first.

    Args:
        activations: `[n, classes]`.
        count: number of classes of an image, from 1 to all.

    Returns:
        `[n, count]` class indices.

    Raises:
        ArgumentError: for activations of another shape, or a count out of range.
    """
    check_shape("activations", activations, ("n", "classes"))
    check_range("count", count, low=1, high=activations.shape[1])
    return activations.topk(count, dim=1).indices


def score_multilabel(
    activations: Activations,
    labels: Int64[Tensor, "n k"],
    *,
    groups: Labels | None = None,
) -> MultiLabel:
    """Return exact match, at least one right, and accuracy by digit of the k largest activations.

    Args:
        activations: `[n, classes]` lengths in [0, 1], n at least 1, of any model.
        labels: `[n, k]` class indices, k = 2 for pairs of digits; those of one image differ, in
            any order.
        groups: `[n]` integers; images that share a digit have the same one. By default every image
            is its own group.

    Returns:
        All three figures, with the standard error of the first.

    Raises:
        ArgumentError: for shapes that do not fit, labels that are no class or occur twice in an
            image, or activations that are not lengths.
    """
    check_shape("activations", activations, ("n", "classes"))
    check_shape("labels", labels, ("n", "k"), n=len(activations))
    check_indices(labels, activations.shape[1])
    is_twice = (labels.sort(dim=1).values.diff(dim=1) == 0).any(dim=1)
    if is_twice.any():
        row = int(is_twice.nonzero()[0])
        raise ArgumentError(
            "labels",
            f"expected different classes in one image, got {labels[row].tolist()} in image {row}",
        )
    check_lengths(activations)
    num_labels = labels.shape[1]
    predicted = top_labels(activations, num_labels)
    hits = (labels.to(predicted.device).unsqueeze(2) == predicted.unsqueeze(1)).any(dim=2)  # [n, k]
    exact = widen(hits.all(dim=1))
    return MultiLabel(
        exact=float(exact.mean()),
        error=float(1 - exact.mean()),
        almost=proportion(hits.any(dim=1)),
        per_digit=proportion(hits),
        standard_error=_standard_error(exact.cpu(), groups),
        num_samples=len(labels),
        num_labels=num_labels,
    )


def _standard_error(samples: Tensor, groups: Tensor | None) -> float:
    """Return that of the mean, `sqrt(sum over groups of (sum of deviations)^2) / n`."""
    deviations = samples - samples.mean()
    if groups is not None:
        check_shape("groups", groups, ("n",), n=len(samples))
        _, group_of = groups.cpu().unique(return_inverse=True)
        deviations = torch.bincount(group_of, deviations)
    return math.sqrt(float(deviations.square().sum())) / len(samples)
