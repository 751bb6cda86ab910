"""Several digits in one image: the k largest activations against the k labels.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017,
arXiv 1710.09829, section 6. Three figures are in use and are often mixed up, so all three are
always given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from torchcaps.data import multi_hot
from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.evaluation.base import (
    ROUNDING,
    Activations,
    EvaluationResult,
    Labels,
    TextTable,
    check_like,
    check_shares,
    proportion,
    widen,
)
from torchcaps.words import percent, rounded

ClassFlags = Bool[Tensor, "n classes"]


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
        auroc: mean over classes of the area under the ROC curve of the class against all others,
            which needs no number of labels; None where no class has images with and without it.
        num_samples: n, number of images.
        num_labels: k, the largest number of labels of one image.
    """

    exact: float
    error: float
    almost: float
    per_digit: float
    standard_error: float
    auroc: float | None
    num_samples: int
    num_labels: int

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"error {self.error:.2%} ± {self.standard_error:.2%} of {self.num_samples} images"
            f"{self.extra_words}"
        )

    def table(self) -> TextTable:
        """A row for each share."""
        return TextTable(
            ("found", "share"),
            [
                ("all labels found", percent(self.exact)),
                ("at least one", percent(self.almost)),
                ("of single labels", percent(self.per_digit)),
                ("AUROC, mean of classes", rounded(self.auroc)),
            ],
        )


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


def predicted_classes(
    activations: Activations, labels: Shaped[Tensor, " n *classes"]
) -> ClassFlags:
    """Return the most active classes of each image, as many as it shows.

    Args:
        activations: `[n, classes]`.
        labels: `[n]` class indices; or 0 and 1 `[n, classes]`.
    """
    ranks = activations.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return ranks < (1 if labels.dim() == 1 else labels.sum(dim=1, keepdim=True))


def label_hits(activations: Activations, labels: Shaped[Tensor, " n *classes"]) -> ClassFlags:
    """Return whether an image shows a class and it is among its most active ones.

    Args:
        activations: `[n, classes]`.
        labels: `[n]` class indices; or 0 and 1 `[n, classes]`.

    Returns:
        `[n, classes]` booleans.
    """
    return predicted_classes(activations, labels) & multi_hot(labels, activations.shape[1]).bool()


def score_multilabel(
    activations: Activations,
    labels: Shaped[Tensor, "n classes"],
    *,
    groups: Labels | None = None,
) -> MultiLabel:
    """Return exact match, at least one right, and accuracy by digit of the k largest activations.

    Args:
        activations: `[n, classes]` lengths in [0, 1], n at least 1, of any model.
        labels: `[n, classes]`, 1 for each class that an image shows, at least one, and 0 for the
            others.
        groups: `[n]` integers; images that share a digit have the same one. By default every image
            is its own group.

    Returns:
        All three figures, with the standard error of the first.

    Raises:
        ArgumentError: for shapes that do not fit, other labels, or activations that are not lengths.
    """
    check_shape("activations", activations, ("n", "classes"))
    num_images = len(activations)
    check_like("labels", labels, activations, ("n", "classes"))
    check_range("number of labels", labels.numel(), low=1)
    is_label = labels == 1
    if not (is_label | (labels == 0)).all() or not is_label.any(dim=1).all():
        raise ArgumentError("labels", "expected 0 and 1, and a class of each image")
    check_shares("activations", activations, ROUNDING)
    is_label = is_label.to(activations.device)
    hits = label_hits(activations, is_label)
    exact = widen((hits == is_label).all(dim=1))
    deviations = (exact - exact.mean()).cpu()
    if groups is not None:  # whose deviations add up
        check_shape("groups", groups, ("n",), n=num_images)
        _, group_of = groups.cpu().unique(return_inverse=True)
        deviations = torch.bincount(group_of, deviations)
    return MultiLabel(
        exact=float(exact.mean()),
        error=float(1 - exact.mean()),
        almost=proportion(hits.any(dim=1)),
        per_digit=proportion(hits[is_label]),
        standard_error=math.sqrt(float(deviations.square().sum())) / num_images,
        auroc=mean_of_classes(class_areas(activations, is_label)),
        num_samples=num_images,
        num_labels=int(is_label.sum(dim=1).max()),
    )


def auroc(positive: Float[Tensor, " n"], negative: Float[Tensor, " m"]) -> float:
    """Return the area under the ROC curve, `P(positive > negative) + P(equal) / 2`.

    Args:
        positive: `[n]` scores that ought to be higher.
        negative: `[m]` scores that ought to be lower.

    Returns:
        A number in [0, 1]; 0.5 for scores that do not differ.

    Raises:
        ArgumentError: for scores of another shape, none at all, or NaN.
    """
    positive = checked_scores("positive", positive)
    ordered = checked_scores("negative", negative).sort().values
    num_below = torch.searchsorted(ordered, positive, right=False)
    num_up_to = torch.searchsorted(ordered, positive, right=True)
    return float(widen(num_below + num_up_to).mean() / (2 * len(ordered)))


def checked_scores(argument: str, scores: Tensor) -> Tensor:
    """Scores `[n]` in float64 on the CPU, n at least 1.

    Raises:
        ArgumentError: for scores of another shape, none at all, or NaN.
    """
    check_shape(argument, scores, ("n",))
    check_range(f"number of {argument} scores", len(scores), low=1)
    if scores.isnan().any():
        raise ArgumentError(argument, "expected numbers, got NaN")
    return scores.detach().cpu().double()


def class_areas(activations: Activations, is_label: ClassFlags) -> list[float | None]:
    """Return the area under the ROC curve of each class against all others.

    Args:
        activations: `[n, classes]`.
        is_label: `[n, classes]`, whether an image shows a class.

    Returns:
        Areas in [0, 1]; None for a class that all images show, or none.
    """
    return [
        auroc(activation[is_member], activation[~is_member])
        if is_member.any() and not is_member.all()
        else None
        for activation, is_member in zip(
            activations.unbind(dim=1), is_label.unbind(dim=1), strict=True
        )
    ]


def mean_of_classes(figures: Sequence[float | None]) -> float | None:
    """Mean of the classes that have the figure; None where none has it."""
    numbers = [figure for figure in figures if figure is not None]
    return sum(numbers) / len(numbers) if numbers else None
