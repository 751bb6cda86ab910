"""Metrics of transforming auto-encoders: changes of poses against known transformations.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011, show
pictures; the metrics here put numbers to them.

In: a model, and pairs of an image (source) and its transformed image (target), with the
transformation, which is m numbers: a shift (dx, dy), m = 2, or the upper two rows of a 3x3 matrix,
m = 6. The model gives each capsule a pose in the source and one in the target. The change from one
to the other should be the one that the transformation makes. Only changes are compared, because
every capsule has an origin of its own. Out: a `TransformingEvaluation`.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.base import MetricResult, check_images
from torchcaps.functional import move_by_matrix, shift_matrices
from torchcaps.models import TransformedPairs
from torchcaps.tasks._base import BATCH, join_outputs
from torchcaps.transfer import device_of, evaluating

SHIFT = ("dx", "dy")  # names of the m numbers of a transformation
AFFINE = ("xx", "xy", "x", "yx", "yy", "y")
MIN_PRESENCE = 0.01  # mean presence below which a capsule counts as dead


@dataclass(frozen=True, eq=False)
class TransformingEvaluation(MetricResult):
    """How well poses follow known transformations, and how well the targets are drawn.

    Means over capsules are weighted by their presence; errors are mean squared ones per pixel. Of
    each number N of a transformation (see `names`), `figures` holds:

    - "correlation_N" of `true` and `predicted`, in [-1, 1]; NaN where one of them does not vary;
      "r2_N", its square; "slope_N", of the line of `predicted` over `true`, of which 1 is right.
    - "mean_capsule_r2_N", of squares of `capsule_correlation` over capsules, in [0, 1];
      "capsule_slope_spread_N", the standard deviation of `capsule_slope` over capsules.

    And of all of them:

    - "mean_capsule_correlation", of `capsule_correlation` over capsules and numbers.
    - "cross_correlation": the largest |correlation| of a predicted number with another true one,
      beyond the correlation of these two true numbers; 0 is right.
    - "presence_change": mean of |p(target) - p(source)|, in [0, 1]; presence ought to stay.
    - "capsules_alive": those present in more than one image of a hundred, on average.
    - "pixel_mse" of the drawn targets; "copy_mse" of the source in place of a drawing; "moved_mse"
      of the source, itself transformed, which is lost at the border and by resampling twice;
      "mean_mse" of the mean of all targets.

    Attributes:
        names: of the m numbers: dx, dy in pixels; or the upper two rows of a matrix.
        true: the transformations.
        predicted: their estimates by the poses of all capsules, see `estimated_transformations`.
        capsule_correlation: of the change of a capsule's pose with the change that the
            transformation should make to it; pairs are weighted by its presence in both images.
        capsule_slope: of the line through the same points; 1 for a capsule that is right.
        presence: of each capsule, a mean over images, in [0, 1].
    """

    names: tuple[str, ...]
    true: Float[Tensor, "n m"]
    predicted: Float[Tensor, "n m"]
    capsule_correlation: Float[Tensor, "capsules m"]
    capsule_slope: Float[Tensor, "capsules m"]
    presence: Float[Tensor, " capsules"]

    @property
    def summary(self) -> str:
        """`correlation of estimated and true dx 0.989, dy 0.988 on 1,000 pairs`."""
        correlations = ", ".join(
            f"{name} {self.figures[f'correlation_{name}']:.3f}" for name in self.names
        )
        return f"correlation of estimated and true {correlations} on {self.num_samples:,} pairs"

    def to_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON; None where there is no number."""
        return {
            name: figure if isfinite(figure) else None for name, figure in super().to_dict().items()
        }


def compare_pairs(model: Any, pairs: TransformedPairs) -> dict[str, Tensor]:
    """Poses, presences and errors of drawings of a batch of pairs.

    Args:
        model: a `TransformingAutoencoder`.
        pairs: of one batch, on the model's device.

    Returns:
        "before", "after": poses in the source and in the target, `[batch, capsules, pose_dim]`.
        "expected": poses of the source, transformed. "before_presence", "after_presence":
        `[batch, capsules]`. "target": images. "true": the transformations, `[batch, m]`.
        "pixel_error", "copy_error", "moved_error": squared differences from the target, summed over
        pixels, `[batch]`: of the drawing, of the source, and of the transformed source.
    """
    source, target, transformation = pairs
    before = model.capsules(source)
    after = model.capsules(target)
    expected = model.move(before, transformation)
    matrices = transformation
    if transformation.dim() == 2:  # shifts
        height, width = source.shape[2:]
        matrices = shift_matrices(transformation, (height, width))
    return {
        "before": before.pose,
        "before_presence": before.activation,
        "after": after.pose,
        "after_presence": after.activation,
        "expected": expected.pose,
        "target": target,
        "true": transformation[:, :2].flatten(1),
        "pixel_error": _squared_error(model.reconstruct(expected), target),
        "copy_error": _squared_error(source, target),
        "moved_error": _squared_error(move_by_matrix(source, matrices), target),
    }


def _squared_error(images: Tensor, target: Tensor) -> Float[Tensor, " batch"]:
    """Squared differences, summed over pixels."""
    return (images.float() - target).square().flatten(1).sum(dim=1)


def estimated_transformations(outputs: dict[str, Tensor]) -> Float[Tensor, "n m"]:
    """Estimate the transformations by the poses of all capsules together.

    Each capsule k has the weight w_k, its presence in the source times that in the target. A shift
    is the weighted mean change of position. A matrix T makes T A_k nearest to B_k, for the poses
    A_k in the source and B_k in the target:

        T = (sum_k w_k B_k A_k^T) (sum_k w_k A_k A_k^T)^+         weighted least squares

    Args:
        outputs: of `compare_pairs`.
    """
    before = outputs["before"].double()
    after = outputs["after"].double()
    weight = outputs["before_presence"].double() * outputs["after_presence"].double()
    if outputs["true"].shape[1] == len(SHIFT):
        change = ((after - before) * weight.unsqueeze(-1)).sum(dim=1)
        return change / weight.sum(dim=1, keepdim=True)
    source_pose = before.unflatten(-1, (3, 3))  # A
    target_pose = after.unflatten(-1, (3, 3))  # B
    cross_product = torch.einsum("bk,bkij,bklj->bil", weight, target_pose, source_pose)
    square = torch.einsum("bk,bkij,bklj->bil", weight, source_pose, source_pose)
    matrix = cross_product @ torch.linalg.pinv(square)
    return matrix[:, :2].flatten(1)  # the upper two rows


def evaluate_transforming(model: nn.Module, pairs: TransformedPairs) -> TransformingEvaluation:
    """Measure a `TransformingAutoencoder` on pairs that it was not trained with.

    Args:
        model: on any device; its mode is restored afterwards.
        pairs: see `transformed_pairs`; ValueError for fewer than two, or what it cannot take.
    """
    check_images(pairs.source)
    device = device_of(model)
    batches = zip(*(tensor.split(BATCH) for tensor in pairs), strict=True)
    with evaluating(model):
        parts = [
            compare_pairs(model, TransformedPairs(*(tensor.to(device) for tensor in batch)))
            for batch in batches
        ]
    return measure_pairs(join_outputs(parts))


def measure_pairs(outputs: dict[str, Tensor]) -> TransformingEvaluation:
    """Metrics of all pairs, by what `compare_pairs` gave; ValueError for fewer than two."""
    check_range("number of pairs", len(outputs["true"]), low=2)
    columns = {name: tensor.double() for name, tensor in outputs.items()}
    true = columns["true"]
    before_presence = columns["before_presence"]
    after_presence = columns["after_presence"]
    presence = (before_presence.mean(dim=0) + after_presence.mean(dim=0)) / 2
    names = SHIFT if true.shape[1] == len(SHIFT) else AFFINE
    estimated = estimated_transformations(columns)
    correlations, slopes = fit_line(true, estimated)
    # Each capsule by itself: its pairs are weighted by its presence in both images.
    weight = (before_presence * after_presence).unsqueeze(-1)
    expected = (columns["expected"] - columns["before"])[..., : len(names)]
    change = (columns["after"] - columns["before"])[..., : len(names)]
    capsule_correlations, capsule_slopes = fit_line(expected, change, weight)
    # Means weighted by presence. Capsules that never move do not count.
    moves = capsule_correlations.isfinite().all(dim=1)
    share = (presence * moves / presence[moves].sum()).unsqueeze(-1)  # [capsules, 1], of sum 1
    r = capsule_correlations.nan_to_num()
    slope = capsule_slopes.nan_to_num()
    slope_variance = (share * (slope - (share * slope).sum(dim=0)).square()).sum(dim=0)
    by_number = {
        "correlation": correlations,
        "r2": correlations.square(),
        "slope": slopes,
        "mean_capsule_r2": (share * r.square()).sum(dim=0),
        "capsule_slope_spread": slope_variance.sqrt(),
    }
    figures = {
        f"{metric}_{name}": number
        for metric, numbers in by_number.items()
        for name, number in zip(names, numbers.tolist(), strict=True)
    }
    figures |= {
        "mean_capsule_correlation": float((share * r).sum(dim=0).mean()),
        "cross_correlation": _cross_correlation(true, estimated),
        "presence_change": (after_presence - before_presence).abs().mean().item(),
        "capsules_alive": int((presence > MIN_PRESENCE).sum()),
        **_pixel_errors(columns),
    }
    return TransformingEvaluation(
        figures,
        num_samples=len(true),
        score="mean_capsule_correlation",
        names=names,
        true=true.float(),
        predicted=estimated.float(),
        capsule_correlation=capsule_correlations.float(),
        capsule_slope=capsule_slopes.float(),
        presence=presence.float(),
    )


def _pixel_errors(columns: dict[str, Tensor]) -> dict[str, float]:
    """Mean squared errors per pixel: of the drawing, and of three images for comparison."""
    target = columns["target"]
    num_pixels = target[0].numel()
    return {
        f"{name}_mse": float(columns[f"{name}_error"].mean() / num_pixels)
        for name in ("pixel", "copy", "moved")
    } | {"mean_mse": float((target - target.mean(dim=0)).square().mean())}


def _cross_correlation(true: Tensor, predicted: Tensor) -> float:
    """The largest correlation of a predicted number with another true one.

    What comes from the correlations of the true numbers among themselves is subtracted.

    Args:
        true: `[n, m]`.
        predicted: `[n, m]`.
    """
    correlations = torch.corrcoef(torch.cat([true, predicted], dim=1).T)  # [2m, 2m]
    true_true, predicted_true = correlations[:, : true.shape[1]].chunk(2)
    excess = predicted_true - predicted_true.diagonal().unsqueeze(-1) * true_true
    return float(excess.fill_diagonal_(0.0).abs().max())


def fit_line(x: Tensor, y: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weighted correlation of x and y over the first axis, and slope of the line of y over x.

    Both are NaN where x does not vary; where y does not, the correlation is.

    Args:
        x: `[n, ...]`.
        y: `[n, ...]`.
        weight: of each row, with the axes of x, or some of them of length 1; by default 1.

    Returns:
        The correlation and the slope, both `[...]`.
    """
    if weight is None:
        weight = x.new_ones(len(x), 1)
    total = weight.sum(dim=0)
    x = x - (x * weight).sum(dim=0) / total
    y = y - (y * weight).sum(dim=0) / total
    xx = (x * x * weight).sum(dim=0)
    xy = (x * y * weight).sum(dim=0)
    yy = (y * y * weight).sum(dim=0)
    return xy / (xx * yy).sqrt(), xy / xx
