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

    Means over capsules are weighted by their presence; errors are mean squared ones per pixel."""

    names: tuple[
        str, ...
    ]  # of the m numbers of a transformation: dx, dy in pixels; or the upper two rows of a matrix
    true: Float[Tensor, "n m"]  # what was done
    predicted: Float[
        Tensor, "n m"
    ]  # what all capsules say was done, each weighted by its presence in both images
    correlation: dict[
        str, float
    ]  # of the two by name, in [-1, 1]; NaN where one of them does not vary
    slope: dict[str, float]  # of the line of `predicted` over `true`; 1 would be right
    # Largest |correlation| of a predicted number with one of the others that were done, beyond what those have with
    # each other; 0 would be right.
    cross_correlation: float
    # Of the change of a capsule's pose with the change that the transformation should make to it; images weighted by
    # the capsule's presence in both.
    capsule_correlation: Float[Tensor, "capsules m"]
    capsule_slope: Float[
        Tensor, "capsules m"
    ]  # of the line through the same points; 1 for a capsule that is right
    presence: Float[Tensor, " capsules"]  # mean over images, in [0, 1]
    mean_correlation: float  # of `capsule_correlation` over capsules and over the m numbers
    mean_r2: dict[
        str, float
    ]  # by name: squares of `capsule_correlation`, mean over capsules, in [0, 1]
    slope_spread: dict[str, float]  # by name: standard deviation of `capsule_slope` over capsules
    presence_change: float  # mean of |p(target) - p(source)|, in [0, 1]; presence ought to stay
    error: float  # of the drawn targets
    copy_error: float  # of the source in place of a drawing
    moved_error: float  # of the source, itself transformed: what is lost at the border and by resampling twice
    mean_error: float  # of the mean of all targets

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
        of_each = {
            "correlation": self.correlation,
            "r2": {name: value**2 for name, value in self.correlation.items()},
            "slope": self.slope,
            "mean_capsule_r2": self.mean_r2,
            "capsule_slope_spread": self.slope_spread,
        }
        figures = {
            f"{what}_{name}": value
            for what, values in of_each.items()
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
        known = {name: value if isfinite(value) else None for name, value in figures.items()}
        return {**known, **self.extra, "num_samples": len(self.true)}


def compare_pairs(model: Any, pairs: TransformedPairs) -> dict[str, Tensor]:
    """What a model makes of pairs, `[batch, ...]` by name: poses, presences, the target, errors summed over pixels."""
    source, target, done = pairs
    before, after = model.capsules(source), model.capsules(target)
    moved: Capsules = model.move(before, done)
    drawn: Tensor = model.reconstruct(moved)
    shifts = done.dim() == 2
    matrices = shift_matrices(done, (source.shape[2], source.shape[3])) if shifts else done
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
        "true": done if shifts else done[:, :2].flatten(1),
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
    place, parts = device_of(model), []
    with evaluating(model):
        for rows in torch.arange(len(pairs.source)).split(batch_size):
            batch = (tensor[rows.to(tensor.device)].to(place) for tensor in pairs)
            parts.append(compare_pairs(model, TransformedPairs(*batch)))
    return measure_pairs(
        {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}
    )


def measure_pairs(outputs: dict[str, Tensor]) -> TransformingEvaluation:
    """The figures of all pairs by what `compare_pairs` gave for them; ValueError for fewer than two."""
    check_range("number of pairs", len(outputs["true"]), low=2)
    known = {name: values.double() for name, values in outputs.items()}
    before, after, true, target = (known[name] for name in ("before", "after", "true", "target"))
    count = true.shape[1]
    names, estimated = SHIFT if count == len(SHIFT) else AFFINE, estimated_transformations(known)
    share = (known["before_presence"] * known["after_presence"]).unsqueeze(-1)
    of_each, slopes = _line(
        (known["expected"] - before)[..., :count], (after - before)[..., :count], share
    )
    presence = (known["before_presence"].mean(dim=0) + known["after_presence"].mean(dim=0)) / 2
    moving = of_each.isfinite().all(dim=1)
    part = (presence * moving / presence[moving].sum()).unsqueeze(-1)
    r, b = (
        of_each.nan_to_num(),
        slopes.nan_to_num(),
    )  # of capsules that do not move: their part is 0
    spread = (part * (b - (part * b).sum(dim=0)).square()).sum(dim=0).sqrt()
    together, line = _line(true, estimated, torch.ones(len(true), 1, dtype=true.dtype))
    r2 = (part * r.square()).sum(dim=0)
    by_name = {"correlation": together, "slope": line, "mean_r2": r2, "slope_spread": spread}
    named: dict[str, Any] = {
        key: dict(zip(names, x.tolist(), strict=True)) for key, x in by_name.items()
    }
    named |= {
        name: float(known[name].mean() / target[0].numel())
        for name in ("error", "copy_error", "moved_error")
    }
    return TransformingEvaluation(
        names=names,
        true=true.float(),
        predicted=estimated.float(),
        cross_correlation=_crossing(true, estimated),
        capsule_correlation=of_each.float(),
        capsule_slope=slopes.float(),
        presence=presence.float(),
        **named,
        mean_correlation=float((part * r).sum(dim=0).mean()),
        presence_change=float((known["after_presence"] - known["before_presence"]).abs().mean()),
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
