"""Do capsules know where things are? Changes of their poses against known transformations.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011, show
pictures; the figures here put numbers to them. Only changes of pose are compared: every capsule has
an origin of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.base import MetricResult, check_images
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.functional import move_by_matrix, shift_matrices
from torchcaps.models import TransformedPairs
from torchcaps.tasks._base import join_outputs
from torchcaps.types import Capsules

SHIFT = ("dx", "dy")
AFFINE = ("xx", "xy", "x", "yx", "yy", "y")
MIN_PRESENCE = 0.01  # mean presence below which a capsule counts as dead


@dataclass(frozen=True, eq=False)
class TransformingEvaluation(MetricResult):
    """What poses say of known transformations, and how well the outcome is drawn.

    Means over capsules are weighted by their presence; errors are mean squared ones per pixel. Of
    each number N of a transformation (see `names`), `figures` holds:

    - "correlation_N" of `true` and `predicted`, in [-1, 1]; NaN where one of them does not vary;
      "r2_N", its square; "slope_N", of the line of `predicted` over `true`, of which 1 is right.
    - "mean_capsule_r2_N", of squares of `capsule_correlation` over capsules, in [0, 1];
      "capsule_slope_spread_N", the standard deviation of `capsule_slope` over capsules.

    And of all of them:

    - "mean_capsule_correlation", of `capsule_correlation` over capsules and numbers.
    - "cross_correlation": the largest |correlation| of a predicted number with one of the others
      that were done, beyond what those have with each other; 0 is right.
    - "presence_change": mean of |p(target) - p(source)|, in [0, 1]; presence ought to stay.
    - "capsules_alive": those present in more than one image of a hundred, on average.
    - "pixel_mse" of the drawn targets; "copy_mse" of the source in place of a drawing; "moved_mse"
      of the source, itself transformed, which is lost at the border and by resampling twice;
      "mean_mse" of the mean of all targets.

    Attributes:
        names: of the m numbers: dx, dy in pixels; or the upper two rows of a matrix.
        true: what was done.
        predicted: what all capsules say was done, each weighted by its presence in both images.
        capsule_correlation: of the change of a capsule's pose with the change that the
            transformation should make to it; images weighted by its presence in both.
        capsule_slope: of the line through the same points; 1 for a capsule that is right.
        presence: mean over images, in [0, 1].
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
        correlations = [f"{name} {self.figures[f'correlation_{name}']:.3f}" for name in self.names]
        pairs = f"{self.num_samples:,} pairs"
        return f"correlation of estimated and true {', '.join(correlations)} on {pairs}"

    def to_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON; None where there is no number."""
        return {
            name: figure if isfinite(figure) else None for name, figure in super().to_dict().items()
        }


def compare_pairs(model: Any, pairs: TransformedPairs) -> dict[str, Tensor]:
    """What a model makes of pairs, `[batch, ...]` by name.

    Poses, presences, the target, and errors summed over pixels.
    """
    source, target, transformation = pairs
    before: Capsules = model.capsules(source)
    after: Capsules = model.capsules(target)
    expected: Capsules = model.move(before, transformation)
    drawing: Tensor = model.reconstruct(expected)
    matrices = transformation
    numbers = transformation[:, :2].flatten(1)
    if transformation.dim() == 2:  # shifts
        height, width = source.shape[2:]
        matrices = shift_matrices(transformation, (height, width))
        numbers = transformation
    return {
        "before": before.pose,
        "before_presence": before.activation,
        "after": after.pose,
        "after_presence": after.activation,
        "expected": expected.pose,
        "target": target,
        "true": numbers,
        "error": _squared_error(drawing, target),
        "copy_error": _squared_error(source, target),
        "moved_error": _squared_error(move_by_matrix(source, matrices), target),
    }


def _squared_error(images: Tensor, target: Tensor) -> Float[Tensor, " batch"]:
    """Summed over pixels."""
    return (images.float() - target).square().flatten(1).sum(dim=1)


def estimated_transformations(outputs: dict[str, Tensor]) -> Float[Tensor, "n m"]:
    """What all capsules together say was done, each weighted by its presence in both images.

    The mean change of position; or, by least squares, the upper two rows of the matrix T that makes
    `T A(source)` nearest to `A(target)`.
    """
    before = outputs["before"].double()
    after = outputs["after"].double()
    weight = outputs["before_presence"].double() * outputs["after_presence"].double()
    if outputs["true"].shape[1] == len(SHIFT):
        change = ((after - before) * weight.unsqueeze(-1)).sum(dim=1)
        return change / weight.sum(dim=1, keepdim=True)
    first = before.unflatten(-1, (3, 3))
    second = after.unflatten(-1, (3, 3))
    crossed = torch.einsum("bk,bkij,bklj->bil", weight, second, first)
    squared = torch.einsum("bk,bkij,bklj->bil", weight, first, first)
    return (crossed @ torch.linalg.pinv(squared))[:, :2].flatten(1)


def correlation(true: Tensor, estimated: Tensor) -> Float[Tensor, " m"]:
    """Correlation of each number with its estimate; NaN where one of them does not vary."""
    return _fit_line(true.double(), estimated)[0]


def evaluate_transforming(
    model: nn.Module, pairs: TransformedPairs, *, batch_size: int = 256
) -> TransformingEvaluation:
    """Measure a `TransformingAutoencoder` on pairs that it was not trained with.

    Args:
        model: on any device; its mode is restored afterwards.
        pairs: see `transformed_pairs`; ValueError for fewer than two, or what it cannot take.
        batch_size: pairs at a time.
    """
    check_images(pairs.source)
    check_range("batch_size", batch_size, low=1)
    device = device_of(model)
    parts = []
    with evaluating(model):
        for start in range(0, len(pairs.source), batch_size):
            rows = slice(start, start + batch_size)
            batch = [tensor[rows].to(device) for tensor in pairs]
            parts.append(compare_pairs(model, TransformedPairs(*batch)))
    return measure_pairs(join_outputs(parts))


def measure_pairs(outputs: dict[str, Tensor]) -> TransformingEvaluation:
    """The figures of all pairs by what `compare_pairs` gave; ValueError for fewer than two."""
    check_range("number of pairs", len(outputs["true"]), low=2)
    columns = {name: tensor.double() for name, tensor in outputs.items()}
    true = columns["true"]
    before_presence = columns["before_presence"]
    after_presence = columns["after_presence"]
    presence = (before_presence.mean(dim=0) + after_presence.mean(dim=0)) / 2
    num_numbers = true.shape[1]
    names = SHIFT if num_numbers == len(SHIFT) else AFFINE
    estimated = estimated_transformations(columns)
    correlations, slopes = _fit_line(true, estimated)

    # Of each capsule, images weighted by its presence in both.
    weight = (before_presence * after_presence).unsqueeze(-1)
    expected = (columns["expected"] - columns["before"])[..., :num_numbers]
    change = (columns["after"] - columns["before"])[..., :num_numbers]
    capsule_correlations, capsule_slopes = _fit_line(expected, change, weight)

    # Over capsules, weighted by their presence; those that do not move have no part in it.
    moves = capsule_correlations.isfinite().all(dim=1)
    part = (presence * moves / presence[moves].sum()).unsqueeze(-1)
    r = capsule_correlations.nan_to_num()
    b = capsule_slopes.nan_to_num()
    spread = (part * (b - (part * b).sum(dim=0)).square()).sum(dim=0).sqrt()

    by_number = {
        "correlation": correlations,
        "r2": correlations.square(),
        "slope": slopes,
        "mean_capsule_r2": (part * r.square()).sum(dim=0),
        "capsule_slope_spread": spread,
    }
    figures = _by_name(by_number, names) | {
        "mean_capsule_correlation": float((part * r).sum(dim=0).mean()),
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


def _by_name(columns: dict[str, Tensor], names: Sequence[str]) -> dict[str, float]:
    """`kind_name` of each number of a transformation."""
    figures = {}
    for kind, numbers in columns.items():
        for name, number in zip(names, numbers.tolist(), strict=True):
            figures[f"{kind}_{name}"] = number
    return figures


def _pixel_errors(columns: dict[str, Tensor]) -> dict[str, float]:
    """Mean squared errors per pixel of the drawing, and of three things that draw nothing."""
    target = columns["target"]
    num_pixels = target[0].numel()
    return {
        "pixel_mse": float(columns["error"].mean() / num_pixels),
        "copy_mse": float(columns["copy_error"].mean() / num_pixels),
        "moved_mse": float(columns["moved_error"].mean() / num_pixels),
        "mean_mse": float((target - target.mean(dim=0)).square().mean()),
    }


def _cross_correlation(true: Tensor, predicted: Tensor) -> float:
    """The largest correlation of a predicted number with another true one.

    That through the correlations of the true numbers among themselves is taken off.
    """
    count = true.shape[1]
    table = torch.corrcoef(torch.cat([true, predicted], dim=1).T)
    true_true = table[:count, :count]
    predicted_true = table[count:, :count]
    excess = predicted_true - predicted_true.diagonal().unsqueeze(-1) * true_true
    return float(excess.fill_diagonal_(0.0).abs().max())


def _fit_line(x: Tensor, y: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weighted correlation of x and y over the first axis, and slope of y on x.

    NaN where x or y does not vary.
    """
    if weight is None:
        weight = torch.ones(len(x), 1, dtype=x.dtype)
    total = weight.sum(dim=0)
    x = x - (x * weight).sum(dim=0) / total
    y = y - (y * weight).sum(dim=0) / total
    xx = (x * x * weight).sum(dim=0)
    xy = (x * y * weight).sum(dim=0)
    yy = (y * y * weight).sum(dim=0)
    return xy / (xx * yy).sqrt(), xy / xx
