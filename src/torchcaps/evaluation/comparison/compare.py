"""Is one model better than another, on the same test images?

There are three answers: one is better (McNemar's test), both are equally good within a margin (an
equivalence test), or the images do not decide; then the comparison names the difference that so
many images can show. That no difference was found never means that there is none. Compare a
capsule network with a plain network of equal size that was trained in the same way, and with
itself under uniform coupling; two methods by several runs each (`compare_runs`), and never the
best of several seeds with a mean.

Two methods, by several runs of each: another seed gives another network, and other test images
another accuracy; a difference between methods must stand out against both. Images are resampled
together for all runs, as all answer the same ones. There are few seeds, three to five: resampling
them, too, makes the interval too narrow (95 % intervals of three runs hold the truth in 80 to
93 %). Hence their standard deviation is estimated, and the interval widened for so few of them as
in Student's t-test.
"""

import math
from dataclasses import dataclass
from statistics import mean, stdev
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.evaluation.base import EvaluationResult, TextTable
from torchcaps.evaluation.comparison.exact import (
    LEVEL,
    MARGIN,
    check_margin,
    equivalence_test,
    mcnemar,
    smallest_visible,
)
from torchcaps.words import percent

RESAMPLES = 10_000  # of the bootstrap

# Images that only the first, and as many that only the second gets right, for the variance.
PSEUDO_COUNT = 2

Outcome = Literal["first", "second", "equivalent", "undecided"]


@dataclass(frozen=True, kw_only=True)
class BaseComparison(EvaluationResult):
    """What both kinds of comparison have in common; differences and the margin are in [0, 1]."""

    derived = ("outcome", "verdict")
    subject: ClassVar[str]  # what is compared: "model" or "method"
    evidence_by: ClassVar[str]  # what decides: "images" or "runs"
    scope: ClassVar[str]  # where one of the two is better
    sample: ClassVar[str]  # the size of the sample, in words

    difference: float  # accuracy of the first minus that of the second
    interval: tuple[float, float]  # (low, high), of the difference, at 95 %
    p_value: float  # that both are equally good
    num_samples: int  # n, the number of images
    margin: float  # the smallest difference that matters
    equivalence_p: float  # that they differ by the margin or more
    # Smallest difference seen in 80 % of tries, at level 0.05; None: not even 1.
    visible: float | None

    @property
    def outcome(self) -> Outcome:
        """Which is better at level 0.05, or "equivalent" within the margin at the same level.

        It is "undecided" otherwise. The tests reject hypotheses that exclude each other, so that
        at most 5 % of outcomes claim something wrong.
        """
        if self.p_value < LEVEL:
            return "first" if self.difference > 0 else "second"
        return "equivalent" if self.equivalence_p < LEVEL else "undecided"

    @property
    def evidence(self) -> str:
        """The figures behind the outcome; the p-value is the one that counts for it."""
        low, high = self.interval
        difference = f"{100 * self.difference:+.2f} points"
        interval = f"95 % from {100 * low:+.2f} to {100 * high:+.2f}"
        p_value = f"p = {self.p_value:.2g}"
        if self.outcome == "equivalent":
            p_value = f"p = {self.equivalence_p:.2g} for a larger gap"
        return f"{difference}, {interval}, {p_value}"

    @property
    def power(self) -> str:
        """One sentence: the smallest difference that would have been seen."""
        if self.visible is None:
            return f"{self.sample}, no difference would be seen, however large."
        return (
            f"{self.sample}, only a difference of {points(self.visible)} or more is seen "
            "in 80 % of tries; a smaller one may be there."
        )

    @property
    def verdict(self) -> str:
        """One sentence; where nothing is decided, a second one on what would have been seen."""
        within = f"equally good within {points(self.margin)}"
        if self.outcome == "equivalent":
            return f"The two {self.subject}s are {within} ({self.evidence})."
        if self.outcome == "undecided":
            return (
                f"These {self.evidence_by} do not tell the two {self.subject}s apart, "
                f"nor show that they are {within} ({self.evidence}). {self.power}"
            )
        small = f", by less than {points(self.margin)}" if self.equivalence_p < LEVEL else ""
        better = f"The {self.outcome} {self.subject} is better {self.scope}"
        return f"{better}{small} ({self.evidence})."

    @property
    def summary(self) -> str:
        """The verdict."""
        return self.verdict


@dataclass(frozen=True, kw_only=True)
class Comparison(BaseComparison):
    """Two models on the same images; see `BaseComparison`.

    95 % of bootstrap resamples of the images lie within the interval, which has no width where no
    image tells the models apart; see `equivalence_p` then. The p-values are those of McNemar's
    exact test and of `equivalence_test`; `visible` is that of `smallest_visible`, at the observed
    share of images that tell the models apart.
    """

    first: float  # accuracy of the model in question, in [0, 1]
    second: float  # accuracy of the baseline
    only_first: int  # images that only the first gets right
    only_second: int  # images that only the second gets right

    subject = "model"
    evidence_by = "images"
    scope = "on these images"
    sample = "On so many images"

    @property
    def has_equal_answers(self) -> bool:
        """Whether both are right on the same images."""
        return self.only_first == self.only_second == 0

    @property
    def evidence(self) -> str:
        return (
            f"p = {self.equivalence_p:.2g} for a larger gap"
            if self.has_equal_answers
            else super().evidence
        )

    @property
    def verdict(self) -> str:
        if not self.has_equal_answers:
            return super().verdict
        answers = f"give the same answers, right or wrong, on all {self.num_samples:,} images"
        within = f"equally good within {points(self.margin)} ({self.evidence})."
        if self.outcome == "equivalent":
            return f"The two models {answers}, and are {within}"
        return f"The two models {answers}; these do not show that they are {within} {self.power}"

    def table(self) -> TextTable:
        """A row for each model."""
        rows = [
            ("first", percent(self.first), str(self.only_first)),
            ("second", percent(self.second), str(self.only_second)),
        ]
        return TextTable(("model", "accuracy", "right alone"), rows)


def compare_answers(
    first: Bool[Tensor, " n"],
    second: Bool[Tensor, " n"],
    *,
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Compare two models, the one in question and the baseline, on the same images.

    Args:
        first: `[n]` booleans, whether the model in question is right; n at least 1.
        second: the same of the baseline, in the same order.
        margin: the smallest difference in accuracy that matters, in (0, 1). Choose it before you
            look: one point is little at 90 % accuracy, and more than all there is to gain at
            99.4 %.
        seed: of the bootstrap.

    Raises:
        ArgumentError: for shapes that do not fit, or a margin out of range.
    """
    check_shape("first", first, ("n",))
    check_shape("second", second, ("n",), n=len(first))
    check_range("number of images", len(first), low=1)
    n = len(first)
    num_only_first = int((first & ~second).sum())
    num_only_second = int((second & ~first).sum())

    # Resampling images with replacement draws the three kinds of them from a multinomial.
    shares = [num_only_first / n, num_only_second / n, (n - num_only_first - num_only_second) / n]
    counts = np.random.default_rng(seed).multinomial(n, shares, size=RESAMPLES)
    differences = (counts[:, 0] - counts[:, 1]) / n
    low, high = np.quantile(differences, [0.025, 0.975])
    return Comparison(
        first=float(first.double().mean()),
        second=float(second.double().mean()),
        difference=(num_only_first - num_only_second) / n,
        interval=(float(low), float(high)),
        only_first=num_only_first,
        only_second=num_only_second,
        p_value=mcnemar(num_only_first, num_only_second),
        num_samples=n,
        margin=margin,
        equivalence_p=equivalence_test(num_only_first, num_only_second, n, margin=margin),
        visible=smallest_visible(n, (num_only_first + num_only_second) / n),
    )


@dataclass(frozen=True, kw_only=True)
class RunsComparison(BaseComparison):
    """Two methods, several runs each, on the same images; see `BaseComparison`.

    The difference is that of the means. The interval holds the true one, over seeds and images, in
    95 % of comparisons; `visible` is at the observed standard deviation of so many runs and images.
    """

    first: tuple[float, ...]  # accuracy of each run of the method in question, in [0, 1]
    second: tuple[float, ...]  # accuracy of each run of the baseline
    paired: bool  # whether run k of one belongs to run k of the other

    subject = "method"
    evidence_by = "runs"
    scope = "over seeds and images"
    sample = "With so many runs and images"

    def table(self) -> TextTable:
        """A row for each method: mean and standard deviation over its runs, and the runs."""
        rows = []
        for name, runs in (("first", self.first), ("second", self.second)):
            accuracy = f"{100 * mean(runs):.2f} ± {100 * stdev(runs):.2f} %"
            rows.append((name, accuracy, ", ".join(f"{100 * run:.2f}" for run in runs)))
        return TextTable(("method", "accuracy", "runs"), rows)


def compare_runs(
    first: Bool[Tensor, "runs n"],
    second: Bool[Tensor, "other_runs n"],
    *,
    paired: bool = False,
    margin: float = MARGIN,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> RunsComparison:
    """Compare two methods by their runs, on the same images in the same order.

    The images are bootstrapped, all runs together. To each resample comes a normal deviation of
    the mean over seeds: its variance is that of the runs' accuracies, less the part which comes
    from the images that each run happens to miss (that is among the images' already). All
    deviations are multiplied by a factor of Student's t distribution, whose degrees of freedom are
    those of Welch and Satterthwaite for the two sources. Two images that only one method gets
    right are added on either side for that variance, so that runs that are all right do not seem
    certain.

    Args:
        first: `[runs, n]` booleans, whether each run of the method in question is right on each
            image; at least 2 runs and 2 images. Every run counts: leave none out.
        second: the same of the baseline; the number of runs may differ.
        paired: whether run k of both shares what varies, such as split and order by an equal seed.
            Then only the differences within pairs count. Without it, seeds are independent.
        margin: the smallest difference in accuracy that matters, in (0, 1); see `compare_answers`.
        resamples: number of resamples, at least 1,000.
        seed: of the resamples.

    Raises:
        ArgumentError: for fewer runs or images, numbers of runs that differ though paired, a margin
            out of range, or too few resamples.
    """
    check_shape("first", first, ("runs", "n"))
    check_shape("second", second, ("runs", "n"), n=first.shape[1])
    check_range("first: number of runs", len(first), low=2)
    check_range("second: number of runs", len(second), low=2)
    check_range("number of images", first.shape[1], low=2)
    check_range("resamples", resamples, low=1000)
    check_margin(margin)
    if paired and len(first) != len(second):
        raise ArgumentError(
            "second", f"expected {len(first)} runs, one for each of first, got {len(second)}"
        )
    first_runs = first.cpu().double()
    second_runs = second.cpu().double()
    accuracies = first_runs.mean(dim=1)
    baselines = second_runs.mean(dim=1)
    difference = float(accuracies.mean() - baselines.mean())

    rng = np.random.default_rng(seed)
    errors = _errors(first_runs.numpy(), second_runs.numpy(), paired, resamples, rng)
    low, lower, upper, high = map(float, np.quantile(errors, [0.025, 0.2, 0.8, 0.975]))
    visible = (high - low) / 2 + (upper - lower) / 2
    return RunsComparison(
        first=tuple(accuracies.tolist()),
        second=tuple(baselines.tolist()),
        difference=difference,
        interval=(difference + low, difference + high),
        p_value=min(1.0, 2 * _tail(errors, abs(difference))),
        num_samples=first.shape[1],
        paired=paired,
        margin=margin,
        equivalence_p=_tail(errors, margin - abs(difference)),
        visible=visible if visible <= 1 else None,
    )


def _errors(
    first: Float[np.ndarray, "runs n"],
    second: Float[np.ndarray, "other_runs n"],
    paired: bool,
    resamples: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " resamples"]:
    """Draw how far the difference of the means may be from the truth, by images and by seeds."""
    n = first.shape[1]

    # Images: those with the same difference between the methods are one kind; there are few kinds.
    kinds, counts = np.unique(first.mean(axis=0) - second.mean(axis=0), return_counts=True)
    kinds = np.append(kinds, [1, -1])
    counts = np.append(counts, [PSEUDO_COUNT, PSEUDO_COUNT])
    shares = counts / counts.sum()
    image_errors = (rng.multinomial(n, shares, size=resamples) / n - shares) @ kinds
    image_variance = (shares @ kinds**2 - (shares @ kinds) ** 2) / n

    # Seeds.
    if paired:
        seed_variance, uncertainty = _seed_variance(first - second)
    else:
        variances = np.array([_seed_variance(first), _seed_variance(second)])
        seed_variance, uncertainty = variances.sum(axis=0).tolist()
    seed_variance = max(0.0, seed_variance)
    seed_errors = math.sqrt(seed_variance) * rng.standard_normal(resamples)

    # Student's factor, by the degrees of freedom of Welch and Satterthwaite.
    variance = image_variance + seed_variance
    freedom = variance**2 / (image_variance**2 / (n - 1) + uncertainty)
    factor = np.sqrt(freedom / rng.chisquare(freedom, size=resamples))
    return np.asarray((image_errors + seed_errors) * factor)


def _seed_variance(runs: Float[np.ndarray, "runs n"]) -> tuple[float, float]:
    """Return the variance of the mean over runs by seeds, and the variance of that estimate.

    Chance on single images, which every run has by itself, is taken off.
    """
    count, n = runs.shape
    means = runs.mean(axis=1, keepdims=True)
    residuals = runs - means - runs.mean(axis=0) + runs.mean()
    chance = (residuals**2).sum() / ((count - 1) * (n - 1)) / n
    variance = means.var(ddof=1)
    return float(variance - chance) / count, float(variance / count) ** 2 / (count - 1)


def _tail(errors: Float[np.ndarray, " resamples"], distance: float) -> float:
    """Return the share of errors of at least a distance, to the side with more of them; never 0."""
    num_errors = max((errors >= distance).sum(), (errors <= -distance).sum())
    return float((num_errors + 1) / (len(errors) + 1))


def points(difference: float) -> str:
    """Write a difference in accuracy in words: 0.01 is "1 point"."""
    number = f"{100 * difference:.2g}"
    return f"{number} point" if number == "1" else f"{number} points"
