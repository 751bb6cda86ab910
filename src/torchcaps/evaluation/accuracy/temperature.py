"""Calibrated probabilities, and a threshold for images of no known class, from held-out images.

Temperature scaling: Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Q. Weinberger, "On Calibration of
Modern Neural Networks", ICML 2017, arXiv 1706.04599, section 4.2.

It needs logits, and lengths are none. The logarithm of an activation takes their place:

    p_k = a_k^(1/T) / sum_j a_j^(1/T)

For the softmax of logits this is the scaling of the paper, as `log softmax(z)` and `z` differ by a
constant. For lengths with T = 1 it is the normalized reading of `calibration`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.accuracy.calibration import reliability
from torchcaps.evaluation.base import Activations, EvaluationResult, Labels, check_scores
from torchcaps.transfer import widen

REJECTED = 0.05  # share of known images below the threshold
CONFIDENCE = 0.95  # of the interval of that share
ROUNDING = 1e-9
LOG_TEMPERATURES = (math.log(0.01), math.log(100))


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
    """

    temperature: float
    error_before: float
    error: float
    threshold: float
    rejected: float
    rejected_low: float
    rejected_high: float
    num_samples: int

    def probabilities(self, activations: Activations) -> Float[Tensor, "n classes"]:
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
        for name, figure in numbers.items():
            if type(figure) not in (int, float) or not math.isfinite(figure):
                raise ArgumentError(name, f"expected a number, got {figure!r}")
        if numbers["temperature"] <= 0:
            raise ArgumentError("temperature", f"expected above 0, got {numbers['temperature']}")
        return cls(**numbers)


def calibrate(activations: Activations, labels: Labels) -> HeldOutCalibration:
    """Fit the temperature and the threshold on images that were not trained with.

    Args:
        activations: `[n, classes]` in [0, 1], n at least 1, at least two classes.
        labels: `[n]` true classes.

    Returns:
        The temperature of the least negative log likelihood, in [0.01, 100]; the threshold; and
        their errors.

    Raises:
        ArgumentError: for shapes or labels that do not fit, or activations outside [0, 1].
    """
    from scipy.special import betaincinv

    check_scores(activations, labels)
    check_range("number of classes", activations.shape[1], low=2)

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
        rejected=float(widen(largest < threshold).mean()),
        rejected_low=float(low),
        rejected_high=float(high),
        num_samples=num_samples,
    )


def scaled_probabilities(
    activations: Activations, temperature: float
) -> Float[Tensor, "n classes"]:
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
        return float(F.cross_entropy(logits, labels, label_smoothing=smoothing))

    optimum = minimize_scalar(negative_log_likelihood, bounds=LOG_TEMPERATURES, method="bounded")
    return math.exp(optimum.x)
