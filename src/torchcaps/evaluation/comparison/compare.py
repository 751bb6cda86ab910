"""Is one model better than another? Two models on the same test images.

There are three answers: one is better (McNemar's test), both are equally good within a margin (an equivalence test), or
the images do not decide; then the comparison says how large a difference must be for so many images to show it. That no
difference was found never means that there is none. Compare a capsule network with a plain network of equal size that
was trained in the same way, and with itself under uniform coupling; two methods by several runs each (`compare_runs`),
and never the best of several seeds with a mean.

Two methods, by several runs of each: another seed gives another network, and other test images another accuracy; a
difference between methods must stand out against both. Images are resampled together for all runs, as all answer the
same ones. Seeds are few, three to five: resampling them, too, makes the interval too narrow (95 % intervals of three
runs hold the truth in 80 to 93 %), so that their standard deviation is estimated, and the interval widened for so few
of them as in Student's t-test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.evaluation.accuracy.classification import Evaluation
from torchcaps.evaluation.base import Figures
from torchcaps.evaluation.comparison.exact import (
    LEVEL,
    MARGIN,
    equivalence_test,
    mcnemar,
    smallest_visible,
)

RESAMPLES = 10_000  # of the bootstrap
ADDED = 2  # images that only the first, and as many that only the second gets right, for the variance over images
Outcome = Literal["first", "second", "equivalent", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Compared(Figures):
    """What both kinds of comparison find, and the outcome in words; differences and the margin are in [0, 1]."""

    derived = ("outcome", "verdict")
    words: ClassVar[tuple[str, str, str, str]]
    """What is compared, what it is compared by, where one of the two is better, and on what sample."""

    difference: float  # accuracy of the first minus that of the second
    interval: tuple[float, float]  # (low, high), of the difference, at 95 %
    p_value: float  # that both are equally good
    num_samples: int  # n, the number of images
    margin: float  # the smallest difference that matters
    equivalence_p: float  # that they differ by the margin or more
    visible: (
        float | None
    )  # the smallest difference that is seen in 80 % of tries, at level 0.05; None: not even 1 is

    @property
    def outcome(self) -> Outcome:
        """Which is better at level 0.05; else "equivalent" within the margin, at the same level; else "undecided". The
        tests reject hypotheses that exclude each other, so that at most 5 % of outcomes claim something wrong."""
        if self.p_value < LEVEL:
            return "first" if self.difference > 0 else "second"
        return "equivalent" if self.equivalence_p < LEVEL else "undecided"

    @property
    def evidence(self) -> str:
        """The figures behind the outcome, as words that go into brackets: the p-value is the one that counts for it."""
        low, high = (100 * bound for bound in self.interval)
        same = self.outcome == "equivalent"
        p = f"{self.equivalence_p:.2g} for a larger gap" if same else f"{self.p_value:.2g}"
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
                so = (
                    f"These {by} do not tell the two {sides} apart, nor show that they are {within}"
                )
                return f"{so} ({self.evidence}). {self.power}"
            case better:
                little = (
                    f", by less than {points(self.margin)}" if self.equivalence_p < LEVEL else ""
                )
                return f"The {better} {sides[:-1]} is better {where}{little} ({self.evidence})."


@dataclass(frozen=True, kw_only=True)
class Comparison(Compared):
    """Two models on the same images; see `Compared`.

    95 % of bootstrap resamples of the images lie within the interval, which has no width where no image tells the
    models apart; see `equivalence_p` then. The p-values are those of McNemar's exact test and of `equivalence_test`;
    `visible` is that of `smallest_visible`, at the observed share of images that tell the models apart."""

    first: float  # accuracy of the model in question, in [0, 1]
    second: float  # accuracy of the baseline
    only_first: int  # images that only the first gets right
    only_second: int  # images that only the second gets right

    words = ("models", "images", "on these images", "On so many images")

    @property
    def same(self) -> bool:
        """Whether both are right on the same images."""
        return self.only_first == self.only_second == 0

    @property
    def evidence(self) -> str:
        return f"p = {self.equivalence_p:.2g} for a larger gap" if self.same else super().evidence

    @property
    def verdict(self) -> str:
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
    first: Evaluation, second: Evaluation, *, margin: float = MARGIN
) -> Comparison:
    """Two evaluations, of the model in question and of the baseline, on the same images in the same order.

    The margin is the smallest difference in accuracy that matters, in (0, 1). Choose it before you look: one point is
    little at 90 % accuracy, and more than all there is to gain at 99.4 %. Raises ValueError for evaluations on other
    images, as far as their labels show, or a margin out of range."""
    check_same_labels(first, second, "second")
    right = (run.predictions == run.labels for run in (first, second))
    return compare_answers(*right, margin=margin)


def compare_answers(
    first: Bool[Tensor, " n"], second: Bool[Tensor, " n"], *, margin: float = MARGIN, seed: int = 0
) -> Comparison:
    """`compare_evaluations` for `[n]` booleans, whether each model is right on the same images; n at least 1. The seed
    is that of the bootstrap. Raises ValueError for shapes that do not fit, or a margin out of range."""
    check_shape("first", first, ("n",))
    check_shape("second", second, ("n",), n=len(first))
    check_range("number of images", len(first), low=1)
    n, one, two = len(first), int((first & ~second).sum()), int((second & ~first).sum())
    # Resampling images with replacement draws the three kinds of them from a multinomial distribution.
    drawn = np.random.default_rng(seed).multinomial(
        n, [one / n, two / n, (n - one - two) / n], size=RESAMPLES
    )
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / n, [0.025, 0.975])
    return Comparison(
        first=float(first.double().mean()),
        second=float(second.double().mean()),
        difference=(one - two) / n,
        interval=(float(low), float(high)),
        only_first=one,
        only_second=two,
        p_value=mcnemar(one, two),
        num_samples=n,
        margin=margin,
        equivalence_p=equivalence_test(one, two, n, margin=margin),
        visible=smallest_visible(n, (one + two) / n),
    )


@dataclass(frozen=True, kw_only=True)
class RunsComparison(Compared):
    """Two methods, several runs each, on the same images; see `Compared`.

    The difference is that of the means. The interval holds the true one, over seeds and images, in 95 % of comparisons;
    `visible` is at the observed standard deviation of so many runs and images."""

    first: tuple[float, ...]  # accuracy of each run of the method in question, in [0, 1]
    second: tuple[float, ...]  # accuracy of each run of the baseline
    paired: bool  # whether run k of one belongs to run k of the other

    words = ("methods", "runs", "over seeds and images", "With so many runs and images")

    def table(self) -> list[tuple[str, ...]]:
        """Accuracies as text: a heading and a row for each method, mean ± standard deviation over its runs."""
        rows = [
            (
                name,
                f"{100 * mean(runs):.2f} ± {100 * stdev(runs):.2f} %",
                ", ".join(f"{100 * x:.2f}" for x in runs),
            )
            for name, runs in (("first", self.first), ("second", self.second))
        ]
        return [("method", "accuracy", "runs"), *rows]


def compare_runs(
    first: Sequence[Evaluation] | Bool[Tensor, "runs n"],
    second: Sequence[Evaluation] | Bool[Tensor, "other_runs n"],
    *,
    paired: bool = False,
    margin: float = MARGIN,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> RunsComparison:
    """Two methods by their runs, on the same images in the same order.

    The images are bootstrapped, all runs together. To each resample comes a normal deviation of the mean over seeds:
    its variance is that of the runs' accuracies, less the part which comes from the images that each run happens to
    miss (that is among the images' already). All deviations are multiplied by a factor of Student's t distribution,
    whose degrees of freedom are those of Welch and Satterthwaite for the two sources. Two images that only one method
    gets right are added on either side for that variance, so that runs that are all right do not seem certain. Raises
    ValueError for other images, as far as their labels show, fewer than 2 runs a method or 2 images, numbers of runs
    that differ though paired, a margin out of range, or too few resamples.

    Args:
        first, second: evaluations of the runs of the method in question and of the baseline, or `[runs, n]` booleans,
            whether each run is right on each image; at least 2 runs and 2 images. Every run counts: leave none out.
        paired: whether run k of both shares what varies, such as split and order by an equal seed. Then only the
            differences within pairs count. Without it, seeds are taken as independent, equal numbers or not.
        margin: the smallest difference in accuracy that matters, in (0, 1); see `compare_evaluations`.
        resamples: at least 1,000, drawn by `seed`.
    """
    ours, theirs = _matrix(first, "first"), _matrix(second, "second")
    if not isinstance(first, Tensor) and not isinstance(second, Tensor):
        check_same_labels(first[0], second[0], "second")
    check_shape("second", theirs, ("runs", "n"), n=ours.shape[1])
    check_range("number of images", ours.shape[1], low=2)
    check_range("resamples", resamples, low=1000)
    if paired and len(ours) != len(theirs):
        raise ArgumentError(
            "second", f"expected {len(ours)} runs, one for each of first, got {len(theirs)}"
        )
    if not 0 < margin < 1:
        raise ArgumentError(
            "margin", f"expected a difference in accuracy between 0 and 1, got {margin}"
        )
    one, two = ours.double().mean(dim=1), theirs.double().mean(dim=1)
    difference = float(one.mean() - two.mean())
    errors = _errors(
        ours.double().numpy(),
        theirs.double().numpy(),
        paired,
        resamples,
        np.random.default_rng(seed),
    )
    low, least, most, high = (float(x) for x in np.quantile(errors, [0.025, 0.2, 0.8, 0.975]))
    visible = (high - low) / 2 + (most - least) / 2
    return RunsComparison(
        first=tuple(one.tolist()),
        second=tuple(two.tolist()),
        difference=difference,
        interval=(difference + low, difference + high),
        p_value=min(1.0, 2 * _tail(errors, abs(difference))),
        num_samples=ours.shape[1],
        paired=paired,
        margin=margin,
        equivalence_p=_tail(errors, margin - abs(difference)),
        visible=visible if visible <= 1 else None,
    )


def _matrix(runs: Sequence[Evaluation] | Tensor, name: str) -> Bool[Tensor, "runs n"]:
    if isinstance(runs, Tensor):
        check_shape(name, runs, ("runs", "n"))
    check_range(f"{name}: number of runs", len(runs), low=2)
    if isinstance(runs, Tensor):
        return runs.cpu()
    for run in runs:
        check_same_labels(runs[0], run, name)
    return torch.stack([run.predictions == run.labels for run in runs])


def _errors(
    first: Float[np.ndarray, "runs n"],
    second: Float[np.ndarray, "other_runs n"],
    paired: bool,
    resamples: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " resamples"]:
    """How far the difference of the means may be from the truth, by images and by seeds."""
    n = first.shape[1]
    # Images with the same difference between the methods are one kind; there are few kinds.
    kinds, counts = np.unique(first.mean(axis=0) - second.mean(axis=0), return_counts=True)
    kinds, counts = np.append(kinds, [1, -1]), np.append(counts, [ADDED, ADDED])
    shares = counts / counts.sum()
    of_images = (rng.multinomial(n, shares, size=resamples) / n - shares) @ kinds
    methods = [first - second] if paired else [first, second]
    seeds, doubt = map(sum, zip(*map(_seed_variance, methods), strict=True))
    by_images = (shares @ kinds**2 - (shares @ kinds) ** 2) / n
    total = by_images + max(0.0, seeds)
    freedom = total**2 / (by_images**2 / (n - 1) + doubt)
    of_seeds = math.sqrt(max(0.0, seeds)) * rng.standard_normal(resamples)
    return np.asarray(
        (of_images + of_seeds) * np.sqrt(freedom / rng.chisquare(freedom, size=resamples))
    )


def _seed_variance(runs: Float[np.ndarray, "runs n"]) -> tuple[float, float]:
    """Of the mean over the runs: the variance by seeds beyond chance on single images, and the variance of that."""
    count, n = runs.shape
    means = runs.mean(axis=1, keepdims=True)
    left = runs - means - runs.mean(axis=0) + runs.mean()
    chance = (left**2).sum() / ((count - 1) * (n - 1)) / n
    of_means = means.var(ddof=1)
    return float(of_means - chance) / count, float(of_means / count) ** 2 / (count - 1)


def _tail(errors: Float[np.ndarray, " resamples"], distance: float) -> float:
    """Share of errors that reach so far, in the direction that has more of them; never 0."""
    reached = max((errors >= distance).sum(), (errors <= -distance).sum())
    return float((reached + 1) / (len(errors) + 1))


def check_same_labels(first: Evaluation, other: Evaluation, argument: str) -> None:
    """Raise ValueError, in the name of `argument`, unless `other` has the labels of `first`."""
    if not torch.equal(first.labels, other.labels):
        raise ArgumentError(
            argument,
            f"expected the labels of first, image for image, "
            f"got {len(other.labels)} labels that are not those {len(first.labels)}",
        )


def points(difference: float) -> str:
    """A difference in accuracy in words: 0.01 is "1 point"."""
    value = f"{100 * difference:.2g}"
    return f"{value} point{'' if value == '1' else 's'}"
