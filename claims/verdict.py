"""What the trainings of a claim say: supported, refuted or undecided."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

import numpy as np
import torch
from scipy.stats import t as student

from claims.protocol import ANSWERS, Claim, Primary
from claims.results import ClaimResult
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import compare_runs

LEVEL = 0.05
Outcome = Literal["supported", "refuted", "undecided", "incomplete"]


@dataclass(frozen=True)
class Verdict:
    """What the trainings of a claim say.

    Attributes:
        outcome: "supported", "refuted", "undecided", or "incomplete" while trainings are missing.
        difference: of the primary figure, in the direction of the claim; None without results.
        interval: its 95 % interval; None with fewer than two trainings of an arm.
        p_value: of no difference, two-sided; None as above.
        effect: the published difference; None without results.
        num_seeds: trainings of both arms of the comparison.
    """

    outcome: Outcome
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    effect: float | None = None
    num_seeds: int = 0


def judge_claim(
    claim: Claim, results: Sequence[ClaimResult], p_adjusted: float | None = None
) -> Verdict:
    """Apply the rules of docs/claims.md to finished trainings.

    "refuted": the 95 % interval of the difference excludes half of the published effect.
    "supported": the interval lies above 0, and the p-value, adjusted over all claims, is below
    0.05. "undecided": neither.

    Args:
        claim: with its protocol.
        results: of this claim; those of other arms are not looked at.
        p_adjusted: p-value after Holm's correction over the claims; by default the claim's own.

    Returns:
        The verdict. It is "incomplete" as long as a training of one of the two arms is missing.
    """
    primary = claim.primary
    arms = []
    for arm in (primary.better, primary.worse):
        trainings = [each for each in results if each.kind == "training" and each.arm == arm]
        arms.append(sorted(trainings, key=lambda result: result.seed))
    num_seeds = min(len(arm) for arm in arms)
    if num_seeds < 2:
        return Verdict("incomplete", num_seeds=num_seeds)
    accuracy = None
    if primary.figure == ANSWERS:
        difference, interval, p_value = _compare_answers(*arms)
        accuracy = mean(float(result.is_correct.double().mean()) for result in arms[1])
    else:
        difference, interval, p_value = _compare_figures(primary, *arms)
    effect = primary.effect_size(accuracy)
    low, high = interval
    outcome: Outcome = "undecided"
    if num_seeds < claim.seeds:
        outcome = "incomplete"
    elif high < effect / 2:
        outcome = "refuted"
    elif low > 0 and (p_value if p_adjusted is None else p_adjusted) < LEVEL:
        outcome = "supported"
    return Verdict(outcome, difference, interval, p_value, effect, num_seeds)


def _compare_answers(
    better: Sequence[ClaimResult], worse: Sequence[ClaimResult]
) -> tuple[float, tuple[float, float], float]:
    """Difference of the accuracies, its interval and p-value, over seeds and images or groups."""
    rows = [torch.stack([result.is_correct for result in arm]) for arm in (better, worse)]
    comparison = compare_runs(*rows, groups=better[0].image_groups)
    return comparison.difference, comparison.interval, comparison.p_value


def _compare_figures(
    primary: Primary, better: Sequence[ClaimResult], worse: Sequence[ClaimResult]
) -> tuple[float, tuple[float, float], float]:
    """The same for one figure a training: Student's t of the differences of equal seeds."""
    sign = -1 if primary.lower else 1
    figures = [
        {result.seed: result.figures[primary.figure] for result in arm} for arm in (better, worse)
    ]
    seeds = sorted(figures[0].keys() & figures[1].keys())
    if len(seeds) < 2:
        raise ArgumentError("results", f"expected two seeds of both arms, got {len(seeds)}")
    differences = np.array([sign * (figures[0][seed] - figures[1][seed]) for seed in seeds])
    difference = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(len(seeds))
    if error == 0:
        return difference, (difference, difference), float(difference == 0)
    reach = float(student.ppf(1 - LEVEL / 2, len(seeds) - 1)) * error
    p_value = 2 * float(student.sf(abs(difference) / error, len(seeds) - 1))
    return difference, (difference - reach, difference + reach), p_value
