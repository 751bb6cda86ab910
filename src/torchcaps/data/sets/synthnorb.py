"""synthNORB and synthtoys: rendered toys with smallNORB's categories, views, split and layout."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from torchcaps.data._registry import FetchProgress, set_facts
from torchcaps.data.dataset import Dataset, concatenate
from torchcaps.data.sets.smallnorb import (
    FACTORS,
    INFO as SMALLNORB,
    KINDS,
    matrix_bytes,
    register_norb,
    toy_numbers,
)
from torchcaps.data.sources import Rendering, writing
from torchcaps.data.synthnorb.solids import JITTER, LAMPS, NUM_TOYS, Body, make_toy, photograph
from torchcaps.errors import check_known, check_range
from torchcaps.types import Json

SPLIT = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
ELEVATIONS = range(9)
AZIMUTHS = range(0, 36, 2)
LIGHTINGS = range(len(LAMPS))
# Of synthtoys: elevations of 35°, 50° and 65°.
SYNTHTOYS: Json = {
    "elevations": (1, 4, 7),
    "lightings": (0, 3),
    "size": 40,
    "jitter": 0.35,
}
NUM_PROPORTIONS = 4  # of each design


def render_synthnorb(
    split: str = "train",
    *,
    instances: Sequence[int] | None = None,
    elevations: Sequence[int] = ELEVATIONS,
    azimuths: Sequence[int] = AZIMUTHS,
    lightings: Sequence[int] = LIGHTINGS,
    size: int = 48,
    seed: int = 0,
    jitter: float = JITTER,
    progress: FetchProgress = None,
) -> Dataset:
    """Render a split, or a part of it: every toy from every viewpoint under every lamp.

    The set is as `read_norb` gives it, in smallNORB's order: categories take turns, and what else
    is known is shuffled.

    Args:
        split: "train" (toys 4, 6, 7, 8, 9 of each category) or "test" (toys 0, 1, 2, 3, 5).
        instances: toys, 0 to 9, in place of the split's own.
        elevations: codes 0 to 8, for 30°, 35°, ..., 70° above the table.
        azimuths: codes 0 to 35, times 10°; smallNORB has the even ones.
        lightings: codes 0 to 5.
        size: sides of an image in pixels, at least 4. Each pixel is the mean of four rays.
        seed: 0 or more; of the toys' proportions and of the order.
        jitter: largest change of a proportion by the seed, as a fraction from 0 to 0.5.
        progress: called with "synthnorb train", the images so far, and the images in all.

    Returns:
        The images, with the targets of smallNORB: instance, elevation, azimuth and lighting.

    Raises:
        UnknownNameError: for another split.
        ValueError: for nothing to render, or a code or size out of range.
    """
    check_known("split", split, SPLIT)
    toys = SPLIT[split] if instances is None else instances
    for name, codes, limit in (
        ("instances", toys, NUM_TOYS),
        ("elevations", elevations, len(ELEVATIONS)),
        ("azimuths", azimuths, 36),
        ("lightings", lightings, len(LAMPS)),
    ):
        for code in codes or [-1]:
            check_range(name, code, low=0, high=limit - 1)
    check_range("size", size, low=4)
    check_range("jitter", jitter, low=0, high=0.5)

    categories = range(len(SMALLNORB.classes))
    scenes = torch.tensor(list(product(categories, toys, elevations, azimuths, lightings)))
    images = torch.empty(len(scenes), 1, size, size, dtype=torch.uint8)
    views = images.unflatten(0, (-1, len(lightings)))
    lamps = [LAMPS[code] for code in lightings]
    designs = product(categories, toys, elevations, azimuths)
    for number, (view, design) in enumerate(zip(views, designs, strict=True)):
        category, toy, elevation, azimuth = design
        if number % (len(elevations) * len(azimuths)) == 0:
            albedo = 0.78 + 0.14 * np.random.RandomState([seed, category, toy, 1]).random_sample()
            body = Body(make_toy(category, toy, seed, jitter=jitter))
            if progress:
                progress(f"synthnorb {split}", number * len(lamps), len(images))
        view[:, 0] = photograph(
            body, 30 + 5 * elevation, 10.0 * azimuth, lamps, size=size, albedo=albedo
        )

    # Shuffled, with the categories in turn.
    random = np.random.RandomState(seed)
    by_category = np.arange(len(scenes)).reshape(len(categories), -1)
    places = np.column_stack([random.permutation(row) for row in by_category])
    order = torch.from_numpy(places.ravel())
    targets = dict(zip(("label", *FACTORS), scenes[order].unbind(dim=1), strict=True))
    groups = toy_numbers(targets["label"], targets["instance"])
    return Dataset(images[order], targets, SMALLNORB.classes, "synthnorb", groups)


def register_rendered(name: str, render: Callable[..., Dataset]) -> None:
    """Register a rendered set that is kept in smallNORB's files, and its novel-viewpoint sets.

    Args:
        name: of the set.
        render: `render(split, progress=progress)` gives a split.
    """

    def write(folder: Path, progress: FetchProgress) -> None:
        for split in SPLIT:
            stem = folder / f"{name}-rendered-{split}ing"
            write_matrices(render(split, progress=progress), stem)

    register_norb(replace(SMALLNORB, **set_facts(name), sources=(Rendering(write),)))


def write_matrices(images: Dataset, stem: Path) -> None:
    """Write a set as smallNORB's files, each named when it is whole.

    Args:
        images: with smallNORB's targets.
        stem: folder and beginning of the names of the files.

    Raises:
        DataError: where a file cannot be written.
    """
    codes = torch.column_stack([images.targets[name] for name in FACTORS]).int()
    for kind, matrix in zip(KINDS, (images.images, images.labels.int(), codes), strict=True):
        path = stem.with_name(f"{stem.name}-{kind}.mat")
        part = path.with_name(f"{path.name}.part")
        with writing(part):
            part.write_bytes(matrix_bytes(matrix.numpy()))
            part.replace(path)


def render_synthtoys(split: str = "train", *, progress: FetchProgress = None) -> Dataset:
    """Render a split of synthtoys: many toys, from every viewpoint under two lamps.

    Five toys a category, as smallNORB has them, are too few to tell two networks apart. Each design
    is rendered here in four proportions, which differ by up to 35 % along each axis; the designs of
    the test toys are others than those of the training toys.

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
        part = render_synthnorb(split, seed=seed, progress=progress, **SYNTHTOYS)
        instance = part.targets["instance"] + NUM_TOYS * seed
        targets = {**part.targets, "instance": instance}
        groups = toy_numbers(part.labels, instance)
        parts.append(replace(part, targets=targets, groups=groups, name="synthtoys"))
    return concatenate(parts)


register_rendered("synthnorb", render_synthnorb)
register_rendered("synthtoys", render_synthtoys)
