"""Claim: matrix capsules generalize to novel viewpoints (Hinton et al. 2018, table 2)."""

from torchcaps.evaluation.robustness.viewpoints import match_familiar
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import Figures, register_measure, viewpoints

TARGET = 0.8  # accuracy on familiar views at which networks are compared


@register_measure()
def matched_viewpoints(run: EvaluatedRun) -> Figures:
    """The figures of `viewpoints`, and errors where 80 % of familiar views are right.

    Returns:
        "novel_error_at_80", between two epochs; and "familiar_error_at_80", 0.2 where the accuracy
        crosses 80 %, else that of the nearest epoch, whose novel error is then taken.
    """
    figures = viewpoints(run)
    if "curve" not in figures:
        return figures
    matched = match_familiar(figures["curve"]["familiar"], figures["curve"]["novel"], TARGET)
    familiar = matched.familiar if matched.interpolated is None else TARGET
    figures["familiar_error_at_80"] = 1 - familiar
    figures["novel_error_at_80"] = 1 - matched.novel_at_target
    return figures
