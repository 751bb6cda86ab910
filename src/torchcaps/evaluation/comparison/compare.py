"""Is one model better than another, or one method than another, on the same test images?

`compare_answers` takes the answers of two models: booleans `[n]`, whether each is right on each of
n images. `compare_runs` takes those of two methods by several runs (trained models) of each:
booleans `[runs, n]`. Both return a comparison with the difference of the accuracies (first minus
second), its 95 % interval, p-values, and an outcome:

* "first" or "second": this one is better (for models, by McNemar's test);
* "equivalent": the accuracies differ by less than a margin (by an equivalence test);
* "undecided": neither is shown. The comparison then names the smallest difference that so many
  images can show (`visible`). That no difference was found never means that there is none.

Compare a capsule network with a plain network of equal size that was trained in the same way, and
with itself under uniform coupling; two methods by several runs each, and never the best of several
seeds with a mean.

Why runs have a function of their own: another seed gives another network, and other test images
another accuracy; a difference between methods must stand out against both. Images are resampled
together for all runs, as all answer the same ones. There are few seeds, three to five: resampling
them, too, makes the interval too narrow (95 % intervals of three runs hold the truth in 80 to
93 %). Hence the variance over seeds is estimated, and the interval widened for so few of them as in
Student's t-test.

From `exact` come the tests of two models. LEVEL is their significance level (0.05), MARGIN the
default margin (0.01, one point), `smallest_visible` the difference that McNemar's test sees in 80 %
of tries.
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

# `compare_runs` adds so many images that only the first method gets right, and as many that only
# the second does, so that runs that are all right do not seem certain.
PSEUDO_COUNT = 2

Outcome = Literal["first", "second", "equivalent", "undecided"]


@dataclass(frozen=True, kw_only=True)
class BaseComparison(EvaluationResult):
    """What comparisons of two models and of two methods share; accuracies are in [0, 1].

    The base class turns the fields, and the properties named in `derived`, into JSON; reports show
    `summary` and `table`.

    Attributes:
        difference: accuracy of the first minus that of the second.
        interval: `(low, high)`, the 95 % interval of the difference.
        p_value: of the hypothesis that both are equally good.
        num_samples: n, the number of images.
        margin: the smallest difference that matters.
        equivalence_p: p-value of the hypothesis that they differ by the margin or more.
        visible: the smallest true difference that is seen in 80 % of tries, at level 0.05; None
            where not even a difference of 1 would be.
    """

    derived = ("outcome", "verdict")

    # Words of a subclass for the sentences of `verdict`, such as "model", "images", "on these
    # images" and "On so many images": "The first {subject} is better {scope}.", "These
    # {evidence_noun} do not tell the two {subject}s apart. {sample}, only a difference of 3 points
    # or more is seen."
    subject: ClassVar[str]
    evidence_noun: ClassVar[str]
    scope: ClassVar[str]
    sample: ClassVar[str]

    difference: float
    interval: tuple[float, float]
    p_value: float
    num_samples: int
    margin: float
    equivalence_p: float
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
        """The difference, its interval and the p-value that decided the outcome, in words."""
        low, high = self.interval
        difference = f"{100 * self.difference:+.2f} points"
        interval = f"95 % from {100 * low:+.2f} to {100 * high:+.2f}"
        p_value = f"p = {self.p_value:.2g}"
        if self.outcome == "equivalent":
            p_value = f"p = {self.equivalence_p:.2g} for a larger gap"
        return f"{difference}, {interval}, {p_value}"

    @property
    def power(self) -> str:
        """One sentence: the smallest difference that would be seen (the power of the test)."""
        if self.visible is None:
            return f"{self.sample}, no difference would be seen, however large."
        return (
            f"{self.sample}, only a difference of {points(self.visible)} or more is seen "
            "in 80 % of tries; a smaller one may be there."
        )

    @property
    def verdict(self) -> str:
        """The outcome and its evidence in one sentence; `power` follows if it is undecided."""
        within = f"equally good within {points(self.margin)}"
        if self.outcome == "equivalent":
            return f"The two {self.subject}s are {within} ({self.evidence})."
        if self.outcome == "undecided":
            return (
                f"These {self.evidence_noun} do not tell the two {self.subject}s apart, "
                f"nor show that they are {within} ({self.evidence}). {self.power}"
            )
        small = f", by less than {points(self.margin)}" if self.equivalence_p < LEVEL else ""
        better = f"The {self.outcome} {self.subject} is better {self.scope}"
        return f"{better}{small} ({self.evidence})."

    @property
    def summary(self) -> str:
        """The verdict, as the line of a report."""
        return self.verdict


@dataclass(frozen=True, kw_only=True)
class Comparison(BaseComparison):
    """Two models on the same images; see `BaseComparison`.

    95 % of bootstrap resamples of the images lie within the interval, which has no width where no
    image tells the models apart; see `equivalence_p` then. The p-values are those of McNemar's
    exact test and of `equivalence_test`; `visible` is that of `smallest_visible`, at the observed
    share of images that tell the models apart.

    Attributes:
        first: accuracy of the model in question, in [0, 1].
        second: accuracy of the baseline.
        only_first: number of images that only the first gets right.
        only_second: number of images that only the second gets right.
        difference: accuracy of the first minus that of the second, in [-1, 1].
        interval: (low, high), of the difference, at 95 %.
        p_value: p-value of the hypothesis that both are equally good.
        num_samples: n, number of images.
        margin: smallest difference that matters.
        equivalence_p: p-value of the hypothesis that they differ by the margin or more.
        visible: smallest difference that is seen in 80 % of tries at level 0.05; None: not even 1.
    """

    first: float
    second: float
    only_first: int
    only_second: int

    subject = "model"
    evidence_noun = "images"
    scope = "on these images"
    sample = "On so many images"

    @property
    def has_equal_answers(self) -> bool:
        """Whether both are right on the same images."""
        return self.only_first == self.only_second == 0

    @property
    def evidence(self) -> str:
        """As in the base class; with equal answers, the p-value of equivalence alone."""
        if not self.has_equal_answers:
            return super().evidence
        return f"p = {self.equivalence_p:.2g} for a larger gap"

    @property
    def verdict(self) -> str:
        """As in the base class; equal answers are mentioned."""
        if not self.has_equal_answers:
            return super().verdict
        answers = f"give the same answers, right or wrong, on all {self.num_samples:,} images"
        within = f"equally good within {points(self.margin)} ({self.evidence})."
        if self.outcome == "equivalent":
            return f"The two models {answers}, and are {within}"
        return f"The two models {answers}; these do not show that they are {within} {self.power}"

    def table(self) -> TextTable:
        """A row for each model: its accuracy, and how many images it alone gets right."""
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

    Returns:
        The difference with its interval, p-values and verdict; see `Comparison`.

    Raises:
        ArgumentError: for shapes that do not fit, or a margin out of range.
    """
    check_shape("first", first, ("n",))
    check_shape("second", second, ("n",), n=len(first))
    check_range("number of images", len(first), low=1)
    n = len(first)
    only_first = int((first & ~second).sum())
    only_second = int((second & ~first).sum())

    # There are three kinds of images: right for the first alone, for the second alone, and for both
    # or none. How many of each kind a resample with replacement has is multinomial.
    shares = [only_first / n, only_second / n, (n - only_first - only_second) / n]
    counts = np.random.default_rng(seed).multinomial(n, shares, size=RESAMPLES)
    differences = (counts[:, 0] - counts[:, 1]) / n  # [RESAMPLES]
    low, high = np.quantile(differences, [0.025, 0.975])
    return Comparison(
        first=float(first.double().mean()),
        second=float(second.double().mean()),
        difference=(only_first - only_second) / n,
        interval=(float(low), float(high)),
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar(only_first, only_second),
        num_samples=n,
        margin=margin,
        equivalence_p=equivalence_test(only_first, only_second, n, margin=margin),
        visible=smallest_visible(n, (only_first + only_second) / n),
    )


@dataclass(frozen=True, kw_only=True)
class RunsComparison(BaseComparison):
    """Two methods, several runs each, on the same images; see `BaseComparison`.

    The difference is that of the mean accuracies. The interval holds the true one, over seeds and
    images, in 95 % of comparisons; `visible` is for the observed variance of so many runs and
    images.

    Attributes:
        first: accuracy of each run of the method in question, in [0, 1].
        second: accuracy of each run of the baseline.
        paired: whether run k of the first belongs to run k of the second.
        difference: mean accuracy of the first minus that of the second, in [-1, 1].
        interval: (low, high), of the difference, at 95 %.
        p_value: p-value of the hypothesis that both are equally good.
        num_samples: n, number of images.
        margin: smallest difference that matters.
        equivalence_p: p-value of the hypothesis that they differ by the margin or more.
        visible: smallest difference that is seen in 80 % of tries at level 0.05; None: not even 1.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    paired: bool

    subject = "method"
    evidence_noun = "runs"
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

    The error of the difference, new difference minus observed one if all were repeated, is
    simulated; the interval and the p-values follow from its distribution. It has two sources.
    Images: they are bootstrapped, for all runs together (and `PSEUDO_COUNT` images are added).
    Seeds: a normal deviate, whose variance is that of the runs' accuracies, less the part that
    comes from the images that each run happens to miss (which is in the bootstrap already). The sum
    is multiplied by a factor that turns a normal into Student's t distribution, with the degrees of
    freedom of Welch and Satterthwaite for the two sources.

    Args:
        first: `[runs, n]` booleans, whether each run of the method in question is right on each
            image; at least 2 runs and 2 images. Every run counts: leave none out.
        second: the same of the baseline; the number of runs may differ.
        paired: whether run k of both shares what varies, such as split and order by an equal seed.
            Then only the differences within pairs count. If False, seeds are independent.
        margin: the smallest difference in accuracy that matters, in (0, 1); see `compare_answers`.
        resamples: number of simulated errors, at least 1,000.
        seed: of the simulation.

    Returns:
        The difference with its interval, p-values and verdict; see `RunsComparison`.

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
    first_accuracies = first_runs.mean(dim=1)
    second_accuracies = second_runs.mean(dim=1)
    difference = float(first_accuracies.mean() - second_accuracies.mean())

    rng = np.random.default_rng(seed)
    errors = _simulate_errors(first_runs.numpy(), second_runs.numpy(), paired, resamples, rng)
    quantiles = np.quantile(errors, [0.025, 0.2, 0.8, 0.975])
    low, percentile_20, percentile_80, high = map(float, quantiles)

    # An observed difference is seen if it exceeds half the interval. That happens in 80 % of tries
    # where the true difference exceeds half the interval by the 80th percentile of errors. As the
    # distribution need not be symmetric, the percentiles below and above 0 are averaged.
    visible = (high - low) / 2 + (percentile_80 - percentile_20) / 2
    return RunsComparison(
        first=tuple(first_accuracies.tolist()),
        second=tuple(second_accuracies.tolist()),
        difference=difference,
        interval=(difference + low, difference + high),
        p_value=min(1.0, 2 * _tail_probability(errors, abs(difference))),
        num_samples=first.shape[1],
        paired=paired,
        margin=margin,
        equivalence_p=_tail_probability(errors, margin - abs(difference)),
        visible=visible if visible <= 1 else None,
    )


def _simulate_errors(
    first: Float[np.ndarray, "runs n"],
    second: Float[np.ndarray, "other_runs n"],
    paired: bool,
    resamples: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " resamples"]:
    """Draw errors of the difference between the mean accuracies, by images and by seeds.

    Args:
        first: answers of the runs of the method in question, 1 where they are right, else 0.
        second: answers of the runs of the baseline, likewise.
        paired: as in `compare_runs`.
        resamples: as in `compare_runs`.
        rng: source of the draws.
    """
    n = first.shape[1]

    # Images, by a bootstrap. Those with the same difference between the methods are of one kind:
    # how many of each kind a resample has is multinomial.
    image_differences = first.mean(axis=0) - second.mean(axis=0)
    kinds, counts = np.unique(image_differences, return_counts=True)
    kinds = np.append(kinds, [1, -1])
    counts = np.append(counts, [PSEUDO_COUNT, PSEUDO_COUNT])
    shares = counts / counts.sum()
    share_errors = rng.multinomial(n, shares, size=resamples) / n - shares  # [resamples, kinds]
    image_errors = share_errors @ kinds
    image_variance = (shares @ kinds**2 - (shares @ kinds) ** 2) / n

    # Seeds.
    if paired:
        seed_variance, seed_term = _seed_variance(first - second)
    else:
        first_variance, first_term = _seed_variance(first)
        second_variance, second_term = _seed_variance(second)
        seed_variance = first_variance + second_variance
        seed_term = first_term + second_term
    seed_variance = max(0.0, seed_variance)
    seed_errors = math.sqrt(seed_variance) * rng.standard_normal(resamples)

    # Welch and Satterthwaite: a sum of estimated variances v_k, each of f_k degrees of freedom, has
    # (sum_k v_k)^2 / sum_k (v_k^2 / f_k) of them.
    variance = image_variance + seed_variance
    image_term = image_variance**2 / (n - 1)
    degrees_of_freedom = variance**2 / (image_term + seed_term)
    chi_squares = rng.chisquare(degrees_of_freedom, size=resamples)
    t_factors = np.sqrt(degrees_of_freedom / chi_squares)
    return np.asarray((image_errors + seed_errors) * t_factors)


def _seed_variance(answers: Float[np.ndarray, "runs n"]) -> tuple[float, float]:
    """Estimate how much a mean over runs varies by their seeds.

    The accuracies of runs vary by seed, and by chance on single images, which every run has by
    itself. That chance is in the bootstrap of images, so its variance is subtracted.

    Args:
        answers: of each run on each image, or differences of the answers of two paired runs.

    Returns:
        The variance (below 0 where chance alone varies more than the runs), and its term v^2 / f of
        Welch and Satterthwaite: v is the variance before the subtraction, f = runs - 1. Chance is
        estimated from so many images that it hardly adds to the uncertainty.
    """
    num_runs, n = answers.shape
    accuracies = answers.mean(axis=1, keepdims=True)
    residuals = answers - accuracies - answers.mean(axis=0) + answers.mean()
    residual_variance = (residuals**2).sum() / ((num_runs - 1) * (n - 1))
    chance = residual_variance / n  # variance of an accuracy by single images
    variance = accuracies.var(ddof=1)
    term = float(variance / num_runs) ** 2 / (num_runs - 1)
    return float(variance - chance) / num_runs, term


def _tail_probability(errors: Float[np.ndarray, " resamples"], distance: float) -> float:
    """Return the probability of an error beyond a distance, on the more frequent side; never 0."""
    num_errors = max((errors >= distance).sum(), (errors <= -distance).sum())
    return float((num_errors + 1) / (len(errors) + 1))


def points(difference: float) -> str:
    """Write a difference in accuracy in words: 0.01 is "1 point"."""
    number = f"{100 * difference:.2g}"
    return f"{number} point" if number == "1" else f"{number} points"
