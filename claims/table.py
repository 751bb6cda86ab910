"""Claims and their results as tables, and as the rows of benchmarks/results/claims.json."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from claims.protocol import ANSWERS, Claim
from claims.results import ClaimResult, count_missing
from claims.runner import training_cost
from claims.verdict import Judgment, judge_claim
from torchcaps.evaluation import holm
from torchcaps.reproduction.table import over_seeds

Table = list[tuple[str, ...]]
"""The heading, and the rows."""
Finished = Mapping[str, Sequence[ClaimResult]]
"""The finished trainings by the name of their claim."""
Judgments = Mapping[str, Judgment]
"""The verdicts of complete claims by their names."""
DIGITS = 6  # of a number in a row: the last ones differ between machines


def judge_claims(claims: Sequence[Claim], finished: Finished) -> dict[str, Judgment]:
    """The verdicts of the complete claims, with Holm's correction over each family.

    An open claim, of which trainings are missing, counts with a p-value of 1. Adjusted p-values can
    only fall when its result comes, so that no other claim loses its support by it.

    Args:
        claims: with all of their families.
        finished: their results.

    Returns:
        By the names of the claims; an open one has no verdict.
    """
    judgments = {}
    for claim in claims:
        if not count_missing(claim, finished[claim.name]):
            judgments[claim.name] = judge_claim(claim, finished[claim.name])
    for family in {claim.family for claim in claims}:
        members = [claim for claim in claims if claim.family == family]
        p_values = [
            judgments[claim.name].p_value if claim.name in judgments else 1.0 for claim in members
        ]
        for claim, p_adjusted in zip(members, holm(p_values), strict=True):
            if claim.name in judgments:
                judgments[claim.name] = judge_claim(claim, finished[claim.name], p_adjusted)
    return judgments


def claims_table(claims: Sequence[Claim], finished: Finished, judgments: Judgments) -> Table:
    """A row for each claim: trainings that are done, the verdict, and the hours that are missing.

    Args:
        claims: in the order of the rows.
        finished: their results.
        judgments: see `judge_claims`.
    """
    rows: Table = [("claim", "trainings", "verdict", "difference, 95 %", "hours left")]
    for claim in claims:
        planned = claim.seeds * len(claim.arms)
        missing = count_missing(claim, finished[claim.name])
        judgment = judgments.get(claim.name)
        rows.append(
            (
                claim.name,
                f"{planned - missing} of {planned}",
                "-" if judgment is None else verdict_text(claim, judgment),
                "-" if judgment is None else interval_text(judgment.difference, judgment.interval),
                f"{missing * training_cost(claim):.1f}",
            )
        )
    return rows


def claim_rows(
    claims: Sequence[Claim], finished: Finished, judgments: Judgments
) -> list[dict[str, Any]]:
    """What is known of each complete claim, ready for JSON.

    Args:
        claims: in the order of the rows.
        finished: their results.
        judgments: see `judge_claims`.

    Returns:
        A row for each complete claim: `claim`, `source` and `published` in words; `protocol`, the
        name of its recipe, and its `family`; `figure`, and the `arms` with mean and deviation of
        it, `better` and `worse` being those that are compared; `seeds` of each arm; `verdict`;
        `effect`, the difference that was measured, with its 95 % `interval`, the adjusted `p_value`
        and the `published_effect`; `further_seeds`, first and last, that would decide an undecided
        claim; `cost`, hours of all its trainings one after another; `machine` and `commit` of
        these; and the `command` that trains what is missing.
    """
    rows = []
    for claim in claims:
        judgment = judgments.get(claim.name)
        if judgment is None:
            continue
        results = finished[claim.name]
        primary = claim.primary
        rows.append(
            {
                "claim": claim.statement,
                "source": claim.source,
                "published": claim.published,
                "protocol": claim.name,
                "family": claim.family,
                "figure": primary.figure,
                "arms": {arm: _arm_row(claim, arm, results) for arm in claim.arms},
                "better": primary.better,
                "worse": primary.worse,
                "seeds": claim.seeds,
                "verdict": judgment.verdict,
                "effect": _rounded(judgment.difference),
                "interval": [_rounded(bound) for bound in judgment.interval],
                "p_value": _rounded(judgment.p_adjusted),
                "published_effect": _rounded(judgment.effect),
                "further_seeds": further_seeds(claim, judgment),
                "cost": _rounded(sum(result.seconds for result in results) / 3600),
                "machine": sorted({result.machine for result in results}),
                "commit": sorted({result.commit for result in results}),
                "command": f"python -m claims {claim.name} --run",
            }
        )
    return rows


def further_seeds(claim: Claim, judgment: Judgment) -> tuple[int, int] | None:
    """First and last of the further seeds that would decide an undecided claim; None without."""
    if judgment.seeds_to_decide is None:
        return None
    return claim.seeds, judgment.seeds_to_decide - 1


def verdict_text(claim: Claim, judgment: Judgment) -> str:
    """The verdict, and of an undecided claim the seeds that would decide it."""
    if judgment.verdict != "undecided":
        return judgment.verdict
    seeds = further_seeds(claim, judgment)
    return "undecided, " + (
        "by any seeds" if seeds is None else "seeds {} to {} decide".format(*seeds)
    )


def interval_text(difference: float, interval: Sequence[float]) -> str:
    """The difference with its interval, in points, of the digits that claims.json has."""
    points, low, high = (100 * _rounded(share) for share in (difference, *interval))
    return f"{points:+.2f} ({low:+.2f} to {high:+.2f})"


def _arm_row(claim: Claim, arm: str, results: Sequence[ClaimResult]) -> dict[str, Any]:
    """An arm in a row of claims.json."""
    figures = arm_figures(claim, arm, results)
    return {
        "network": claim.arms[arm],
        "mean": _rounded(mean(figures)),
        "deviation": _rounded(stdev(figures)),
    }


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def arms_table(claim: Claim, results: Sequence[ClaimResult]) -> Table:
    """A row for each arm: seeds, its rate, and the primary figure.

    Args:
        claim: with its arms.
        results: finished trainings of it.
    """
    figure = claim.primary.figure
    rows: Table = [("arm", "network", "seeds", "rate", figure)]
    for arm, row_name in claim.arms.items():
        trainings = [each for each in results if each.kind == "training" and each.arm == arm]
        rates = sorted({f"{training.rate:g}" for training in trainings if training.rate})
        text = over_seeds(figure, arm_figures(claim, arm, results)) if trainings else "-"
        rows.append((arm, row_name, str(len(trainings)), ", ".join(rates) or "-", text))
    return rows


def arm_figures(claim: Claim, arm: str, results: Sequence[ClaimResult]) -> list[float]:
    """The primary figure of each training of an arm.

    Args:
        claim: with its arms.
        arm: letter of the arm.
        results: finished trainings of the claim.
    """
    trainings = [each for each in results if each.kind == "training" and each.arm == arm]
    if claim.primary.figure == ANSWERS:  # pairs of digits have no such figure
        return [float(training.is_correct.double().mean()) for training in trainings]
    return [training.figures[claim.primary.figure] for training in trainings]
