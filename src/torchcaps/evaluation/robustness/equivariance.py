"""Do poses move with the image, and do activations stay?

A pose is equivariant if a transformation of the image moves it by a linear map that is the same
for all images, and invariant if it does not move at all. Capsules are meant to have equivariant
poses and invariant activations. The figures are shares of the variance of the moved poses: what a
learned map, and what no map, explains on images that the map was not learned on. Karel Lenc,
Andrea Vedaldi, CVPR 2015, arXiv 1411.5908, learn such maps for features of CNNs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.base import (
    Activations,
    EvaluationResult,
    Images,
    Labels,
    capsule_model,
    check_labeled,
    check_labels,
)
from torchcaps.evaluation.forward import batches, evaluating, proportion
from torchcaps.evaluation.robustness.affine import transform_images

Poses = Float[Tensor, "n dim"]

MIN_VARIANCE = 1e-12
RIDGE = 1e-3  # for few images, and dimensions that do not vary


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

    amounts: tuple[float, ...]
    equivariant: tuple[float, ...]
    invariant: tuple[float, ...]
    activation_change: tuple[float, ...]
    agreement: tuple[float, ...]
    num_samples: int


def equivariance(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    rotation: Sequence[float] = (10.0, 20.0, 30.0),
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
        row = (
            r_squared(poses[1::2] @ matrix.T, turned_poses[1::2]),
            r_squared(poses[1::2], turned_poses[1::2]),
            float((turned_activations - activations).abs()[1::2].mean()),
            proportion(is_agreement[1::2]),
        )
        rows.append(row)
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
