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
another accuracy; a difference between methods must stand out against both. See `uncertainty`.
Images that show one thing (`groups`) are not independent: with 25 toys in many views it is the toys
that count.

Several comparisons that are read together are a family: of twenty pairs of equal methods, one pair
seems to differ. `adjust` takes the p-values of the other tests of the family. The p-value of a
difference is then corrected by Holm's method, that of an equivalence by Bonferroni's.

From `exact` come the tests of two models. LEVEL is their significance level (0.05), MARGIN the
default margin (0.01, one point), `smallest_visible` the difference that McNemar's test sees in 80 %
of tries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.evaluation.base import EvaluationResult, Json, TextTable, proportion
from torchcaps.evaluation.comparison.exact import (
    LEVEL,
    MARGIN,
    POWER,
    check_margin,
    equivalence_test,
    mcnemar,
    smallest_visible,
)
from torchcaps.evaluation.comparison.uncertainty import (
    PSEUDO_COUNT,
    Uncertainty,
    estimate_uncertainty,
    holm,
)
from torchcaps.words import percent

RESAMPLES = 10_000  # of the bootstrap of two models' images

PValues = Sequence[float]
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
        unadjusted_p: `p_value` before Holm's correction for the other tests of its family.
        smallest_margin: the smallest margin for which two equal ones are called equivalent in 80 %
            of tries, at the variance that was observed.
        num_groups: number of groups of images that depend on each other; None without groups.
        family: number of tests for which the p-values are corrected.
    """

    derived = ("outcome", "verdict")

    # Words of a subclass for the sentences of `verdict`, such as "model" and "images": "The first
    # {subject} is better.", "These {evidence_noun} do not tell the two {subject}s apart."
    subject: ClassVar[str]
    evidence_noun: ClassVar[str]

    difference: float
    interval: tuple[float, float]
    p_value: float
    num_samples: int
    margin: float
    equivalence_p: float
    visible: float | None
    unadjusted_p: float
    smallest_margin: float
    num_groups: int | None = None
    family: int = 1

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
    def evidence_text(self) -> str:
        """The difference, its interval and the p-value that decided the outcome, in words."""
        low, high = self.interval
        p_text = f"p = {self.p_value:.2g}"
        if self.outcome == "equivalent":
            p_text = f"p = {self.equivalence_p:.2g} for a larger gap"
        return (
            f"{100 * self.difference:+.2f} points, "
            f"95 % from {100 * low:+.2f} to {100 * high:+.2f}, {p_text}{self._family_text}"
        )

    @property
    def _family_text(self) -> str:
        """What the p-values allow for, in words: other tests, and groups of images."""
        text = f", adjusted for {self.family} tests" if self.family > 1 else ""
        if self.num_groups is not None:
            text += f", by {self.num_groups:,} groups of images"
        return text

    @property
    def power_text(self) -> str:
        """The smallest difference that would be seen, and whether the margin can be resolved."""
        if self.visible is None:
            return f"With so many {self.evidence_noun}, no difference would be seen, however large."
        sentence = (
            f"With so many {self.evidence_noun}, only a difference of {format_points(self.visible)} or more is seen "
            "in 80 % of tries; a smaller one may be there."
        )
        if self.smallest_margin > self.margin:
            sentence += (
                f" They cannot resolve a margin of {format_points(self.margin)}, only one of "
                f"{format_points(self.smallest_margin)} or more."
            )
        return sentence

    @property
    def verdict(self) -> str:
        """The outcome and its evidence in one sentence; `power_text` follows if it is undecided."""
        within = f"equally good within {format_points(self.margin)}"
        if self.outcome == "equivalent":
            return f"The two {self.subject}s are {within} ({self.evidence_text})."
        if self.outcome == "undecided":
            return (
                f"These {self.evidence_noun} do not tell the two {self.subject}s apart, "
                f"nor show that they are {within} ({self.evidence_text}). {self.power_text}"
            )
        small = f", by less than {format_points(self.margin)}" if self.equivalence_p < LEVEL else ""
        return f"The {self.outcome} {self.subject} is better{small} ({self.evidence_text})."

    @property
    def summary(self) -> str:
        """The verdict, as the line of a report."""
        return self.verdict


@dataclass(frozen=True, kw_only=True)
class Comparison(BaseComparison):
    """Two models on the same images; see `BaseComparison`.

    The interval holds the difference of 95 % of bootstrap resamples of the images. It has no width
    where both models give the same answers; `equivalence_p` then says what the images show. The
    p-values are those of McNemar's exact test and of `equivalence_test`; `visible` is that of
    `smallest_visible`, at the observed share of images that tell the models apart.

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
        unadjusted_p: `p_value` before Holm's correction for the other tests of its family.
        smallest_margin: smallest margin within which two equally good ones are shown to be so in
            80 % of tries, at the variance that was observed.
        num_groups: number of groups of images that depend on each other; None without groups.
        family: number of tests for which the p-values are corrected.
    """

    first: float
    second: float
    only_first: int
    only_second: int

    subject = "model"
    evidence_noun = "images"

    @property
    def evidence_text(self) -> str:
        """As in the base class; with equal answers, the p-value of equivalence alone."""
        if self.only_first or self.only_second:
            return super().evidence_text
        return (
            f"the same answers, right or wrong, on all {self.num_samples:,} images, "
            f"p = {self.equivalence_p:.2g} for a larger gap{self._family_text}"
        )

    def table(self) -> TextTable:
        """A row for each model: its accuracy, and how many images it alone gets right."""
        return TextTable(
            ("model", "accuracy", "right alone"),
            [
                ("first", percent(self.first), str(self.only_first)),
                ("second", percent(self.second), str(self.only_second)),
            ],
        )


def compare_answers(
    first: Bool[Tensor, " n"],
    second: Bool[Tensor, " n"],
    *,
    groups: object = None,
    adjust: PValues = (),
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Compare two models, the one in question and the baseline, on the same images.

    Args:
        first: `[n]` booleans, whether the model in question is right; n at least 1.
        second: the same of the baseline, in the same order.
        groups: `[n]` labels, integers or texts, equal for images that depend on each other, as
            those of one toy, patient or digit; None where each image is by itself.
        adjust: p-values of the other comparisons of the same family; see `holm`.
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
    n = len(first)
    check_shape("second", second, ("n",), n=n)
    check_range("number of images", n, low=1)
    only_first = int((first & ~second).sum())
    only_second = int((second & ~first).sum())

    difference = (only_first - only_second) / n
    if groups is None:
        figures = _infer_exactly(only_first, only_second, n, margin, adjust, seed)
    else:
        check_margin(margin)
        figures = _infer(
            estimate_uncertainty(first[None], second[None], groups), difference, margin, adjust
        )
    return Comparison(
        first=proportion(first),
        second=proportion(second),
        difference=difference,
        only_first=only_first,
        only_second=only_second,
        num_samples=n,
        margin=margin,
        **figures,
    )


def _infer_exactly(
    only_first: int, only_second: int, n: int, margin: float, adjust: PValues, seed: int
) -> Json:
    """Interval by the bootstrap and exact p-values, by the names of `BaseComparison`."""
    # There are three kinds of images: right for the first alone, for the second alone, and for both
    # or none. How many of each kind a resample with replacement has is multinomial.
    shares = [only_first / n, only_second / n, (n - only_first - only_second) / n]
    counts = np.random.default_rng(seed).multinomial(n, shares, size=RESAMPLES)
    differences = (counts[:, 0] - counts[:, 1]) / n  # [RESAMPLES]
    equivalence_p = equivalence_test(only_first, only_second, n, margin=margin)
    # PSEUDO_COUNT images more for each model: equal answers do not make the difference certain.
    standard_error = math.sqrt(only_first + only_second + 2 * PSEUDO_COUNT) / n
    normal = NormalDist()
    # Two equal models pass both one-sided tests in 80 % of tries if each fails in 10 %.
    quantiles = normal.inv_cdf(1 - LEVEL) + normal.inv_cdf((1 + POWER) / 2)
    return {
        "interval": tuple(np.quantile(differences, [0.025, 0.975]).tolist()),
        "visible": smallest_visible(n, (only_first + only_second) / n),
        "smallest_margin": quantiles * standard_error,
        **_adjust(mcnemar(only_first, only_second), equivalence_p, adjust),
    }


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
        unadjusted_p: `p_value` before Holm's correction for the other tests of its family.
        smallest_margin: smallest margin within which two equally good ones are shown to be so in
            80 % of tries, at the variance that was observed.
        num_groups: number of groups of images that depend on each other; None without groups.
        family: number of tests for which the p-values are corrected.
        seeds_needed: number of runs of each method that would show a difference as large as the
            margin, in 80 % of tries; None where so many images do not with any number of runs.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    paired: bool
    seeds_needed: int | None

    subject = "method"
    evidence_noun = "runs and images"

    @property
    def power_text(self) -> str:
        """As in the base class, with the number of seeds that would see the margin."""
        seeds = "no number of" if self.seeds_needed is None else f"{self.seeds_needed:,}"
        return f"{super().power_text} A difference of the margin is seen with {seeds} seeds each."

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
    groups: object = None,
    adjust: PValues = (),
    paired: bool = False,
    margin: float = MARGIN,
) -> RunsComparison:
    """Compare two methods by their runs, on the same images in the same order.

    The difference is divided by its standard error, which is estimated over seeds and images, or
    over seeds and groups of images; see `uncertainty`.

    Args:
        first: `[runs, n]` booleans, whether each run of the method in question is right on each
            image; at least 2 runs and 2 images. Every run counts: leave none out.
        second: the same of the baseline; the number of runs may differ.
        groups: `[n]` labels, integers or texts, equal for images that depend on each other, as
            those of one toy, patient or digit; None where each image is by itself.
        adjust: p-values of the other comparisons of the same family; see `holm`.
        paired: whether run k of both shares what varies, such as split and order by an equal seed.
            Then only the differences within pairs count. If False, seeds are independent.
        margin: the smallest difference in accuracy that matters, in (0, 1); see `compare_answers`.

    Returns:
        The difference with its interval, p-values and verdict; see `RunsComparison`.

    Raises:
        ArgumentError: for fewer runs or images, numbers of runs that differ though paired, labels
            that do not fit, or a margin or p-value out of range.
    """
    check_shape("first", first, ("runs", "n"))
    check_shape("second", second, ("runs", "n"), n=first.shape[1])
    check_range("first: number of runs", len(first), low=2)
    check_range("second: number of runs", len(second), low=2)
    check_range("number of images", first.shape[1], low=2)
    if paired and len(first) != len(second):
        raise ArgumentError(
            "second", f"expected {len(first)} runs, one for each of first, got {len(second)}"
        )
    check_margin(margin)
    accuracies = [runs.cpu().double().mean(dim=1) for runs in (first, second)]
    difference = float(accuracies[0].mean() - accuracies[1].mean())
    error = estimate_uncertainty(first, second, groups, paired)
    return RunsComparison(
        first=tuple(accuracies[0].tolist()),
        second=tuple(accuracies[1].tolist()),
        difference=difference,
        num_samples=first.shape[1],
        paired=paired,
        margin=margin,
        seeds_needed=error.seeds_needed(margin),
        **_infer(error, difference, margin, adjust),
    )


def _infer(
    error: Uncertainty,
    difference: float,
    margin: float,
    adjust: PValues,
) -> Json:
    """Interval and p-values by the t distribution, by the names of `BaseComparison`."""
    student = error.distribution  # Student's t, of the error of the difference
    # Two equal methods pass both one-sided tests in 80 % of tries if each fails in 10 %.
    quantiles = student.ppf([1 - LEVEL / 2, POWER, 1 - LEVEL, (1 + POWER) / 2])
    half, power, one_sided, both = quantiles.tolist()
    tail, equivalence_p = student.sf([abs(difference), margin - abs(difference)]).tolist()
    return {
        "interval": (difference - half, difference + half),
        "visible": half + power if half + power <= 1 else None,
        "smallest_margin": one_sided + both,
        "num_groups": error.num_groups,
        **_adjust(min(1.0, 2 * tail), equivalence_p, adjust),
    }


def _adjust(unadjusted_p: float, equivalence_p: float, adjust: PValues) -> Json:
    """The p-values of a comparison, corrected for `adjust`, those of the family's other tests.

    By Holm's correction; of equivalence by Bonferroni's.
    """
    family = 1 + len(adjust)
    return {
        "unadjusted_p": unadjusted_p,
        "p_value": holm([unadjusted_p, *adjust])[0],
        "equivalence_p": min(1.0, equivalence_p * family),
        "family": family,
    }


def format_points(difference: float) -> str:
    """Write a difference in accuracy in words, to two digits: 0.01 is "1 point"."""
    number = np.format_float_positional(
        100 * difference, precision=2, fractional=False, trim="-"
    )  # without an exponent
    return f"{number} point" if number == "1" else f"{number} points"
