"""Rejection of adversarial images, and of images of no known class.

Adversarial images: Nicholas Frosst, Sara Sabour, Geoffrey Hinton, "DARCCC: Detecting Adversaries
by Reconstruction from Class Conditional Capsules", 2018, arXiv 1811.06969. The decoder draws the
winning capsule; an image made to look like class k to the network, but not to a person, is drawn
as a k, and so unlike itself. An attacker who knows of the detector can aim at it too.

Other images: the longest capsule of an image of no known class ought to be short.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.accuracy.multilabel import auroc, checked_scores
from torchcaps.evaluation.base import (
    IMAGE_AXES,
    EvaluationResult,
    Images,
    Labels,
    check_labeled,
    check_like,
    image_activations,
    proportion,
    widen,
)
from torchcaps.evaluation.decoding import reconstructions

Distances = Float[Tensor, " n"]

RECALL = 0.95  # share of known images that are accepted
ROUNDING = 1e-9


def reconstruction_distances(model: nn.Module, images: Images) -> Distances:
    """Return `|x - r(x)|_2`, r decoded from the most active capsule alone.

    Args:
        model: a model with class capsules and a decoder.
        images: `[n, channels, height, width]` in [0, 1].

    Returns:
        `[n]` distances on the CPU.

    Raises:
        ArgumentError: for another model, or images that do not fit.
    """
    return _distances(model, images)[0]


def detection_threshold(distances: Distances, false_positives: float = 0.05) -> float:
    """Return the distance that at most a share of clean validation images exceed.

    These images are used for nothing else.

    Args:
        distances: `[n]` from `reconstruction_distances`.
        false_positives: the share, in [0, 1); the paper takes 0.05.

    Returns:
        The distance.

    Raises:
        ArgumentError: for no distances, or a share out of range.
    """
    distances = checked_scores("distances", distances)
    check_range("false_positives", false_positives, low=0, high=1 - 1e-9)
    return -_threshold(-distances, false_positives)


@dataclass(frozen=True)
class Detection(EvaluationResult):
    """Detection of adversarial images by the distance of their reconstructions.

    Shares are in [0, 1].

    Attributes:
        threshold: an image that is further than this from its reconstruction is flagged.
        false_positives: share of clean images flagged.
        detected: share of adversarial images flagged.
        success: share of rightly answered images whose answer the attack changed; None if none was
            right.
        undetected: share of rightly answered images that were changed without being flagged; None
            if none was right.
        auroc: area under the ROC curve of the distance, adversarial against clean images.
        num_samples: n, number of images.
    """

    threshold: float
    false_positives: float
    detected: float
    success: float | None
    undetected: float | None
    auroc: float
    num_samples: int


def detect_adversarial(
    model: nn.Module,
    images: Images,
    adversarial: Images,
    labels: Labels,
    *,
    threshold: float,
) -> Detection:
    """Flag images that are further than a threshold from their reconstructions.

    Args:
        model: a model with class capsules and a decoder.
        images: `[n, channels, height, width]` clean test images in [0, 1].
        adversarial: the same after an attack.
        labels: `[n]` true classes.
        threshold: from `detection_threshold`, on other images.

    Returns:
        Shares of clean and of adversarial images that are flagged, and the area under the ROC
        curve.

    Raises:
        ArgumentError: for another model, or shapes that do not fit.
    """
    check_labeled(images, labels)
    check_like("adversarial", adversarial, images, IMAGE_AXES)
    clean_distances, before = _distances(model, images)
    distances, after = _distances(model, adversarial)
    labels = labels.cpu()
    is_flagged = distances > threshold
    is_correct = before == labels
    turned = (after != labels)[is_correct]
    any_correct = len(turned) > 0
    return Detection(
        threshold=float(threshold),
        false_positives=proportion(clean_distances > threshold),
        detected=proportion(is_flagged),
        success=proportion(turned) if any_correct else None,
        undetected=proportion(turned & ~is_flagged[is_correct]) if any_correct else None,
        auroc=auroc(distances, clean_distances),
        num_samples=len(images),
    )


@dataclass(frozen=True)
class Rejection(EvaluationResult):
    """Separation of known from other images by length; shares are in [0, 1].

    Attributes:
        auroc: area under the ROC curve of the largest length, known against other images; 0.5
            separates nothing.
        false_positive_rate: share of other images that are accepted when 95 % of the known ones
            are.
        threshold: length at which 95 % of the known images are accepted.
        inlier_length: mean of the largest length over known images.
        outlier_length: mean of the largest length over other images. Margin loss drives absent
            classes to 0.1, not to 0.
        num_inliers: n, number of known images.
        num_outliers: m, number of other images.
    """

    auroc: float
    false_positive_rate: float
    threshold: float
    inlier_length: float
    outlier_length: float
    num_inliers: int
    num_outliers: int


def reject_by_length(
    model: nn.Module,
    inliers: Images,
    outliers: Float[Tensor, "m channels height width"],
) -> Rejection:
    """Measure how well the largest activation separates images of known classes from others.

    Activations that sum to one over classes cannot reject by their size.

    Args:
        model: maps images to `[batch, classes]`.
        inliers: `[n, channels, height, width]` test images of known classes, in [0, 1].
        outliers: `[m, channels, height, width]` images of no known class.

    Returns:
        The area under the ROC curve, the threshold, and the mean lengths of both.

    Raises:
        ArgumentError: for images that do not fit.
    """
    inlier_lengths = image_activations(model, inliers).amax(dim=1)
    outlier_lengths = image_activations(model, outliers).amax(dim=1)
    threshold = _threshold(inlier_lengths, 1 - RECALL)
    return Rejection(
        auroc=auroc(inlier_lengths, outlier_lengths),
        false_positive_rate=proportion(outlier_lengths >= threshold),
        threshold=threshold,
        inlier_length=float(widen(inlier_lengths).mean()),
        outlier_length=float(widen(outlier_lengths).mean()),
        num_inliers=len(inlier_lengths),
        num_outliers=len(outlier_lengths),
    )


def _distances(model: nn.Module, images: Images) -> tuple[Distances, Labels]:
    """Return the distances to the reconstructions, and the predictions, on the CPU."""
    decoded = reconstructions(model, images)
    return (decoded.images - images.cpu()).flatten(1).norm(dim=1), decoded.predictions


def _threshold(scores: Tensor, share: float) -> float:
    """Return the score that at most a share of all is below."""
    return float(scores.sort().values[math.floor(share * len(scores) + ROUNDING)])
