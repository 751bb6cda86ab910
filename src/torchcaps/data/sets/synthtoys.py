"""synthtoys: 100 rendered toys to train with and 100 others to test with, for novel viewpoints.

Five toys a category, as smallNORB has them, are too few to tell two networks apart. Each design of
synthNORB is rendered here in four proportions, which differ by up to 35 % along each axis; the
designs of the test toys are others than those of the training toys.
"""

from dataclasses import replace
from pathlib import Path

import torch

from torchcaps.data._registry import FetchProgress
from torchcaps.data.dataset import Dataset
from torchcaps.data.sets.smallnorb import KINDS, register_norb, toy_numbers
from torchcaps.data.sets.synthnorb import (
    INFO as SYNTHNORB,
    render_synthnorb,
    write_matrices,
)
from torchcaps.data.sources import Rendering
from torchcaps.data.synthnorb.solids import NUM_TOYS

NUM_PROPORTIONS = 4  # of each design
JITTER = 0.35
ELEVATIONS = (1, 4, 7)  # 35°, 50°, 65°
LIGHTINGS = (0, 3)
SIDE = 40
NUM_IMAGES = 5 * 5 * NUM_PROPORTIONS * len(ELEVATIONS) * 18 * len(LIGHTINGS)  # of a split
STEMS = {
    "train": "synthtoys-5x20x3x18x2x1x40x40-training",
    "test": "synthtoys-5x20x3x18x2x1x40x40-testing",
}


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
        parts.append(replace(part, targets={**part.targets, "instance": instance}))
    targets = {}
    for name in parts[0].targets:
        targets[name] = torch.cat([part.targets[name] for part in parts])
    return replace(
        parts[0],
        inputs=torch.cat([part.images for part in parts]),
        targets=targets,
        groups=toy_numbers(targets["label"], targets["instance"]),
        name="synthtoys",
    )


def write_synthtoys(folder: str | Path, progress: FetchProgress | None = None) -> None:
    """Render both splits and write them as smallNORB's files.

    Raises:
        DataError: where a file cannot be written.
    """
    for split, stem in STEMS.items():
        write_matrices(render_synthtoys(split, progress=progress), Path(folder) / stem)


register_norb(
    replace(
        SYNTHNORB,
        name="synthtoys",
        title="a hundred rendered toys to test with, for novel viewpoints",
        image_shape=(1, SIDE, SIDE),
        train=NUM_IMAGES,
        test=NUM_IMAGES,
        source="torchcaps.data.sets.synthtoys.render_synthtoys",
        sha256=dict.fromkeys(f"{stem}-{kind}.mat" for stem in STEMS.values() for kind in KINDS),
        sources=(Rendering(write_synthtoys),),
    )
)
