"""What the trainings of a claim say: supported, refuted or undecided."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import t as student

from claims.protocol import ANSWERS, Claim
from claims.results import ClaimResult, count_missing
from torchcaps.errors import RunError
from torchcaps.evaluation.comparison.uncertainty import MAX_SEEDS, estimate_uncertainty

LEVEL = 0.05
Verdict = Literal["supported", "refuted", "undecided"]


@dataclass(frozen=True)
class Judgment:
    """What the trainings of a claim say.

    Attributes:
        verdict: "supported", "refuted" or "undecided".
        difference: of the primary figure, in the direction of the claim.
        interval: its 95 % interval.
        p_value: of no difference, two-sided, of this claim alone.
        p_adjusted: the same after Holm's correction over the claims.
        effect: the published difference.
        seeds_to_decide: of an undecided claim, how many trainings of each arm would decide it if
            they go on as before; None of a decided one, or if 1,000 would not.
    """

    verdict: Verdict
    difference: float
    interval: tuple[float, float]
    p_value: float
    p_adjusted: float
    effect: float
    seeds_to_decide: int | None = None


@dataclass(frozen=True)
class _Difference:
    """The difference of two arms, and its error by the number of trainings of each arm.

    Attributes:
        mean: of the trainings that are done.
        error: Student's t distribution of the error of so many trainings.
        worse: accuracy of the worse arm, where answers are compared.
    """

    mean: float
    error: Callable[[int], Any]
    worse: float | None = None

    def infer(self, num_seeds: int) -> tuple[tuple[float, float], float]:
        """The 95 % interval and the p-value of so many trainings."""
        error = self.error(num_seeds)
        reach = float(error.ppf(1 - LEVEL / 2))
        p_value = min(1.0, 2 * float(error.sf(abs(self.mean))))
        if math.isnan(reach):  # all trainings have the same difference
            return (self.mean, self.mean), float(self.mean == 0)
        return (self.mean - reach, self.mean + reach), p_value


def judge_claim(
    claim: Claim, results: Sequence[ClaimResult], p_adjusted: float | None = None
) -> Judgment:
    """Apply the rules of docs/claims.md to finished trainings.

    "refuted": the 95 % interval of the difference excludes half of the published effect.
    "supported": the interval lies above 0, and the p-value, adjusted over all claims, is below
    0.05. "undecided": neither.

    Args:
        claim: with its protocol.
        results: all of this claim.
        p_adjusted: p-value after Holm's correction over the claims; by default the claim's own.

    Returns:
        The verdict, with what it follows from.

    Raises:
        RunError: trainings are missing.
    """
    if missing := count_missing(claim, results):
        planned = claim.seeds * len(claim.arms)
        raise RunError(
            f"claim {claim.name}: {missing} of {planned} trainings are missing, and a verdict "
            f"needs them all; `python -m claims {claim.name} --run` trains them"
        )
    difference = _difference(claim, results)
    effect = claim.primary.effect_size(difference.worse)
    interval, p_value = difference.infer(claim.seeds)
    # What the family makes of the p-value; Holm's factor is that of the rank.
    p_adjusted = p_value if p_adjusted is None else p_adjusted
    factor = p_adjusted / p_value if p_value else 1.0

    def verdict_of(num_seeds: int) -> Verdict:
        (low, high), p_value = difference.infer(num_seeds)
        if high < effect / 2:
            return "refuted"
        return "supported" if low > 0 and factor * p_value < LEVEL else "undecided"

    verdict = verdict_of(claim.seeds)
    seeds_to_decide = None
    if verdict == "undecided":
        numbers = range(MAX_SEEDS + 1)
        fewest = bisect_left(
            numbers, True, lo=claim.seeds, key=lambda number: verdict_of(number) != "undecided"
        )
        seeds_to_decide = fewest if fewest <= MAX_SEEDS else None
    return Judgment(
        verdict, difference.mean, interval, p_value, p_adjusted, effect, seeds_to_decide
    )


def _difference(claim: Claim, results: Sequence[ClaimResult]) -> _Difference:
    """Of the two arms that are compared, in the direction of the claim."""
    primary = claim.primary
    arms = []
    kind = "training"
    for arm in (primary.better, primary.worse):
        trainings = {each.seed: each for each in results if (each.kind, each.arm) == (kind, arm)}
        arms.append([trainings[seed] for seed in range(claim.seeds)])
    if primary.figure == ANSWERS:
        better, worse = (torch.stack([result.is_correct for result in arm]) for arm in arms)
        accuracies = [float(answers.double().mean()) for answers in (better, worse)]
        uncertainty = estimate_uncertainty(better, worse, arms[0][0].image_groups)
        return _Difference(
            accuracies[0] - accuracies[1],
            lambda number: uncertainty.with_runs(number).distribution,
            accuracies[1],
        )
    pairs = zip(*arms, strict=True)  # equal seeds share what varies by seed
    differences = [
        better.figures[primary.figure] - worse.figures[primary.figure] for better, worse in pairs
    ]
    spread = float(np.std(differences, ddof=1))
    return _Difference(
        -mean(differences) if primary.lower else mean(differences),
        lambda number: student(number - 1, scale=spread / math.sqrt(number)),
    )
