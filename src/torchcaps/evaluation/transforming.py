"""Does a transforming auto-encoder know where things are? Its poses against the transformation that was truly done.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011, show pictures; the figures here
put numbers to them. Only changes of pose are compared: every capsule has an origin of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range
from torchcaps.evaluation.checks import check_images
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.functional import move_by_matrix, shift_matrices
from torchcaps.models import TransformedPairs, TransformingAutoencoder
from torchcaps.types import Capsules

SHIFT, AFFINE = ("dx", "dy"), ("xx", "xy", "x", "yx", "yy", "y")
PRESENT = 0.01  # mean presence below which a capsule counts as dead


@dataclass(frozen=True, eq=False)
class TransformingEvaluation:
    """What the poses of a transforming auto-encoder say of known transformations, and how well it draws.

    Attributes:
        names: of the m numbers of a transformation: dx, dy in pixels; or the upper two rows of a matrix.
        true: `[n, m]`, what was done.
        predicted: `[n, m]`, what all capsules together say was done, each weighted by its presence in both images.
        correlation: name -> correlation of the two, in [-1, 1]; NaN where one of them does not vary.
        slope: name -> slope of the line of `predicted` over `true`; 1 would be right.
        cross_correlation: largest |correlation| of a predicted number with one of the others that were done, beyond
            what those have with each other; 0 would be right.
        capsule_correlation: `[capsules, m]`, of the change of a capsule's pose with the change that the transformation
            should make to it; images weighted by the capsule's presence in both.
        capsule_slope: `[capsules, m]`, of the line through the same points; 1 for a capsule that is right.
        presence: `[capsules]`, mean over images, in [0, 1].
        mean_correlation: of `capsule_correlation` over capsules, weighted by presence, and over the m numbers.
        mean_r2: name -> squares of `capsule_correlation`, mean over capsules weighted by presence, in [0, 1].
        slope_spread: name -> standard deviation of `capsule_slope` over capsules, weighted by presence.
        presence_change: mean of |p(target) - p(source)|, in [0, 1]; presence ought to stay.
        error: mean squared error per pixel of the drawn targets.
        copy_error: the same for the source in place of a drawing.
        moved_error: the same for the source, itself transformed: what is lost at the border and by resampling twice.
        mean_error: the same for the mean of all targets.
        drawn: `[n, channels, height, width]`, on the CPU.
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
    drawn: Float[Tensor, "n channels height width"]

    @property
    def alive(self) -> int:
        """Capsules that are present in more than one image of a hundred, on average."""
        return int((self.presence > PRESENT).sum())

    def to_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        return {
            "correlation": self.correlation,
            "r2": {name: value**2 for name, value in self.correlation.items()},
            "slope": self.slope,
            "cross_correlation": self.cross_correlation,
            "mean_capsule_correlation": self.mean_correlation,
            "mean_capsule_r2": self.mean_r2,
            "capsule_slope_spread": self.slope_spread,
            "presence_change": self.presence_change,
            "capsules_alive": self.alive,
            "error": self.error,
            "copy_error": self.copy_error,
            "moved_error": self.moved_error,
            "mean_error": self.mean_error,
            "num_samples": len(self.true),
        }


def evaluate_transforming(
    model: TransformingAutoencoder, pairs: TransformedPairs, *, batch_size: int = 256
) -> TransformingEvaluation:
    """Measure a transforming auto-encoder on pairs of images that it was not trained with.

    Args:
        model: its mode is restored afterwards.
        pairs: at least two; see `training.transformed_pairs`.
        batch_size: pairs at a time, at least 1.

    Raises:
        ValueError: for fewer than two pairs, or pairs that the model cannot take.
    """
    check_images(pairs.source)
    check_range("number of pairs", len(pairs.source), low=2)
    check_range("batch_size", batch_size, low=1)
    place, parts = device_of(model), []
    with evaluating(model):
        for rows in torch.arange(len(pairs.source)).split(batch_size):
            source, target, done = (tensor[rows.to(tensor.device)].to(place) for tensor in pairs)
            before, after = model.encode(source), model.encode(target)
            moved = model.move(before, done)
            parts.append((*before, *after, moved.pose, model.decode(moved)))
    joined = [torch.cat(tensors).double().cpu() for tensors in zip(*parts, strict=True)]
    before, after, expected = Capsules(*joined[:2]), Capsules(*joined[2:4]), joined[4]
    known = TransformedPairs(*(tensor.double().cpu() for tensor in pairs))
    return _measured(model.pose, known, before, after, expected, joined[5])


def _measured(
    pose: str, pairs: TransformedPairs, before: Capsules, after: Capsules, expected: Tensor, drawn: Tensor
) -> TransformingEvaluation:
    names = SHIFT if pose == "translation" else AFFINE
    count = len(names)
    weight = before.activation * after.activation
    true = pairs.transformation if pose == "translation" else pairs.transformation[:, :2].flatten(1)
    predicted = _shift(before, after, weight) if pose == "translation" else _matrix(before, after, weight)
    share = weight.unsqueeze(-1)
    wanted, found = ((end - before.pose)[..., :count] for end in (expected, after.pose))
    correlation, slope = _line(wanted, found, share)
    presence = (before.activation.mean(dim=0) + after.activation.mean(dim=0)) / 2
    moving = correlation.isfinite().all(dim=1)
    part = (presence * moving / presence[moving].sum()).unsqueeze(-1)
    r, b = correlation.nan_to_num(), slope.nan_to_num()  # of capsules that do not move: their part is 0
    spread = (part * (b - (part * b).sum(dim=0)).square()).sum(dim=0).sqrt()
    together, line = _line(true, predicted, torch.ones(len(true), 1, dtype=true.dtype))
    matrices = (
        shift_matrices(true, (pairs.source.shape[2], pairs.source.shape[3]))
        if pose == "translation"
        else pairs.transformation
    )
    return TransformingEvaluation(
        names=names, true=true.float(), predicted=predicted.float(), correlation=_named(names, together),
        slope=_named(names, line), cross_correlation=_crossing(true, predicted),
        capsule_correlation=correlation.float(), capsule_slope=slope.float(), presence=presence.float(),
        mean_correlation=float((part * r).sum(dim=0).mean()), mean_r2=_named(names, (part * r.square()).sum(dim=0)),
        slope_spread=_named(names, spread),
        presence_change=float((after.activation - before.activation).abs().mean()),
        error=_error(drawn, pairs.target), copy_error=_error(pairs.source, pairs.target),
        moved_error=_error(move_by_matrix(pairs.source, matrices), pairs.target),
        mean_error=_error(pairs.target.mean(dim=0), pairs.target), drawn=drawn.float(),
    )  # fmt: skip


def _named(names: tuple[str, ...], values: Tensor) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _crossing(true: Tensor, predicted: Tensor) -> float:
    """What correlation a prediction has with the other true numbers beyond that through its own one; the largest."""
    count = true.shape[1]
    both = torch.corrcoef(torch.cat([true, predicted], dim=1).T)
    among, across = both[:count, :count], both[count:, :count]  # across: predicted x true
    beyond = across - across.diagonal().unsqueeze(-1) * among
    return float(beyond.fill_diagonal_(0.0).abs().max())


def _shift(before: Capsules, after: Capsules, weight: Tensor) -> Tensor:
    """The mean change of position, `[n, 2]`."""
    return ((after.pose - before.pose) * weight.unsqueeze(-1)).sum(dim=1) / weight.sum(dim=1, keepdim=True)


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


def _error(images: Tensor, target: Tensor) -> float:
    return float((images - target).square().mean())
