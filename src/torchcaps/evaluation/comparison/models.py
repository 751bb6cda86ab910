"""Is one model better than another? Two models on the same test images.

There are three answers: one is better (McNemar's test), both are equally good within a margin (an equivalence test), or
the images do not decide; then the comparison says how large a difference must be for so many images to show it. That no
difference was found never means that there is none. Compare a capsule network with a plain network of equal size that
was trained in the same way, and with itself under uniform coupling; two methods by several runs each (`compare_runs`),
and never the best of several seeds with a mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.accuracy.classification import Evaluation
from torchcaps.evaluation.base import Figures
from torchcaps.evaluation.comparison.exact import LEVEL, MARGIN, equivalence_test, mcnemar, smallest_visible

Outcome = Literal["first", "second", "equivalent", "undecided"]


class Compared(Figures):
    """The outcome of a comparison and its words; the figures are those of the dataclass below."""

    derived = ("outcome", "verdict")
    words: ClassVar[tuple[str, str, str, str]]
    """What is compared, what it is compared by, where one of the two is better, and on what sample."""
    difference: float
    interval: tuple[float, float]
    p_value: float
    margin: float
    equivalence_p: float
    visible: float | None

    @property
    def outcome(self) -> Outcome:
        """Which is better at level 0.05; else "equivalent" within the margin, at the same level; else "undecided".

        The two tests reject hypotheses that exclude each other, so that at most 5 % of outcomes claim something wrong.
        """
        if self.p_value < LEVEL:
            return "first" if self.difference > 0 else "second"
        return "equivalent" if self.equivalence_p < LEVEL else "undecided"

    @property
    def evidence(self) -> str:
        """The figures behind the outcome, as words that go into brackets: the p-value is the one that counts for it."""
        low, high = (100 * bound for bound in self.interval)
        same = self.outcome == "equivalent"
        p = f"{self.equivalence_p:.2g} for a larger difference" if same else f"{self.p_value:.2g}"
        return f"{100 * self.difference:+.2f} points, 95 % from {low:+.2f} to {high:+.2f}, p = {p}"

    @property
    def power(self) -> str:
        """One sentence: the smallest difference that would have been seen."""
        where = self.words[3]
        if self.visible is None:
            return f"{where}, no difference would be seen, however large."
        least = points(self.visible)
        return f"{where}, only a difference of {least} or more is seen in 80 % of tries; a smaller one may be there."

    @property
    def verdict(self) -> str:
        """One sentence; where nothing is decided, a second one on what would have been seen."""
        sides, by, where, _ = self.words
        within = f"equally good within {points(self.margin)}"
        match self.outcome:
            case "equivalent":
                return f"The two {sides} are {within} ({self.evidence})."
            case "undecided":
                so = f"These {by} do not tell the two {sides} apart, nor show that they are {within}"
                return f"{so} ({self.evidence}). {self.power}"
            case better:
                little = f", by less than {points(self.margin)}" if self.equivalence_p < LEVEL else ""
                return f"The {better} {sides[:-1]} is better {where}{little} ({self.evidence})."


@dataclass(frozen=True)
class Comparison(Compared):
    """Two models on the same images; accuracies, differences and the margin are in [0, 1].

    Attributes:
        first: accuracy of the model in question.
        second: accuracy of the baseline.
        difference: first - second.
        interval: (low, high), of the difference: 95 % of bootstrap resamples of the images lie within. It has no width
            where no image tells the models apart; see `equivalence_p` then.
        only_first: images that only the first gets right.
        only_second: images that only the second gets right.
        p_value: of McNemar's exact test that both are equally good.
        num_samples: n.
        margin: the smallest difference that matters.
        equivalence_p: of the exact test that they differ by the margin or more; see `equivalence_test`.
        visible: the smallest difference that McNemar's test at level 0.05 sees on 80 % of samples of n images, at the
            observed share of images that tell the models apart; None if it sees none. See `smallest_visible`.
    """

    first: float
    second: float
    difference: float
    interval: tuple[float, float]
    only_first: int
    only_second: int
    p_value: float
    num_samples: int
    margin: float
    equivalence_p: float
    visible: float | None

    words = ("models", "images", "on these images", "On so many images")

    @property
    def same(self) -> bool:
        """Whether both are right on the same images."""
        return self.only_first == self.only_second == 0

    @property
    def evidence(self) -> str:
        """The figures behind the outcome, as words that go into brackets."""
        return f"p = {self.equivalence_p:.2g} for a larger difference" if self.same else super().evidence

    @property
    def verdict(self) -> str:
        """One sentence; where nothing is decided, a second one on what would have been seen."""
        if not self.same:
            return super().verdict
        alike = f"give the same answers, right or wrong, on all {self.num_samples:,} images"
        within = f"equally good within {points(self.margin)} ({self.evidence})."
        if self.outcome == "equivalent":
            return f"The two models {alike}, and are {within}"
        return f"The two models {alike}; these do not show that they are {within} {self.power}"

    def table(self) -> list[tuple[str, ...]]:
        """Accuracies as text: a heading and a row for each model."""
        rows = (("first", self.first, self.only_first), ("second", self.second, self.only_second))
        cells = [(name, f"{100 * accuracy:.2f} %", str(alone)) for name, accuracy, alone in rows]
        return [("model", "accuracy", "right alone"), *cells]


def compare_evaluations(
    first: Evaluation, second: Evaluation, *, margin: float = MARGIN, resamples: int = 10_000, seed: int = 0
) -> Comparison:
    """Two evaluations on the same images in the same order.

    Args:
        first: of the model in question.
        second: of the baseline.
        margin: the smallest difference in accuracy that matters, in (0, 1); by default one point. Choose it before you
            look: one point is little at 90 % accuracy, and more than all there is to gain at 99.4 %.
        resamples: of the bootstrap, at least 100.
        seed: of the bootstrap.

    Raises:
        ValueError: for evaluations on other images, as far as their labels show, a margin out of range, or too few
            resamples.
    """
    check_same_labels(first, second, "second")
    return compare_answers(right_of(first), right_of(second), margin=margin, resamples=resamples, seed=seed)


def compare_answers(
    first: Bool[Tensor, " n"], second: Bool[Tensor, " n"], *,
    margin: float = MARGIN, resamples: int = 10_000, seed: int = 0,
) -> Comparison:  # fmt: skip
    """`compare_evaluations` for answers that are known to be right or wrong.

    Args:
        first: `[n]` booleans, whether the model in question is right; n at least 1.
        second: the same of the baseline, on the same images.
        margin: the smallest difference in accuracy that matters, in (0, 1).
        resamples: of the bootstrap, at least 100.
        seed: of the bootstrap.

    Raises:
        ValueError: for shapes that do not fit, a margin out of range, or too few resamples.
    """
    check_shape("first", first, ("n",))
    check_shape("second", second, ("n",), n=len(first))
    check_range("number of images", len(first), low=1)
    check_range("resamples", resamples, low=100)
    n, one, two = len(first), int((first & ~second).sum()), int((second & ~first).sum())
    # Resampling images with replacement draws the three kinds of them from a multinomial distribution.
    drawn = np.random.default_rng(seed).multinomial(n, [one / n, two / n, (n - one - two) / n], size=resamples)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / n, [0.025, 0.975])
    return Comparison(
        first=float(first.double().mean()), second=float(second.double().mean()), difference=(one - two) / n,
        interval=(float(low), float(high)), only_first=one, only_second=two, p_value=mcnemar(one, two), num_samples=n,
        margin=margin, equivalence_p=equivalence_test(one, two, n, margin=margin),
        visible=smallest_visible(n, (one + two) / n),
    )  # fmt: skip


def right_of(evaluation: Evaluation) -> Bool[Tensor, " n"]:
    """Which of its images were recognised."""
    return evaluation.predictions == evaluation.labels


def check_same_labels(first: Evaluation, other: Evaluation, argument: str) -> None:
    """Raise ValueError, in the name of `argument`, unless `other` has the labels of `first`."""
    if not torch.equal(first.labels, other.labels):
        raise ValueError(
            f"{argument}: expected the labels of first, image for image, "
            f"got {len(other.labels)} labels that are not those {len(first.labels)}"
        )


def points(difference: float) -> str:
    """A difference in accuracy in words: 0.01 is "1 point"."""
    value = f"{100 * difference:.2g}"
    return f"{value} point{'' if value == '1' else 's'}"
