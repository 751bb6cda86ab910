"""Is one method better than another? Several runs of each, over seeds and images.

Another seed gives another network, and other test images another accuracy; a difference between methods must stand out
against both. Images are resampled together for all runs, as all answer the same ones. Seeds are few, three to five:
resampling them, too, makes the interval too narrow (95 % intervals of three runs hold the truth in 80 to 93 %), so that
their standard deviation is estimated, and the interval widened for so few of them as in Student's t-test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.accuracy.classification import Evaluation
from torchcaps.evaluation.comparison.exact import MARGIN
from torchcaps.evaluation.comparison.models import Compared, check_same_labels, right_of

ADDED = 2  # images that only the first, and as many that only the second gets right, for the variance over images


@dataclass(frozen=True)
class RunsComparison(Compared):
    """Two methods, several runs each, on the same images; accuracies, differences and the margin are in [0, 1].

    Attributes:
        first: accuracy of each run of the method in question.
        second: accuracy of each run of the baseline.
        difference: mean of first - mean of second.
        interval: (low, high), which holds the true difference, over seeds and images, in 95 % of comparisons.
        p_value: that both methods are equally good.
        num_samples: n, the number of images.
        paired: whether run k of one belongs to run k of the other.
        margin: the smallest difference that matters.
        equivalence_p: that they differ by the margin or more.
        visible: the smallest true difference that so many runs and images show (p below 0.05) in 80 % of tries, at the
            observed standard deviation; None if they show none, however large.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    difference: float
    interval: tuple[float, float]
    p_value: float
    num_samples: int
    paired: bool
    margin: float
    equivalence_p: float
    visible: float | None

    words = ("methods", "runs", "over seeds and images", "With so many runs and images")

    def table(self) -> list[tuple[str, ...]]:
        """Accuracies as text: a heading and a row for each method, mean ± standard deviation over its runs."""
        rows = [
            (name, f"{100 * mean(runs):.2f} ± {100 * stdev(runs):.2f} %", ", ".join(f"{100 * x:.2f}" for x in runs))
            for name, runs in (("first", self.first), ("second", self.second))
        ]
        return [("method", "accuracy", "runs"), *rows]


def compare_runs(
    first: Sequence[Evaluation] | Bool[Tensor, "runs n"], second: Sequence[Evaluation] | Bool[Tensor, "other_runs n"],
    *, paired: bool = False, margin: float = MARGIN, resamples: int = 10_000, seed: int = 0,
) -> RunsComparison:  # fmt: skip
    """Two methods by their runs, on the same images in the same order.

    The images are bootstrapped, all runs together. To each resample comes a normal deviation of the mean over seeds:
    its variance is that of the runs' accuracies, less the part which comes from the images that each run happens to
    miss (that is among the images' already). All deviations are multiplied by a factor of Student's t distribution,
    whose degrees of freedom are those of Welch and Satterthwaite for the two sources. Two images that only one method
    gets right are added on either side for that variance, so that runs that are all right do not seem certain.

    Args:
        first: evaluations of the runs of the method in question, or `[runs, n]` booleans, whether each run is right on
            each image; at least 2 runs and 2 images. Every run counts: leave none out.
        second: the same of the baseline.
        paired: whether run k of both shares what varies, such as split and order by an equal seed. Then only the
            differences within pairs count. Without it, seeds are taken as independent, equal numbers or not.
        margin: the smallest difference in accuracy that matters, in (0, 1); see `compare_evaluations`.
        resamples: at least 1,000.
        seed: of the resamples.

    Raises:
        ValueError: for other images, as far as their labels show, fewer than 2 runs a method or 2 images, numbers of
            runs that differ though paired, a margin out of range, or too few resamples.
    """
    ours, theirs = _matrix(first, "first"), _matrix(second, "second")
    if not isinstance(first, Tensor) and not isinstance(second, Tensor):
        check_same_labels(first[0], second[0], "second")
    check_shape("second", theirs, ("runs", "n"), n=ours.shape[1])
    for name, matrix in (("first", ours), ("second", theirs)):
        check_range(f"{name}: number of runs", len(matrix), low=2)
    check_range("number of images", ours.shape[1], low=2)
    check_range("resamples", resamples, low=1000)
    if paired and len(ours) != len(theirs):
        raise ValueError(f"second: expected {len(ours)} runs, one for each of first, got {len(theirs)}")
    if not 0 < margin < 1:
        raise ValueError(f"margin: expected a difference in accuracy between 0 and 1, got {margin}")
    one, two = ours.double().mean(dim=1), theirs.double().mean(dim=1)
    difference = float(one.mean() - two.mean())
    errors = _errors(ours.double().numpy(), theirs.double().numpy(), paired, resamples, np.random.default_rng(seed))
    low, least, most, high = (float(x) for x in np.quantile(errors, [0.025, 0.2, 0.8, 0.975]))
    visible = (high - low) / 2 + (most - least) / 2
    return RunsComparison(
        first=tuple(one.tolist()), second=tuple(two.tolist()), difference=difference,
        interval=(difference + low, difference + high), p_value=min(1.0, 2 * _tail(errors, abs(difference))),
        num_samples=ours.shape[1], paired=paired, margin=margin, equivalence_p=_tail(errors, margin - abs(difference)),
        visible=visible if visible <= 1 else None,
    )  # fmt: skip


def _matrix(runs: Sequence[Evaluation] | Tensor, name: str) -> Bool[Tensor, "runs n"]:
    if isinstance(runs, Tensor):
        check_shape(name, runs, ("runs", "n"))
        return runs.cpu()
    check_range(f"{name}: number of runs", len(runs), low=2)
    for run in runs:
        check_same_labels(runs[0], run, name)
    return torch.stack([right_of(run) for run in runs])


def _errors(
    first: Float[np.ndarray, "runs n"], second: Float[np.ndarray, "other_runs n"], paired: bool, resamples: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " resamples"]:  # fmt: skip
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
    return np.asarray((of_images + of_seeds) * np.sqrt(freedom / rng.chisquare(freedom, size=resamples)))


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
