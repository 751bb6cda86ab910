"""synthtoys: 100 rendered toys to train with and 100 others to test with, for novel viewpoints.

Five toys a category, as smallNORB has them, are too few to tell two networks apart. Each design of
synthNORB is rendered here in four proportions, which differ by up to 35 % along each axis; the
designs of the test toys are others than those of the training toys.
"""

from dataclasses import replace

from torchcaps.data._registry import FetchProgress
from torchcaps.data.dataset import Dataset, concatenate
from torchcaps.data.sets.smallnorb import toy_numbers
from torchcaps.data.sets.synthnorb import register_rendered, render_synthnorb
from torchcaps.data.synthnorb.solids import NUM_TOYS

NUM_PROPORTIONS = 4  # of each design
JITTER = 0.35
ELEVATIONS = (1, 4, 7)  # 35°, 50°, 65°
LIGHTINGS = (0, 3)
SIDE = 40


def render_synthtoys(split: str = "train", *, progress: FetchProgress | None = None) -> Dataset:
    """Render a split, from every viewpoint under two lamps.

    Args:
        split: "train" (designs 4, 6, 7, 8, 9 of each category) or "test" (0, 1, 2, 3, 5).
        progress: called with "synthnorb train", and the images so far and in all of a quarter.

    Returns:
        Images of 40 × 40 pixels with the targets of smallNORB. The instance is the design plus ten
        times the number of the proportions; each toy is a group.

    Raises:
        UnknownNameError: for another split.
    """
    parts = []
    for seed in range(NUM_PROPORTIONS):
        part = render_synthnorb(
            split,
            elevations=ELEVATIONS,
            lightings=LIGHTINGS,
            size=SIDE,
            seed=seed,
            jitter=JITTER,
            progress=progress,
        )
        instance = part.targets["instance"] + NUM_TOYS * seed
        targets = {**part.targets, "instance": instance}
        groups = toy_numbers(targets["label"], instance)
        parts.append(replace(part, targets=targets, groups=groups, name="synthtoys"))
    return concatenate(parts)


register_rendered("synthtoys", render_synthtoys)
