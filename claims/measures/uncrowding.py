"""Claim: routing models uncrowding (Doerig et al. 2020, figures 3 and 4)."""

from claims.measures.scores import class_scores
from claims.sets.vernier import render_verniers
from torchcaps.evaluation.base import proportion
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import Figures, register_measure

NUM_IMAGES = 2000
SEED = 1
# Figure -> (arrangement, number of outlines).
STIMULI = {
    "apart": ("apart", None),
    "alone": ("alone", 1),
    "inside_1": ("inside", 1),
    "inside_3": ("inside", 3),
    "inside_5": ("inside", 5),
    "mixed_5": ("mixed", 5),
}


@register_measure()
def uncrowding(run: EvaluatedRun) -> Figures:
    """Accuracy of the offset of a vernier alone, inside one outline, and inside several.

    Returns:
        "vernier_NAME": accuracy on each kind of stimulus; "crowding": what is lost inside one
        outline against a vernier alone; "uncrowding": what is gained inside the middle one of five
        against one alone; "uncrowding_mixed": the same where every second outline is of another
        kind. People gain by equal outlines alone.
    """
    figures: Figures = {}
    for name, (arrangement, number) in STIMULI.items():
        images = render_verniers(NUM_IMAGES, arrangement, number=number, seed=SEED)
        offsets = class_scores(run.model, images.float_images())[:, :2]
        is_right = offsets.argmax(dim=1) == images.labels.argmax(dim=1)
        figures[f"vernier_{name}"] = proportion(is_right)
    figures["crowding"] = figures["vernier_alone"] - figures["vernier_inside_1"]
    figures["uncrowding"] = figures["vernier_inside_5"] - figures["vernier_inside_1"]
    figures["uncrowding_mixed"] = figures["vernier_mixed_5"] - figures["vernier_inside_1"]
    return figures
