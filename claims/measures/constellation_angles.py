"""How well constellations are recognized by the angle that they are turned by."""

from claims.measures.scores import class_scores
from claims.sets.constellations import (
    FAMILIAR,
    NOVEL,
    SETS,
    draw_constellations,
    render_constellations,
)
from torchcaps.evaluation.base import proportion
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import Figures, register_measure

NUM_IMAGES = 2000  # of each range of angles
SEED = 2
RANGES = {"familiar": FAMILIAR, "between": (FAMILIAR[1], NOVEL[0]), "novel": NOVEL}


@register_measure()
def constellation_angles(run: EvaluatedRun) -> Figures:
    """Accuracy on constellations turned by up to 30, by 30 to 60, and by 60 to 180 degrees.

    Returns:
        "familiar_accuracy", "between_accuracy" and "novel_accuracy".
    """
    form, _ = SETS[run.config.data.name]
    figures: Figures = {}
    for name, angles in RANGES.items():
        drawn = draw_constellations(NUM_IMAGES, angles, seed=SEED)
        images = render_constellations(form, drawn)
        answers = class_scores(run.model, images.float_images()).argmax(dim=1)
        figures[f"{name}_accuracy"] = proportion(answers == images.labels)
    return figures
