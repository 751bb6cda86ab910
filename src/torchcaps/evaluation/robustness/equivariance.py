"""Do poses move with the image, and do activations stay?

A pose is equivariant if a transformation of the image moves it by a linear map that is the same for all images, and
invariant if it does not move at all. Capsules are meant to have equivariant poses and invariant activations. The
figures are shares of the variance of the moved poses: what a learned map, and what no map, explains on images that the
map was not learned on. Karel Lenc, Andrea Vedaldi, CVPR 2015, arXiv 1411.5908, learn such maps for features of CNNs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.base import (
    BATCH,
    EvaluationResult,
    Images,
    Labels,
    capsule_model,
    check_labeled,
    check_labels,
)
from torchcaps.evaluation.forward import batches, evaluating, proportion
from torchcaps.evaluation.robustness.affine import transform_images

MOST_NOISE = 1e-12
RIDGE = 1e-3  # for few images, and dimensions that do not vary


@dataclass(frozen=True)
class Equivariance(EvaluationResult):
    """The capsule of each image's class under transformations of the image, one figure for each amount."""

    amounts: tuple[float, ...]  # as asked for
    equivariant: tuple[
        float, ...
    ]  # R² of the linear map learned on the other images; 0 is no better than the mean
    invariant: tuple[float, ...]  # R² of the unmoved poses; 1 is invariant. It may be far below 0
    activation_change: tuple[float, ...]  # mean absolute difference of all activations
    agreement: tuple[float, ...]  # share of images whose answer stays
    num_samples: int  # images that the figures are of


def equivariance(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    rotation: Sequence[float] = (10.0, 20.0, 30.0),
    batch_size: int = BATCH,
) -> Equivariance:
    """Turn all images by so many degrees clockwise, learn how the poses of their classes move on the even ones, and
    look at the odd ones. At least four times as many images as a pose has dimensions are wanted. Raises ValueError for
    no rotation, fewer than four images, a model without capsules, or arguments that do not fit."""
    check_labeled(images, labels)
    check_range("number of images", len(images), low=4)
    check_range("number of rotations", len(rotation), low=1)
    before, still_active = _poses(model, images, labels, batch_size)
    rows = []
    for angle in rotation:
        after, active = _poses(model, transform_images(images, rotation=angle), labels, batch_size)
        moved = before[1::2] @ linear_map(before[::2], after[::2], RIDGE).T
        change = float((active - still_active).abs()[1::2].mean())
        same = proportion((active.argmax(dim=1) == still_active.argmax(dim=1))[1::2])
        rows.append(
            (r_squared(moved, after[1::2]), r_squared(before[1::2], after[1::2]), change, same)
        )
    learned, unmoved, changes, agreement = map(tuple, zip(*rows, strict=True))
    amounts = tuple(map(float, rotation))
    return Equivariance(amounts, learned, unmoved, changes, agreement, len(images) // 2)


def linear_map(
    x: Float[Tensor, "n dim"], y: Float[Tensor, "n dim"], ridge: float
) -> Float[Tensor, "dim dim"]:
    """A that minimizes `sum |A x - y|^2 + ridge S |A - I|^2`, S the sum of `|x|^2`: drawn towards the identity."""
    unit = torch.eye(x.shape[1], dtype=x.dtype)
    weight = ridge * x.square().sum()
    return torch.linalg.lstsq(
        x.T @ x + weight * unit, x.T @ y + weight * unit, driver="gelsd"
    ).solution.T


def r_squared(predicted: Float[Tensor, "n dim"], true: Float[Tensor, "n dim"]) -> float:
    """`1 - sum |predicted - true|^2 / sum |true - mean true|^2`, at most 1; 0 where `true` does not vary."""
    total = float((true - true.mean(dim=0)).square().sum())
    return 1 - float((predicted - true).square().sum()) / total if total > MOST_NOISE else 0.0


def _poses(
    model: nn.Module, images: Tensor, labels: Tensor, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Poses of the labeled capsules `[n, dim]` in float64, and all activations `[n, classes]`, on the CPU."""
    encode, poses, activations = capsule_model(model).capsules, [], []
    with evaluating(model):
        for batch, true in batches(model, images, labels, batch_size=batch_size):
            pose, activation = encode(batch)
            check_labels(true, activation.shape[1])
            poses.append(pose[torch.arange(len(true), device=pose.device), true].double().cpu())
            activations.append(activation.float().cpu())
    return torch.cat(poses), torch.cat(activations)
