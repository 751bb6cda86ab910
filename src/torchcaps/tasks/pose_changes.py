"""Do capsules know where things are? Changes of their poses against the transformation that was truly done.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011, show pictures; the figures here
put numbers to them. Only changes of pose are compared: every capsule has an origin of its own.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.base import EvaluationResult, check_images
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.functional import move_by_matrix, shift_matrices
from torchcaps.models import TransformedPairs
from torchcaps.types import Capsules

SHIFT, AFFINE = ("dx", "dy"), ("xx", "xy", "x", "yx", "yy", "y")
PRESENT = 0.01  # mean presence below which a capsule counts as dead


@dataclass(frozen=True, eq=False)
class TransformingEvaluation(EvaluationResult):
    """What poses say of known transformations, and how well the outcome is drawn.

    Means over capsules are weighted by their presence; errors are mean squared ones per pixel.

    Attributes:
        names: of the m numbers of a transformation: dx, dy in pixels; or the upper two rows of a
            matrix.
        true: what was done.
        predicted: what all capsules say was done, each weighted by its presence in both images.
        correlation: of the two by name, in [-1, 1]; NaN where one of them does not vary.
        slope: of the line of `predicted` over `true`; 1 would be right.
        cross_correlation: largest |correlation| of a predicted number with one of the others that
            were done, beyond what those have with each other; 0 would be right.
        capsule_correlation: of the change of a capsule's pose with the change that the
            transformation should make to it; images weighted by its presence in both.
        capsule_slope: of the line through the same points; 1 for a capsule that is right.
        presence: mean over images, in [0, 1].
        mean_correlation: of `capsule_correlation` over capsules and over the m numbers.
        mean_r2: by name: squares of `capsule_correlation`, mean over capsules, in [0, 1].
        slope_spread: by name: standard deviation of `capsule_slope` over capsules.
        presence_change: mean of |p(target) - p(source)|, in [0, 1]; presence ought to stay.
        error: of the drawn targets.
        copy_error: of the source in place of a drawing.
        moved_error: of the source, itself transformed: what is lost at the border and by
            resampling twice.
        mean_error: of the mean of all targets.
    """

    names: tuple[str, ...]
    true: Float[Tensor, "n m"]
    predicted: Float[Tensor, "n m"]
    correlation: dict[str, float]
    slope: dict[str, float]
    cross_correlation: float
    capsule_correlation: Float[Tensor, "capsules m"]
    capsule_slope: Float[Tensor, "capsules m"]
    presence: Float[Tensor, " capsules"]
    mean_correlation: float
    mean_r2: dict[str, float]
    slope_spread: dict[str, float]
    presence_change: float
    error: float
    copy_error: float
    moved_error: float
    mean_error: float

    @property
    def alive(self) -> int:
        """Capsules that are present in more than one image of a hundred, on average."""
        return int((self.presence > PRESENT).sum())

    @property
    def summary(self) -> str:
        """`correlation of estimated and true dx 0.989, dy 0.988 on 1,000 pairs`."""
        estimated = ", ".join(f"{name} {value:.3f}" for name, value in self.correlation.items())
        return f"correlation of estimated and true {estimated} on {len(self.true):,} pairs"

    def to_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON; None where there is no number, as for a correlation with what never varies."""
        by_name = {
            "correlation": self.correlation,
            "r2": {name: value**2 for name, value in self.correlation.items()},
            "slope": self.slope,
            "mean_capsule_r2": self.mean_r2,
            "capsule_slope_spread": self.slope_spread,
        }
        figures = {
            f"{kind}_{name}": value
            for kind, values in by_name.items()
            for name, value in values.items()
        }
        figures |= {
            "mean_capsule_correlation": self.mean_correlation,
            "cross_correlation": self.cross_correlation,
            "presence_change": self.presence_change,
            "capsules_alive": self.alive,
            "pixel_mse": self.error,
            "copy_mse": self.copy_error,
            "moved_mse": self.moved_error,
            "mean_mse": self.mean_error,
        }
        finite = {name: value if isfinite(value) else None for name, value in figures.items()}
        return {**finite, **self.extra, "num_samples": len(self.true)}


def compare_pairs(model: Any, pairs: TransformedPairs) -> dict[str, Tensor]:
    """What a model makes of pairs, `[batch, ...]` by name: poses, presences, the target, errors summed over pixels."""
    source, target, done = pairs
    before = model.capsules(source)
    after = model.capsules(target)
    moved: Capsules = model.move(before, done)
    drawn: Tensor = model.reconstruct(moved)
    are_shifts = done.dim() == 2
    height, width = source.shape[2:]
    matrices = shift_matrices(done, (height, width)) if are_shifts else done
    images = {"error": drawn, "copy_error": source, "moved_error": move_by_matrix(source, matrices)}
    errors = {
        name: (image.float() - target).square().flatten(1).sum(dim=1)
        for name, image in images.items()
    }
    return {
        "before": before.pose,
        "before_presence": before.activation,
        "after": after.pose,
        "after_presence": after.activation,
        "expected": moved.pose,
        "target": target,
        "true": done if are_shifts else done[:, :2].flatten(1),
        **errors,
    }


def estimated_transformations(outputs: dict[str, Tensor]) -> Float[Tensor, "n m"]:
    """What all capsules together say was done, each weighted by its presence in both images of a pair."""
    before = Capsules(outputs["before"].double(), outputs["before_presence"].double())
    after = Capsules(outputs["after"].double(), outputs["after_presence"].double())
    weight = before.activation * after.activation
    if outputs["true"].shape[1] == len(SHIFT):  # the mean change of position
        return ((after.pose - before.pose) * weight.unsqueeze(-1)).sum(dim=1) / weight.sum(
            dim=1, keepdim=True
        )
    return _matrix(before, after, weight)


def correlation(true: Tensor, estimated: Tensor) -> Float[Tensor, " m"]:
    """Correlation of each number of transformations with its estimate; NaN where one of them does not vary."""
    return _line(true.double(), estimated, torch.ones(len(true), 1, dtype=torch.float64))[0]


def evaluate_transforming(
    model: nn.Module, pairs: TransformedPairs, *, batch_size: int = 256
) -> TransformingEvaluation:
    """Measure a `TransformingAutoencoder`, whose mode is restored afterwards, on pairs that it was not trained with
    (see `transformed_pairs`). ValueError for fewer than two pairs, or pairs that the model cannot take."""
    check_images(pairs.source)
    check_range("batch_size", batch_size, low=1)
    device = device_of(model)
    parts = []
    with evaluating(model):
        for indices in torch.arange(len(pairs.source)).split(batch_size):
            batch = (tensor[indices.to(tensor.device)].to(device) for tensor in pairs)
            parts.append(compare_pairs(model, TransformedPairs(*batch)))
    return measure_pairs(
        {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}
    )


def measure_pairs(outputs: dict[str, Tensor]) -> TransformingEvaluation:
    """The figures of all pairs by what `compare_pairs` gave for them; ValueError for fewer than two."""
    check_range("number of pairs", len(outputs["true"]), low=2)
    values = {name: tensor.double() for name, tensor in outputs.items()}
    before, after, true, target = (values[name] for name in ("before", "after", "true", "target"))
    count = true.shape[1]
    names = SHIFT if count == len(SHIFT) else AFFINE
    estimated = estimated_transformations(values)
    correlations, slopes = _line(true, estimated, torch.ones(len(true), 1, dtype=true.dtype))

    # Of each capsule, images weighted by its presence in both.
    weight = (values["before_presence"] * values["after_presence"]).unsqueeze(-1)
    expected_change = (values["expected"] - before)[..., :count]
    of_capsules, slopes_of_capsules = _line(expected_change, (after - before)[..., :count], weight)

    # Over capsules, weighted by their presence; those that do not move have no part in it.
    presence = (values["before_presence"].mean(dim=0) + values["after_presence"].mean(dim=0)) / 2
    moves = of_capsules.isfinite().all(dim=1)
    part = (presence * moves / presence[moves].sum()).unsqueeze(-1)
    r = of_capsules.nan_to_num()
    b = slopes_of_capsules.nan_to_num()
    spread = (part * (b - (part * b).sum(dim=0)).square()).sum(dim=0).sqrt()
    by_name = {
        "correlation": correlations,
        "slope": slopes,
        "mean_r2": (part * r.square()).sum(dim=0),
        "slope_spread": spread,
    }
    figures: dict[str, Any] = {
        key: dict(zip(names, x.tolist(), strict=True)) for key, x in by_name.items()
    }
    for name in ("error", "copy_error", "moved_error"):
        figures[name] = float(values[name].mean() / target[0].numel())
    return TransformingEvaluation(
        names=names,
        true=true.float(),
        predicted=estimated.float(),
        cross_correlation=_crossing(true, estimated),
        capsule_correlation=of_capsules.float(),
        capsule_slope=slopes_of_capsules.float(),
        presence=presence.float(),
        **figures,
        mean_correlation=float((part * r).sum(dim=0).mean()),
        presence_change=float((values["after_presence"] - values["before_presence"]).abs().mean()),
        mean_error=float((target - target.mean(dim=0)).square().mean()),
    )


def _crossing(true: Tensor, predicted: Tensor) -> float:
    """What correlation a prediction has with the other true numbers beyond that through its own one; the largest."""
    count = true.shape[1]
    both = torch.corrcoef(torch.cat([true, predicted], dim=1).T)
    among, across = both[:count, :count], both[count:, :count]  # across: predicted x true
    beyond = across - across.diagonal().unsqueeze(-1) * among
    return float(beyond.fill_diagonal_(0.0).abs().max())


def _matrix(before: Capsules, after: Capsules, weight: Tensor) -> Tensor:
    """The upper two rows of the matrix T that makes `T A(source)` nearest to `A(target)`, `[n, 6]`: least squares."""
    first, second = (pose.unflatten(-1, (3, 3)) for pose in (before.pose, after.pose))
    crossed = torch.einsum("bk,bkij,bklj->bil", weight, second, first)
    squared = torch.einsum("bk,bkij,bklj->bil", weight, first, first)
    return (crossed @ torch.linalg.pinv(squared))[:, :2].flatten(1)


def _line(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted correlation of x and y over the first axis, and slope of y on x; NaN where x or y does not vary."""
    total = weight.sum(dim=0)
    x, y = (values - (values * weight).sum(dim=0) / total for values in (x, y))
    xx, xy, yy = ((a * b * weight).sum(dim=0) for a, b in ((x, x), (x, y), (y, y)))
    return xy / (xx * yy).sqrt(), xy / xx
