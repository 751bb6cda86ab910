"""Novel viewpoints at equal familiar accuracy.

Geoffrey Hinton, Sara Sabour, Nicholas Frosst, "Matrix capsules with EM routing", ICLR 2018, section 6.1: two models
are compared on views that neither was trained with, at the point of training where both do equally well on the
familiar ones. The better model on familiar views would otherwise win on novel ones for that alone. Choose the target
on validation images, not on test ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.base import EvaluationResult


@dataclass(frozen=True)
class Matched:
    """One model at the point where its familiar accuracy meets the target; accuracies are in [0, 1]."""

    epoch: int  # index of the epoch, from 0, whose familiar accuracy is nearest to the target; the first of equals
    familiar: float  # accuracy on familiar views in that epoch
    novel: float  # accuracy on novel views in that epoch
    interpolated: (
        float | None
    )  # the same where familiar accuracy first crosses the target, between epochs; None: never

    def taken(self, interpolated: bool) -> float:
        """Accuracy on novel views, between epochs if asked for and known."""
        return self.interpolated if interpolated and self.interpolated is not None else self.novel


@dataclass(frozen=True)
class ViewpointComparison(EvaluationResult):
    """Two models on novel views, at equal accuracy on familiar ones."""

    target: float  # the familiar accuracy both are taken at
    first: Matched  # the model in question
    second: Matched  # the baseline
    gain: float  # novel accuracy of the first minus that of the second, interpolated where both can be
    gap_closed: (
        float | None
    )  # share of what the baseline loses on novel views that is gained; None if it loses nothing
    interpolated: bool  # whether `gain` is between interpolated figures

    derived = ("verdict",)

    @property
    def first_taken(self) -> float:
        """Novel accuracy of the first model that `gain` is made of."""
        return self.first.taken(self.interpolated)

    @property
    def second_taken(self) -> float:
        """The same of the second model."""
        return self.second.taken(self.interpolated)

    @property
    def verdict(self) -> str:
        """One sentence."""
        side = (
            "better" if self.gain > 0 else "worse" if self.gain < 0 else "neither better nor worse"
        )
        return (
            f"At {self.target:.1%} on familiar views, the first model is {side} on novel ones by "
            f"{100 * abs(self.gain):.1f} points."
        )


def match_familiar(familiar: Sequence[float], novel: Sequence[float], target: float) -> Matched:
    """Where in its training a model has the target accuracy on familiar views, and what it does on novel ones there."""
    _check_figures("familiar", familiar)
    _check_figures("novel", novel)
    if len(familiar) != len(novel):
        raise ArgumentError(
            "novel", f"expected {len(familiar)} epochs, as in familiar, got {len(novel)}"
        )
    check_range("target", target, low=0, high=1)
    epoch = min(range(len(familiar)), key=lambda e: abs(familiar[e] - target))
    return Matched(
        epoch, float(familiar[epoch]), float(novel[epoch]), _crossing(familiar, novel, target)
    )


def compare_viewpoints(
    first: tuple[Sequence[float], Sequence[float]], second: tuple[Sequence[float], Sequence[float]]
) -> ViewpointComparison:
    """Two models at equal accuracy on familiar views: the lower of their best ones, which both reach. Each gives
    (familiar, novel) accuracies in [0, 1] after each epoch; the first is the model in question, and their numbers of
    epochs may differ. Raises ValueError for lists that do not fit, or figures outside [0, 1]."""
    for name, (familiar, _) in (("first", first), ("second", second)):
        _check_figures(f"{name} familiar", familiar)
    goal = min(max(first[0]), max(second[0]))
    one, two = match_familiar(*first, goal), match_familiar(*second, goal)
    exact = one.interpolated is not None and two.interpolated is not None
    base = two.taken(exact)
    lost, gain = (goal if exact else two.familiar) - base, one.taken(exact) - base
    return ViewpointComparison(goal, one, two, gain, gain / lost if lost > 0 else None, exact)


def _crossing(familiar: Sequence[float], novel: Sequence[float], target: float) -> float | None:
    for epoch, value in enumerate(familiar):
        if value == target:
            return float(novel[epoch])
        if epoch and (familiar[epoch - 1] - target) * (value - target) < 0:
            part = (target - familiar[epoch - 1]) / (value - familiar[epoch - 1])
            return float(novel[epoch - 1] + part * (novel[epoch] - novel[epoch - 1]))
    return None


def _check_figures(argument: str, values: Sequence[float]) -> None:
    check_range(f"number of {argument} accuracies", len(values), low=1)
    for value in values:
        if not 0 <= value <= 1:  # NaN is not either
            raise ArgumentError(argument, f"expected accuracies in [0, 1], got {value}")
