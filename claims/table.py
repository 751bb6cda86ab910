"""Claims and their results as tables."""

from collections.abc import Mapping, Sequence

from claims.protocol import ANSWERS, Claim
from claims.results import ClaimResult
from claims.runner import training_cost
from claims.verdict import Verdict, judge_claim
from torchcaps.evaluation import holm
from torchcaps.reproduction.table import over_seeds

Table = list[tuple[str, ...]]
"""The heading, and the rows."""
Finished = Mapping[str, Sequence[ClaimResult]]
"""The finished trainings by the name of their claim."""


def judge_claims(claims: Sequence[Claim], finished: Finished) -> dict[str, Verdict]:
    """The verdict of each claim, with Holm's correction over all of them.

    A claim without a result counts with a p-value of 1. Adjusted p-values can only fall when its
    result comes, so that no other claim loses its support by it.

    Args:
        claims: the family.
        finished: their results.
    """
    verdicts = {claim.name: judge_claim(claim, finished[claim.name]) for claim in claims}
    p_values = [verdict.p_value for verdict in verdicts.values()]
    adjusted = holm([1.0 if p_value is None else p_value for p_value in p_values])
    for claim, p_adjusted in zip(claims, adjusted, strict=True):
        verdicts[claim.name] = judge_claim(claim, finished[claim.name], p_adjusted)
    return verdicts


def claims_table(claims: Sequence[Claim], finished: Finished) -> Table:
    """A row for each claim: trainings that are done, the verdict, and the hours that are missing.

    Args:
        claims: in the order of the rows.
        finished: their results.
    """
    verdicts = judge_claims(claims, finished)
    rows: Table = [("claim", "trainings", "outcome", "difference, 95 %", "hours left")]
    for claim in claims:
        planned = claim.seeds * len(claim.arms)
        num_done = sum(result.kind == "training" for result in finished[claim.name])
        verdict = verdicts[claim.name]
        rows.append(
            (
                claim.name,
                f"{num_done} of {planned}",
                verdict.outcome,
                interval_text(verdict),
                f"{(planned - num_done) * training_cost(claim):.1f}",
            )
        )
    return rows


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
        figures = [training.figures.get(figure) for training in trainings]
        if figure == ANSWERS:  # pairs of digits have no such figure
            figures = [float(training.is_correct.double().mean()) for training in trainings]
        rates = sorted({f"{training.rate:g}" for training in trainings if training.rate})
        text = over_seeds(figure, figures) if trainings else "-"
        rows.append((arm, row_name, str(len(trainings)), ", ".join(rates) or "-", text))
    return rows


def interval_text(verdict: Verdict) -> str:
    """The difference with its interval, in points where it is a share; "-" without results."""
    if verdict.difference is None or verdict.interval is None:
        return "-"
    low, high = (100 * bound for bound in verdict.interval)
    return f"{100 * verdict.difference:+.2f} ({low:+.2f} to {high:+.2f})"
