"""synthNORB: rendered toys with smallNORB's categories, viewpoints, lightings, split and layout, made from a seed."""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from torchcaps.data._registry import FetchProgress
from torchcaps.data.dataset import ImageSet
from torchcaps.data.sets.smallnorb import FACTORS, INFO as SMALLNORB, matrix_bytes, register_norb
from torchcaps.data.sources import Rendering, writing
from torchcaps.data.synthnorb.solids import INSTANCES, LAMPS, Body, make_toy, photograph
from torchcaps.errors import DataError, check_range

SPLIT = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
AZIMUTHS, ELEVATIONS, LIGHTINGS = tuple(range(0, 36, 2)), tuple(range(9)), tuple(range(6))
PARALLAX = 3.0  # degrees by which each eye is off the middle
NAMES = {
    "train": "synthnorb-5x46789x9x18x6x1x48x48-training",
    "test": "synthnorb-5x01235x9x18x6x1x48x48-testing",
}


def render_synthnorb(
    split: str = "train",
    *,
    instances: Sequence[int] | None = None,
    elevations: Sequence[int] = ELEVATIONS,
    azimuths: Sequence[int] = AZIMUTHS,
    lightings: Sequence[int] = LIGHTINGS,
    size: int = 48,
    stereo: bool = False,
    seed: int = 0,
    progress: FetchProgress | None = None,
) -> ImageSet:
    """Render a split, or a part of it: every toy from every viewpoint under every lamp, as `read_norb` gives it.

    Views and their order are smallNORB's in kind: categories take turns, what else is known is shuffled.

    The split is "train" (toys 4, 6, 7, 8, 9 of each category) or "test" (toys 0, 1, 2, 3, 5); `instances` are toys,
    0..9, in place of its own. `elevations` are codes 0..8, for 30°, 35°, …, 70° above the table; `azimuths` codes
    0..35, times 10°, of which smallNORB has the even ones; `lightings` codes 0..5. Images have `size` × `size` pixels,
    each the mean of four rays; `stereo` renders two channels, left eye first, 6° apart. `seed`, 0 or more, is of the
    toys' proportions and the order. `progress("synthnorb train", images so far, images in all)` is called on the way.

    DataError: another split, or nothing to render. ValueError: a code or a size out of range.
    """
    if split not in SPLIT:
        raise DataError(f"split: expected 'train' or 'test', got {split!r}")
    toys = SPLIT[split] if instances is None else tuple(instances)
    for name, codes, last in (
        ("instances", toys, INSTANCES - 1),
        ("elevations", elevations, 8),
        ("azimuths", azimuths, 35),
        ("lightings", lightings, len(LAMPS) - 1),
    ):
        if not len(codes):
            raise DataError(f"{name}: expected at least one, got none")
        for code in codes:
            check_range(name, code, low=0, high=last)
    check_range("size", size, low=4)
    categories = range(len(SMALLNORB.classes))
    known = torch.tensor(list(product(categories, toys, elevations, azimuths, lightings)))
    images = torch.empty(len(known), 2 if stereo else 1, size, size, dtype=torch.uint8)
    views = images.unflatten(0, (-1, len(elevations) * len(azimuths), len(lightings)))
    lamps = [LAMPS[i] for i in lightings]
    for i, (category, toy) in enumerate(product(categories, toys)):
        paint = 0.78 + 0.14 * np.random.RandomState([seed, category, toy, 1]).random_sample()
        body = Body(make_toy(category, toy, seed))
        for j, (elevation, azimuth) in enumerate(product(elevations, azimuths)):
            for eye, off in enumerate((-PARALLAX, PARALLAX) if stereo else (0.0,)):
                angles = 30 + 5 * elevation, 10.0 * azimuth + off
                views[i, j, :, eye] = photograph(body, *angles, lamps, size=size, albedo=paint)
        if progress:
            progress(f"synthnorb {split}", (i + 1) * views[0].shape[:2].numel(), len(images))
    random = np.random.RandomState(seed)
    places = [random.permutation(np.flatnonzero(known[:, 0].numpy() == c)) for c in categories]
    order = torch.from_numpy(
        np.stack(places, axis=1).reshape(-1)
    )  # shuffled, with the categories in turn
    known = known[order]
    factors = {name: known[:, i + 1] for i, name in enumerate(FACTORS)}
    return ImageSet(
        images[order], known[:, 0], SMALLNORB.classes, "synthnorb", factors, group="instance"
    )


def write_synthnorb(folder: str | Path, progress: FetchProgress | None = None) -> None:
    """Render both splits and write them as smallNORB's files, each named when whole; DataError where that fails."""
    for split, stem in NAMES.items():
        images = render_synthnorb(split, progress=progress)
        info = torch.stack([images.factors[name] for name in FACTORS], dim=1)
        for kind, values in (
            ("info", info.int()),
            ("cat", images.labels.int()),
            ("dat", images.images),
        ):
            path = Path(folder) / f"{stem}-{kind}.mat"
            part = path.with_name(f"{path.name}.part")
            with writing(part):
                part.write_bytes(matrix_bytes(values.numpy()))
                os.replace(part, path)


INFO = replace(
    SMALLNORB,
    name="synthnorb",
    title="rendered toys, a stand-in for smallNORB",
    image_shape=(1, 48, 48),
    license="Apache-2.0, rendered by this package",
    source="torchcaps.data.render_synthnorb",
    # Rounding differs between processors, so that no digest holds everywhere.
    sha256={
        f"{stem}-{kind}.mat": None for stem in NAMES.values() for kind in ("dat", "cat", "info")
    },
    sources=(Rendering(write_synthnorb, "rendering"),),
)

register_norb(INFO)
