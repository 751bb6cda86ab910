"""Saying no: images that are not what they seem (adversarial ones), and images of nothing that was learned.

Adversarial images: Nicholas Frosst, Sara Sabour, Geoffrey Hinton, "DARCCC: Detecting Adversaries by Reconstruction
from Class Conditional Capsules", 2018, arXiv 1811.06969. The decoder draws the winning capsule; an image made to look
like class k to the network, but not to a person, is drawn as a k, and so unlike itself. An attacker who knows of the
detector can aim at it too.

Other images: the longest capsule of an image of no known class ought to be short.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.evaluation.base import EvaluationResult, Images, Labels, check_labeled
from torchcaps.evaluation.decoding.reconstruction import reconstructions
from torchcaps.evaluation.forward import image_activations, proportion

RECALL = 0.95  # share of known images that are accepted
ROUNDING = 1e-9


def auroc(positive: Float[Tensor, " n"], negative: Float[Tensor, " m"]) -> float:
    """Area under the ROC curve, `P(positive > negative) + P(equal) / 2`, in [0, 1], of scores that ought to be higher
    and of those that ought to be lower; 0.5 tells nothing apart. Raises ValueError for scores of another shape, none at
    all, or NaN."""
    positive, negative = _scores("positive", positive), _scores("negative", negative)
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    upto = torch.searchsorted(ordered, positive, right=True)
    return float((below + upto).double().mean() / (2 * len(ordered)))


def reconstruction_distances(model: nn.Module, images: Images) -> Float[Tensor, " n"]:
    """`|x - r(x)|_2`, r drawn from the most active capsule alone; `[n]` on the CPU, at least 0. Raises ValueError for
    a model without a decoder, or images that do not fit."""
    return _distances(model, images)[0]


def detection_threshold(distances: Float[Tensor, " n"], false_positives: float = 0.05) -> float:
    """The distance that at most this share, in [0, 1), of clean validation images exceed; the paper takes 0.05. These
    images are used for nothing else. Raises ValueError for none, or for a share out of range."""
    distances = _scores("distances", distances)
    check_range("false_positives", false_positives, low=0, high=1 - 1e-9)
    over = math.floor(false_positives * len(distances) + ROUNDING)
    return float(distances.sort(descending=True).values[over])


@dataclass(frozen=True)
class Detection(EvaluationResult):
    """How many adversarial images a threshold on the distance of reconstruction finds; shares are in [0, 1]."""

    threshold: float  # an image that is further than this from its reconstruction is flagged
    false_positives: float  # share of clean images flagged
    detected: float  # share of adversarial images flagged
    success: (
        float | None
    )  # share of rightly answered images that the attack turned; None if none was answered rightly
    undetected: (
        float | None
    )  # share of these that the attack turned without being flagged; None likewise
    auroc: float  # of the distance, adversarial against clean
    num_samples: int  # n


def detect_adversarial(
    model: nn.Module, images: Images, adversarial: Images, labels: Labels, *, threshold: float
) -> Detection:
    """Flag what is further than a threshold from its reconstruction, among clean test images and the same after an
    attack. The threshold is from `detection_threshold`, on other images. Raises ValueError for a model without a
    decoder, or shapes that do not fit."""
    check_labeled(images, labels)
    if adversarial.shape != images.shape:
        want, got = list(images.shape), list(adversarial.shape)
        raise ArgumentError("adversarial", f"expected the shape of images, {want}, got {got}")
    (near, before), (far, after) = (_distances(model, one) for one in (images, adversarial))
    true, flagged = labels.cpu(), far > threshold
    start = before == true
    turned = after[start] != true[start]
    any_right = len(turned) > 0
    return Detection(
        threshold=float(threshold),
        false_positives=proportion(near > threshold),
        detected=proportion(flagged),
        success=proportion(turned) if any_right else None,
        undetected=proportion(turned & ~flagged[start]) if any_right else None,
        auroc=auroc(far, near),
        num_samples=len(images),
    )


@dataclass(frozen=True)
class Rejection(EvaluationResult):
    """Whether lengths tell known images from others; shares are in [0, 1]."""

    auroc: float  # of the largest length, known against other; 0.5 tells nothing apart
    false_positive_rate: float  # share of other images accepted when 95 % of the known ones are
    threshold: float  # the length that does so
    known_length: float  # mean of the largest length over known images
    other_length: (
        float  # the same over other images. Margin loss drives absent classes to 0.1, not to 0
    )
    num_known: int  # n
    num_other: int  # m


def reject_by_length(
    model: nn.Module, known: Images, other: Float[Tensor, "m channels height width"]
) -> Rejection:
    """How well the largest activation separates test images of the classes learned from images of none of them.
    Activations that sum to one over classes cannot reject by their size. Raises ValueError for images that do not fit.
    """
    inside, outside = (image_activations(model, images).amax(dim=1) for images in (known, other))
    threshold = inside.sort().values[math.floor((1 - RECALL) * len(inside) + ROUNDING)]
    return Rejection(
        auroc=auroc(inside, outside),
        false_positive_rate=proportion(outside >= threshold),
        threshold=float(threshold),
        known_length=float(inside.double().mean()),
        other_length=float(outside.double().mean()),
        num_known=len(inside),
        num_other=len(outside),
    )


def _distances(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Distances to the reconstructions, and predictions, `[n]` each, on the CPU."""
    drawn = reconstructions(model, images)
    return (drawn.images - images.cpu()).flatten(1).norm(dim=1), drawn.predictions


def _scores(argument: str, values: Tensor) -> Tensor:
    check_shape(argument, values, ("n",))
    check_range(f"number of {argument} scores", len(values), low=1)
    if values.isnan().any():
        raise ArgumentError(argument, "expected numbers, got NaN")
    return values.detach().double().cpu()
