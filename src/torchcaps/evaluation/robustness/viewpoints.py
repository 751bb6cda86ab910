"""Novel viewpoints at equal familiar accuracy.

Geoffrey Hinton, Sara Sabour, Nicholas Frosst, "Matrix capsules with EM routing", ICLR 2018,
section 6.1: two models are compared on views that neither was trained with, at the point of
training where both do equally well on the familiar ones. The better model on familiar views would
otherwise win on novel ones for that alone. Choose the target on validation images, not on test
ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.base import EvaluationResult

Accuracies = Sequence[float]
"""In [0, 1], after each epoch."""
Curves = tuple[Accuracies, Accuracies]
"""On familiar and on novel views."""


@dataclass(frozen=True)
class Matched:
    """One model at the point where its familiar accuracy meets the target.

    Accuracies are in [0, 1].

    Attributes:
        epoch: number of the epoch, from 0, whose familiar accuracy is nearest to the target; the
            first of equals.
        familiar: accuracy on familiar views in that epoch.
        novel: accuracy on novel views in that epoch.
        interpolated: accuracy on novel views where familiar accuracy first crosses the target,
            between epochs; None if it never does.
    """

    epoch: int
    familiar: float
    novel: float
    interpolated: float | None

    @property
    def novel_at_target(self) -> float:
        """Accuracy on novel views, between epochs where it is known there."""
        return self.novel if self.interpolated is None else self.interpolated


@dataclass(frozen=True)
class ViewpointComparison(EvaluationResult):
    """Two models on novel views, at equal accuracy on familiar ones.

    Attributes:
        target: familiar accuracy of both, in [0, 1].
        first: the model in question.
        second: the baseline.
        gain: novel accuracy of the first minus that of the second.
        gap_closed: share of the baseline's loss on novel views that the first model gains; None if
            it loses nothing.
        interpolated: whether both models cross the target.
    """

    target: float
    first: Matched
    second: Matched
    gain: float
    gap_closed: float | None
    interpolated: bool

    derived = ("verdict",)

    @property
    def verdict(self) -> str:
        """One sentence."""
        return (
            f"At {self.target:.1%} on familiar views, the first model gains {100 * self.gain:+.1f} "
            "points on novel ones."
        )


def match_familiar(familiar: Accuracies, novel: Accuracies, target: float) -> Matched:
    """Return where in its training a model has the target accuracy on familiar views.

    Args:
        familiar: accuracy on familiar views after each epoch, in [0, 1].
        novel: accuracy on novel views after each epoch, in [0, 1].
        target: accuracy on familiar views, in [0, 1].

    Raises:
        ArgumentError: for lists that do not fit, or figures outside [0, 1].
    """
    check_range("number of familiar accuracies", len(familiar), low=1)
    if len(familiar) != len(novel):
        raise ArgumentError(
            "novel", f"expected {len(familiar)} epochs, as in familiar, got {len(novel)}"
        )
    for name, accuracies in {"familiar": familiar, "novel": novel, "target": [target]}.items():
        for accuracy in accuracies:
            check_range(name, accuracy, low=0, high=1)
    epoch = min(range(len(familiar)), key=lambda epoch: abs(familiar[epoch] - target))
    return Matched(
        epoch, float(familiar[epoch]), float(novel[epoch]), _crossing(familiar, novel, target)
    )


def compare_viewpoints(first: Curves, second: Curves) -> ViewpointComparison:
    """Compare two models at equal accuracy on familiar views.

    It is the lower of their best ones, which both reach. A model that is better in all its epochs
    is taken at the nearest one.

    Args:
        first: accuracies of the model in question.
        second: accuracies of the baseline; the number of epochs may differ.

    Returns:
        Both models at that accuracy, and the gain of the first on novel views.

    Raises:
        ArgumentError: for lists that do not fit, or figures outside [0, 1].
    """
    target = min(max(familiar, default=0.0) for familiar, _ in (first, second))
    model = match_familiar(*first, target)
    baseline = match_familiar(*second, target)
    gain = model.novel_at_target - baseline.novel_at_target
    familiar = baseline.familiar if baseline.interpolated is None else target
    loss = familiar - baseline.novel_at_target
    return ViewpointComparison(
        target=target,
        first=model,
        second=baseline,
        gain=gain,
        gap_closed=gain / loss if loss > 0 else None,
        interpolated=None not in (model.interpolated, baseline.interpolated),
    )


def _crossing(familiar: Accuracies, novel: Accuracies, target: float) -> float | None:
    """Return the novel accuracy where familiar accuracy first meets the target; None: never."""
    for epoch, accuracy in enumerate(familiar):
        if accuracy == target:
            return float(novel[epoch])
        if epoch and (familiar[epoch - 1] - target) * (accuracy - target) < 0:
            part = (target - familiar[epoch - 1]) / (accuracy - familiar[epoch - 1])
            return float(novel[epoch - 1] + part * (novel[epoch] - novel[epoch - 1]))
    return None
