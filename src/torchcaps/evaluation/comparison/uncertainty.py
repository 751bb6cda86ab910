"""How uncertain a difference of two methods is, by seeds and by images or groups of images.

The runs of a method answer the same images. The variance of the difference of mean accuracies has
two sources: another sample of images (or of groups: toys, patients, digits), which all runs share,
and other seeds. Both are estimated by sums of squares, as in an analysis of variance with crossed
factors. The difference divided by its standard error then follows Student's t distribution, with
the degrees of freedom of Satterthwaite, "An approximate distribution of estimates of variance
components", Biometrics Bulletin 1946.

Groups are the units of sampling, so that images within a group may depend on each other in any way.
`docs/decisions.md` says why groups are not resampled by a bootstrap.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.comparison.exact import LEVEL, POWER

# As many images are added that only the first method gets right, and as many that only the second
# does, so that runs that are all right do not seem certain.
PSEUDO_COUNT = 2
MAX_SEEDS = 1000


@dataclass(frozen=True)
class Seeds:
    """What seeds add to the variance of one method's accuracy.

    Attributes:
        num_runs: number of runs; 1 where their variance is not known, and not counted.
        variance: variance of the accuracy of a run over the same images.
        chance: the part of it that comes from single images or groups that a run happens to miss.
    """

    num_runs: int
    variance: float
    chance: float


@dataclass(frozen=True)
class Uncertainty:
    """Variance of the difference of two accuracies, by its sources.

    Attributes:
        image_variance: by another sample of images or groups, with the mean of the runs.
        num_units: effective number of images, or of groups: smaller where their sizes differ.
        seeds: of each method; of runs in pairs one, of the differences within pairs.
        num_groups: number of groups; None where each image is by itself.
    """

    image_variance: float
    num_units: float
    seeds: tuple[Seeds, ...]
    num_groups: int | None

    @property
    def variance(self) -> float:
        """Variance of the difference; chance is in `image_variance` already, and counts once."""
        seed_variance = sum((part.variance - part.chance) / part.num_runs for part in self.seeds)
        return self.image_variance + max(0.0, seed_variance)

    @property
    def degrees_of_freedom(self) -> float:
        """Of the t distribution, by Satterthwaite.

        A method whose few runs happen to agree would seem known too well. Its term is that of both
        methods' pooled variance, where this is larger.
        """
        image_term = self.image_variance**2 / max(1.0, self.num_units - 1)
        total = sum((part.num_runs - 1) * part.variance for part in self.seeds)
        pooled = total / max(1, sum(part.num_runs - 1 for part in self.seeds))
        seed_term = sum(
            (max(part.variance, pooled) / part.num_runs) ** 2 / (part.num_runs - 1)
            for part in self.seeds
        )
        degrees = self.variance**2 / (image_term + seed_term)
        return max(degrees, min((part.num_runs for part in self.seeds), default=2) - 1)

    @property
    def distribution(self) -> Any:
        """Student's t distribution of the error of the difference."""
        from scipy.stats import t

        return t(self.degrees_of_freedom, scale=math.sqrt(self.variance))

    def with_runs(self, num_runs: int) -> Self:
        """What is expected of another number of runs of each method."""
        chance = sum(part.chance / part.num_runs for part in self.seeds)
        expected_chance = sum(part.chance / num_runs for part in self.seeds)
        image_variance = max(0.0, self.image_variance - chance) + expected_chance
        seeds = tuple(replace(part, num_runs=num_runs) for part in self.seeds)
        return replace(self, image_variance=image_variance, seeds=seeds)

    def seeds_needed(self, difference: float) -> int | None:
        """The least runs of each method that see a difference in 80 % of tries, at level 0.05."""

        def is_visible(num_runs: int) -> bool:
            student = self.with_runs(num_runs).distribution
            return bool(student.ppf([1 - LEVEL / 2, POWER]).sum() <= difference)

        fewest = bisect_left(range(MAX_SEEDS + 1), True, lo=2, key=is_visible)
        return fewest if fewest <= MAX_SEEDS else None


def estimate_uncertainty(
    first: Bool[Tensor, "runs n"],
    second: Bool[Tensor, "other_runs n"],
    groups: object = None,
    paired: bool = False,
) -> Uncertainty:
    """Estimate the variance of the difference of mean accuracies.

    Args:
        first: whether a run of the method in question is right on an image.
        second: the same of the baseline.
        groups: `[n]` labels of images that depend on each other; None: each image is by itself.
        paired: whether run k of both belong together.

    Raises:
        ArgumentError: not one label an image, or less than two groups.
    """
    n = first.shape[1]
    group_of_image = np.arange(n)
    if groups is not None:
        labels = np.asarray(groups.cpu() if isinstance(groups, Tensor) else groups)
        if labels.shape != (n,):
            raise ArgumentError(
                "groups", f"expected one label for each of {n} images, got {list(labels.shape)}"
            )
        names, group_of_image = np.unique(labels, return_inverse=True)
        if len(names) < 2:
            raise ArgumentError("groups", f"expected two groups or more, got {len(names)}")
    sizes = np.bincount(group_of_image).astype(float)
    num_units = len(sizes)
    runs = [answers.cpu().double().numpy() for answers in (first, second)]
    totals = []
    seeds = []
    for answers in [runs[0] - runs[1]] if paired else runs:
        accuracies = answers.mean(axis=1)
        sums = np.stack([np.bincount(group_of_image, weights=row) for row in answers])
        deviations = sums - accuracies[:, None] * sizes
        total = deviations.mean(axis=0)  # [units], summed over the images of each
        totals.append(total)
        num_runs = len(answers)
        if num_runs > 1:
            squares = ((deviations - total) ** 2).sum()
            chance = squares / (num_runs - 1) * num_units / (num_units - 1) / n**2
            seeds.append(Seeds(num_runs, float(accuracies.var(ddof=1)), float(chance)))
    difference = totals[0] if paired else totals[0] - totals[1]
    squares = (difference**2).sum() * num_units / (num_units - 1)
    image_variance = (squares + 2 * PSEUDO_COUNT) / n**2
    effective_units = sizes.sum() ** 2 / (sizes**2).sum()
    num_groups = None if groups is None else num_units
    return Uncertainty(float(image_variance), float(effective_units), tuple(seeds), num_groups)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of a family of tests by Holm's method.

    If all that is below 0.05 afterwards is claimed, then at most 5 % of families hold a false
    claim, however the tests depend on each other. Sture Holm, "A simple sequentially rejective
    multiple test procedure", Scandinavian Journal of Statistics 1979.

    Args:
        p_values: of all tests of the family, in [0, 1].

    Returns:
        The adjusted p-values, in the order of the tests.

    Raises:
        ArgumentError: for a number outside [0, 1].

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    for p_value in p_values:
        check_range("p_values", p_value, low=0, high=1)
    order = np.argsort(p_values, kind="stable")
    multiples = np.sort(p_values) * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(multiples).clip(max=1)
    return adjusted.tolist()
