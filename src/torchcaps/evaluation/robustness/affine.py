"""How far may an image be turned, resized, slanted or moved before the answer is lost?

One parameter at a time, every image by the same amount, so that the curve says what the amount does. Compare models of
equal accuracy on the images as they are: a better one is better everywhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.data.augment.affine import inverse_map
from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.base import (
    BATCH,
    EvaluationResult,
    Images,
    Labels,
    check_images,
    check_labeled,
    check_labels,
)
from torchcaps.evaluation.forward import image_activations, proportion, right_answers

UNITS = {"rotation": "degrees", "scale": "percent", "shear": "degrees", "shift": "pixels"}
UNCHANGED = {"rotation": 0.0, "scale": 100.0, "shear": 0.0, "shift": 0.0}


@dataclass(frozen=True)
class AffineCurve:
    """Accuracy against one parameter of a transformation."""

    unit: str  # of the amounts: "degrees", "percent" or "pixels"
    amounts: tuple[float, ...]  # as asked for
    accuracy: tuple[float, ...]  # at each amount, in [0, 1]
    mean: float  # of `accuracy` over the amounts
    half_drop: (
        float | None
    )  # amount nearest to no change where accuracy is below half way to chance; None if none is


@dataclass(frozen=True)
class AffineSweep(EvaluationResult):
    """Accuracy under transformations of the images, one parameter at a time."""

    clean: float  # accuracy on the images as they are, in [0, 1]
    chance: float  # 1 / classes
    num_samples: int  # n
    curves: dict[
        str, AffineCurve
    ]  # "rotation", "scale", "shear", "shift" -> its curve, for those asked for


def transform_images(
    images: Images,
    *,
    rotation: float = 0.0,
    scale: float = 100.0,
    shear: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
) -> Images:
    """Turn, resize, slant and move all images alike about their center; bilinear, once, with zeros from outside. Raises
    ValueError for what is no images, or amounts out of range.

    Args:
        images: `[n, channels, height, width]`, floating-point.
        rotation: degrees, clockwise as the picture is seen.
        scale: percent of the size; 200 makes the content twice as large. Above 0.
        shear: degrees, between -89 and 89; positive moves the lower half to the right.
        shift: pixels (right, down).
    """
    check_images(images)
    check_range("scale", scale, low=0.1)
    check_range("shear", shear, low=-89, high=89)
    amounts = (math.radians(rotation), math.tan(math.radians(shear)), scale / 100, scale / 100)
    # An output point p shows the input at A^-1 (p - shift), A = scale * rotation * [[1, slant], [0, 1]] in pixels.
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
    batch_size: int = BATCH,
) -> AffineSweep:
    """Accuracy of `model` on images that are turned, resized, slanted or moved, each by the amounts in its list.

    Amounts are those of `transform_images`; shifts are pixels, fractions too, and their accuracy is the mean over the
    four directions right, left, down and up. Raises ValueError for arguments that do not fit, or no amount at all."""
    check_labeled(images, labels)
    amounts_of = zip(UNITS, (rotation, scale, shear, shift), strict=True)
    asked = {kind: tuple(map(float, amounts)) for kind, amounts in amounts_of if len(amounts)}
    if not asked:
        raise ArgumentError(
            "affine_sweep",
            "expected amounts for at least one of rotation, scale, shear, shift, got none",
        )
    activations = image_activations(model, images, batch_size=batch_size)
    num_classes = activations.shape[1]
    check_labels(labels, num_classes)
    clean, chance = proportion(activations.argmax(dim=1) == labels.cpu()), 1 / num_classes
    curves = {}
    for kind, amounts in asked.items():
        accuracy = tuple(
            _accuracy(model, images, labels, kind, amount, batch_size) for amount in amounts
        )
        low = [
            amount
            for amount, value in zip(amounts, accuracy, strict=True)
            if value < (clean + chance) / 2
        ]
        half_drop = min(low, key=lambda amount: abs(amount - UNCHANGED[kind]), default=None)
        curves[kind] = AffineCurve(UNITS[kind], amounts, accuracy, fmean(accuracy), half_drop)
    return AffineSweep(clean, chance, len(images), curves)


def _accuracy(
    model: nn.Module, images: Tensor, labels: Tensor, kind: str, amount: float, batch_size: int
) -> float:
    changes: list[dict[str, Any]] = [{kind: amount}]
    if kind == "shift":
        offsets = ((amount, 0.0), (-amount, 0.0), (0.0, amount), (0.0, -amount))
        changes = [{"shift": offset} for offset in offsets]
    correct = [
        right_answers(model, transform_images(images, **change), labels, batch_size)
        for change in changes
    ]
    return proportion(torch.stack(correct))
