"""Images that are rotated, resized, sheared or moved: accuracy by the amount, and what poses do.

`affine_sweep` changes one parameter at a time, every image by the same amount, so that the curve says
what the amount does. Compare models of equal accuracy on the images as they are: a better one is
better everywhere.

`equivariance` asks whether poses move with the image, and activations stay. A pose is equivariant if
a transformation of the image moves it by a linear map that is the same for all images, and invariant
if it does not move at all. Capsules are meant to have equivariant poses and invariant activations.
The figures are shares of the variance of the moved poses: what a learned map, and what no map,
explains on images that the map was not learned on. Karel Lenc, Andrea Vedaldi, CVPR 2015, arXiv
1411.5908, learn such maps for features of CNNs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.data.augment.changes import inverse_map
from torchcaps.errors import check_range
from torchcaps.evaluation.base import (
    Activations,
    EvaluationResult,
    Images,
    Labels,
    Series,
    batches,
    capsule_model,
    check_images,
    check_labeled,
    check_labels,
    evaluating,
    image_activations,
    proportion,
    right_answers,
)

UNITS = {"rotation": "degrees", "scale": "percent", "shear": "degrees", "shift": "pixels"}
Poses = Float[Tensor, "n dim"]
Amounts = Sequence[float]

MIN_VARIANCE = 1e-12
RIDGE = 1e-3  # for few images, and dimensions that do not vary


@dataclass(frozen=True)
class AffineCurve:
    """Accuracy against one parameter of a transformation.

    Attributes:
        unit: unit of the amounts: "degrees", "percent" or "pixels".
        amounts: amounts of the transformation, in the order in which they were asked for.
        accuracy: at each amount, in [0, 1].
    """

    unit: str
    amounts: Series
    accuracy: Series


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
    grid = nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def affine_sweep(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    rotation: Amounts = (),
    scale: Amounts = (),
    shear: Amounts = (),
    shift: Amounts = (),
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
    amounts_by_kind = (rotation, scale, shear, shift)
    check_range("number of amounts", sum(map(len, amounts_by_kind)), low=1)
    activations = image_activations(model, images)
    curves = {
        kind: AffineCurve(
            UNITS[kind],
            tuple(map(float, amounts)),
            tuple(_accuracy(model, images, labels, kind, amount) for amount in amounts),
        )
        for kind, amounts in zip(UNITS, amounts_by_kind, strict=True)
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
    amounts: list[Any] = [amount]
    if kind == "shift":
        amounts = [(amount, 0.0), (-amount, 0.0), (0.0, amount), (0.0, -amount)]
    correct = [
        right_answers(model, transform_images(images, **{kind: change}), labels)
        for change in amounts
    ]
    return proportion(torch.stack(correct))


@dataclass(frozen=True)
class Equivariance(EvaluationResult):
    """The capsule of each image's class under transformations, one figure for each amount.

    Attributes:
        amounts: amounts of the transformation.
        equivariant: R² of the linear map learned on the other images; 0 is no better than the mean.
        invariant: R² of the unmoved poses; 1 is invariant. It may be far below 0.
        activation_change: mean absolute difference of all activations.
        agreement: share of images whose answer stays.
        num_samples: images that the figures are of.
    """

    amounts: Series
    equivariant: Series
    invariant: Series
    activation_change: Series
    agreement: Series
    num_samples: int


def equivariance(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    rotation: Amounts = (10.0, 20.0, 30.0),
) -> Equivariance:
    """Measure how the poses of the true classes move as the images turn.

    The maps are learned on the even images, and the figures measured on the odd ones.

    Args:
        model: a model with class capsules.
        images: `[n, channels, height, width]` in [0, 1], at least four, and better four times as
            many as a pose has dimensions.
        labels: `[n]` true classes.
        rotation: degrees clockwise, at least one.

    Returns:
        A figure of each measure for each amount.

    Raises:
        ArgumentError: for another model, or arguments that do not fit.
    """
    check_labeled(images, labels)
    check_range("number of images", len(images), low=4)
    check_range("number of rotations", len(rotation), low=1)
    poses, activations = _poses(model, images, labels)
    rows = []
    for angle in rotation:
        turned = transform_images(images, rotation=angle)
        turned_poses, turned_activations = _poses(model, turned, labels)
        matrix = linear_map(poses[::2], turned_poses[::2], RIDGE)
        is_agreement = turned_activations.argmax(dim=1) == activations.argmax(dim=1)
        rows.append(
            (
                r_squared(poses[1::2] @ matrix.T, turned_poses[1::2]),
                r_squared(poses[1::2], turned_poses[1::2]),
                float((turned_activations - activations).abs()[1::2].mean()),
                proportion(is_agreement[1::2]),
            )
        )
    equivariant, invariant, change, agreement = map(tuple, zip(*rows, strict=True))
    amounts = tuple(map(float, rotation))
    return Equivariance(amounts, equivariant, invariant, change, agreement, len(images) // 2)


def linear_map(x: Poses, y: Poses, ridge: float) -> Float[Tensor, "dim dim"]:
    """Return the A that minimizes `sum |A x - y|^2 + ridge S |A - I|^2`, S the sum of `|x|^2`."""
    penalty = ridge * x.square().sum() * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.lstsq(x.T @ x + penalty, x.T @ y + penalty, driver="gelsd").solution.T


def r_squared(predicted: Poses, true: Poses) -> float:
    """Return `1 - sum |predicted - true|^2 / sum |true - mean true|^2`; 0 for constant poses."""
    total = float((true - true.mean(dim=0)).square().sum())
    if total <= MIN_VARIANCE:
        return 0.0
    return 1 - float((predicted - true).square().sum()) / total


def _poses(model: nn.Module, images: Images, labels: Labels) -> tuple[Poses, Activations]:
    """Return the poses of the labeled capsules in float64, and all activations, on the CPU."""
    encode = capsule_model(model).capsules
    poses = []
    activations = []
    with evaluating(model):
        for batch, true in batches(model, images, labels):
            pose, activation = encode(batch)
            check_labels(true, activation.shape[1])
            rows = torch.arange(len(true), device=pose.device)
            poses.append(pose[rows, true].cpu().double())
            activations.append(activation.float().cpu())
    return torch.cat(poses), torch.cat(activations)
