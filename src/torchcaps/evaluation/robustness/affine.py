"""Accuracy against the amount by which images are rotated, resized, sheared or moved.

One parameter at a time, every image by the same amount, so that the curve says what the amount
does. Compare models of equal accuracy on the images as they are: a better one is better
everywhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.data.augment.spatial import inverse_map
from torchcaps.errors import check_range
from torchcaps.evaluation.base import (
    EvaluationResult,
    Images,
    Labels,
    check_images,
    check_labeled,
    check_labels,
)
from torchcaps.evaluation.forward import image_activations, proportion, right_answers

UNITS = {"rotation": "degrees", "scale": "percent", "shear": "degrees", "shift": "pixels"}


@dataclass(frozen=True)
class AffineCurve:
    """Accuracy against one parameter of a transformation.

    Attributes:
        unit: unit of the amounts: "degrees", "percent" or "pixels".
        amounts: amounts of the transformation, in the order in which they were asked for.
        accuracy: at each amount, in [0, 1].
    """

    unit: str
    amounts: tuple[float, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class AffineSweep(EvaluationResult):
    """Accuracy under transformations of the images, one parameter at a time.

    Attributes:
        clean: accuracy on the images as they are, in [0, 1].
        chance: 1 / classes.
        num_samples: n.
        curves: "rotation", "scale", "shear", "shift" -> its curve.
    """

    clean: float
    chance: float
    num_samples: int
    curves: dict[str, AffineCurve]


def transform_images(
    images: Images,
    *,
    rotation: float = 0.0,
    scale: float = 100.0,
    shear: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
) -> Images:
    """Turn, resize, slant and move all images by the same amount about their center.

    The images are interpolated once, bilinearly, with zeros from outside.

    Args:
        images: `[n, channels, height, width]`, floating-point.
        rotation: degrees, clockwise as the picture is seen.
        scale: percent of the size; 200 makes the content twice as large. Above 0.
        shear: degrees, between -89 and 89; positive moves the lower half to the right.
        shift: pixels (right, down).

    Returns:
        The transformed images, of the same shape.

    Raises:
        ArgumentError: for other images, or amounts out of range.
    """
    check_images(images)
    check_range("scale", scale, low=0.1)
    check_range("shear", shear, low=-89, high=89)
    amounts = (math.radians(rotation), math.tan(math.radians(shear)), scale / 100, scale / 100)
    # An output point p shows the input at A^-1 (p - shift), in pixels, with
    # A = scale * rotation * [[1, slant], [0, 1]].
    inverse = inverse_map(*torch.tensor(amounts, dtype=torch.float64).unsqueeze(1))[0]
    offset = -inverse @ torch.tensor(shift, dtype=torch.float64)
    height, width = images.shape[-2:]
    half = torch.tensor([width / 2, height / 2], dtype=torch.float64)
    theta = torch.cat([inverse * half / half.unsqueeze(1), (offset / half).unsqueeze(1)], dim=1)
    theta = theta.to(images).expand(len(images), -1, -1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def affine_sweep(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    rotation: Sequence[float] = (),
    scale: Sequence[float] = (),
    shear: Sequence[float] = (),
    shift: Sequence[float] = (),
) -> AffineSweep:
    """Measure accuracy on images that are turned, resized, slanted or moved.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        rotation: amounts, as for `transform_images`.
        scale: amounts.
        shear: amounts.
        shift: pixels, fractions too; the accuracy is the mean over the four directions right,
            left, down and up.

    Returns:
        Accuracy without a change, and a curve for each transformation that has amounts.

    Raises:
        ArgumentError: for arguments that do not fit, or no amount at all.
    """
    check_labeled(images, labels)
    check_range("number of amounts", len([*rotation, *scale, *shear, *shift]), low=1)
    activations = image_activations(model, images)
    check_labels(labels, activations.shape[1])
    curves = {
        kind: AffineCurve(
            UNITS[kind],
            tuple(map(float, amounts)),
            tuple(_accuracy(model, images, labels, kind, amount) for amount in amounts),
        )
        for kind, amounts in zip(UNITS, (rotation, scale, shear, shift), strict=True)
        if amounts
    }
    clean = proportion(activations.argmax(dim=1) == labels.cpu())
    return AffineSweep(clean, 1 / activations.shape[1], len(images), curves)


def _accuracy(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    kind: str,
    amount: float,
) -> float:
    """Return the accuracy under a change; under a shift, the mean over its four directions."""
    changes: list[dict[str, Any]] = [{kind: amount}]
    if kind == "shift":
        offsets = ((amount, 0.0), (-amount, 0.0), (0.0, amount), (0.0, -amount))
        changes = [{"shift": offset} for offset in offsets]
    correct = [
        right_answers(model, transform_images(images, **change), labels) for change in changes
    ]
    return proportion(torch.stack(correct))
