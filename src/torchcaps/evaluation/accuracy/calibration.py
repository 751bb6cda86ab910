"""Calibration: does a model that is 80 % sure of its answers give 80 % right ones?

Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Q. Weinberger, "On Calibration of Modern Neural Networks",
ICML 2017, arXiv 1706.04599.

A capsule network has no one confidence: the lengths of its class capsules do not sum to one. Both
readings in use are measured, and the names say which is which:

- normalized: the activations divided by their sum over classes, of which the largest is the
  confidence;
- length: the largest activation as it is.

`calibrate` makes probabilities by the temperature scaling of section 4.2, and a threshold for images
of no known class, from held-out images. Scaling needs logits, and lengths are none. The logarithm of
an activation takes their place:

    p_k = a_k^(1/T) / sum_j a_j^(1/T)

For the softmax of logits this is the scaling of the paper, as `log softmax(z)` and `z` differ by a
constant. For lengths with T = 1 it is the normalized reading.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_positive, check_range, check_shape
from torchcaps.evaluation.base import (
    Activations,
    EvaluationResult,
    Labels,
    check_scores,
    proportion,
    widen,
)

BINS = 15
REJECTED = 0.05  # share of known images below the threshold
CONFIDENCE = 0.95  # of the interval of that share
# Shares of the held-out images beyond each limit: of pictures that have the form of the training
# images, and of those that were brought into it, which are less often known ones.
SHARES = {"unchanged": 0.005, "changed": 0.06}
MIN_SAMPLES = 100  # held-out images that limits need
ROUNDING = 1e-9
LOG_TEMPERATURES = (math.log(0.01), math.log(100))

Figures = Mapping[str, float]


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
    check_positive(bins=bins)
    wide = widen(confidence.detach())
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


@dataclass(frozen=True)
class HeldOutCalibration(EvaluationResult):
    """What held-out images say of the activations of a classifier.

    Attributes:
        temperature: T of the probabilities, above 0.
        error_before: expected calibration error on these images with T = 1, in [0, 1].
        error: the same with T. T was fitted on the same images; new ones have a larger error.
        threshold: of the largest activation; an image below it is taken for one of no known class.
        rejected: share of the held-out images below the threshold, at most 0.05.
        rejected_low: with `rejected_high` the 95 % interval of that share among new images of known
            classes, in [0, 1].
        rejected_high: see `rejected_low`.
        num_samples: number of held-out images.
        limits: of pictures that are "unchanged" or "changed", the limits of the figures that
            `doubt` takes, by name; empty for fewer than 100 held-out images.
    """

    temperature: float
    error_before: float
    error: float
    threshold: float
    rejected: float
    rejected_low: float
    rejected_high: float
    num_samples: int
    limits: Mapping[str, Figures] = field(default_factory=dict)

    def probabilities(self, activations: Activations) -> Activations:
        """The calibrated probability of each class.

        Args:
            activations: `[n, classes]` in [0, 1].

        Returns:
            `[n, classes]`, of sum 1 for each image, in the order of the activations; in float64
            where the device has it.
        """
        return scaled_probabilities(activations, self.temperature)

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> "HeldOutCalibration":
        """The inverse of `to_dict`.

        Args:
            figures: of `to_dict`, or read from JSON.

        Returns:
            The calibration.

        Raises:
            ArgumentError: a figure is missing, or is no number in its range.
        """
        numbers: dict[str, Any] = {field.name: figures.get(field.name) for field in fields(cls)}
        limits = numbers.pop("limits") or {}
        figures_by_name = list(numbers.items())
        try:
            for part in limits.values():
                figures_by_name += part.items()
        except AttributeError:
            raise ArgumentError("limits", f"expected limits by name, got {limits!r}") from None
        for name, figure in figures_by_name:
            low = 0 if name == "temperature" else -math.inf
            if type(figure) not in (int, float) or not low < figure < math.inf:
                raise ArgumentError(name, f"expected a number above {low}, got {figure!r}")
        return cls(**numbers, limits=limits)


def doubt(figures: Figures, limits: Figures) -> str:
    """Why a picture looks like none of the training images.

    Args:
        figures: of the picture: "length", the largest activation; "margin", by how much it is above
            the second one; "error", the distance from its reconstruction.
        limits: the least length and margin, and the largest error, of those figures that count.

    Returns:
        A sentence; empty where it may be one of them.
    """
    for name, limit in limits.items():
        figure = figures[name]
        if figure > limit and name == "error":
            return f"the error of its reconstruction, {figure:.3g}, is above {limit:.3g}"
        if figure < limit and name != "error":
            return f"its {name}, {figure:.3g}, is below {limit:.3g}"
    return ""


def calibrate(
    activations: Activations, labels: Labels, errors: Float[Tensor, " n"] | None = None
) -> HeldOutCalibration:
    """Fit the temperature and the threshold on images that were not trained with.

    Args:
        activations: `[n, classes]` in [0, 1], n at least 1, at least two classes.
        labels: `[n]` true classes.
        errors: `[n]` distances from reconstructions; None for a model that draws none.

    Returns:
        The temperature of the least negative log likelihood, in [0.01, 100]; the threshold;
        their errors; and the limits.

    Raises:
        ArgumentError: for shapes or labels that do not fit, or activations outside [0, 1].
    """
    from scipy.special import betaincinv

    check_scores(activations, labels)
    check_range("number of classes", activations.shape[1], low=2)

    activations = activations.detach()
    temperature = _fit_temperature(activations, labels)
    is_correct = activations.argmax(dim=1) == labels
    before = scaled_probabilities(activations, 1.0).amax(dim=1)
    after = scaled_probabilities(activations, temperature).amax(dim=1)

    # A new image is one of n + 1 in random order: its chance to be below the k-th of n follows
    # Beta(k, n + 1 - k).
    largest = widen(activations).amax(dim=1).sort().values
    num_samples = len(largest)
    num_below = math.floor(REJECTED * num_samples + ROUNDING)
    threshold = float(largest[num_below])
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = betaincinv(num_below + 1, num_samples - num_below, tails)
    return HeldOutCalibration(
        temperature=temperature,
        error_before=reliability(before, is_correct).error,
        error=reliability(after, is_correct).error,
        threshold=threshold,
        rejected=proportion(largest < threshold),
        rejected_low=float(low),
        rejected_high=float(high),
        num_samples=num_samples,
        limits=_limits(activations, errors) if num_samples >= MIN_SAMPLES else {},
    )


def conformal_sets(
    probabilities: Activations,
    val_probabilities: Activations,
    val_labels: Labels,
    level: float = 0.9,
) -> Bool[Tensor, "n classes"]:
    """Sets of classes that hold the true class of a new image with a stated probability.

    Split conformal prediction: a class belongs to the set if its probability is at least the k-th
    smallest of the true classes of m held-out images, with k = floor((m + 1) (1 - level)). The
    level holds over all images, not for each class. Source: Sadinle, Lei, Wasserman, "Least
    ambiguous set-valued classifiers with bounded error levels", JASA 2019, arXiv 1609.00451.

    Args:
        probabilities: of the new images, `[n, classes]`.
        val_probabilities: of images that were not trained with, `[m, classes]`, m at least 1.
        val_labels: their true classes, `[m]`.
        level: least share of the sets that hold the true class, in (0, 1).

    Returns:
        `[n, classes]`, whether each class belongs to the set. Where k is 0 every class does.

    Raises:
        ArgumentError: shapes that do not fit, or a level out of range.
    """
    check_scores(val_probabilities, val_labels)
    check_shape(
        "probabilities", probabilities, ("n", "classes"), classes=val_probabilities.shape[1]
    )
    check_range("level", level, low=0, high=1)
    true_class = val_probabilities.gather(1, val_labels.unsqueeze(1)).flatten().sort().values
    rank = math.floor((len(val_labels) + 1) * (1 - level) + ROUNDING)
    rank = min(rank, len(val_labels))  # at level 0 there is no such probability
    if rank == 0:
        return torch.ones_like(probabilities, dtype=torch.bool)
    return probabilities >= true_class[rank - 1]


def _limits(
    activations: Activations, errors: Float[Tensor, " n"] | None
) -> dict[str, dict[str, float]]:
    """Limits by name, each of which leaves at most these shares of the images out."""
    first, second = activations.cpu().topk(2).values.double().unbind(dim=1)
    figures = {"length": first, "margin": first - second}
    if errors is not None:
        figures["error"] = -errors.cpu().double()
    limits = {}
    for kind, share in SHARES.items():
        limits[kind] = {
            name: abs(column.quantile(share, interpolation="lower").item())
            for name, column in figures.items()
        }
    return limits


def scaled_probabilities(activations: Activations, temperature: float) -> Activations:
    """`a_k^(1/T) / sum_j a_j^(1/T)`, in float64 where the device has it.

    Args:
        activations: `[n, classes]`, at least 0.
        temperature: T, above 0; 1 divides by the sum over classes.
    """
    return (_logarithm(activations) / temperature).softmax(dim=1)


def _logarithm(activations: Activations) -> Activations:
    """The logarithm of activations, finite for those of 0."""
    x = widen(activations)
    return x.clamp(min=torch.finfo(x.dtype).tiny).log()


def _fit_temperature(activations: Activations, labels: Labels) -> float:
    """The temperature of the least negative log likelihood.

    Labels are smoothed by 1 / (n + 2), after Platt (1999), so that images without a mistake do not
    make every answer certain.
    """
    from scipy.optimize import minimize_scalar

    log_activations = _logarithm(activations)
    smoothing = 1 / (len(labels) + 2)

    def negative_log_likelihood(log_temperature: float) -> float:
        logits = log_activations / math.exp(log_temperature)
        return float(torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing))

    optimum = minimize_scalar(negative_log_likelihood, bounds=LOG_TEMPERATURES, method="bounded")
    return math.exp(optimum.x)
