"""Fifty toys in five categories, each put together from the solids that `toys.toml` lists."""

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data.synthnorb.solids import Solid, ball, block, reach, rod, wing

INSTANCES = 10
JITTER = 0.06  # largest change of a proportion by the seed, as a fraction
KINDS: dict[str, Callable[..., Solid]] = {"ball": ball, "block": block, "rod": rod, "wing": wing}

Toy = list[Solid]


@cache
def _parts() -> list[dict[str, list[tuple[str, Any]]]]:
    """For each category, the solids of each toy: a name of `KINDS` and its arguments."""
    return list(tomllib.loads(Path(__file__).with_name("toys.toml").read_text("utf-8")).values())


def make_toy(category: int, instance: int, seed: int = 0) -> Toy:
    """The solids of toy 0..9 of a category (0 animal, 1 human, 2 airplane, 3 truck, 4 car).

    It stands on the table, over the origin, with its longest side 1.9 and no higher than 1.5.
    """
    stretch = 1 + JITTER * np.random.RandomState([seed, category, instance]).uniform(-1, 1, 3)
    solids = [KINDS[kind](*numbers) for kind, *numbers in _parts()[category][str(instance)]]
    solids = [Solid(s.kind, s.centre * stretch, s.frame * stretch[:, None], s.top) for s in solids]
    centre, frame = np.stack([s.centre for s in solids]), np.stack([s.frame for s in solids])
    far = reach(torch.tensor([s.kind for s in solids]), torch.from_numpy(frame)).numpy()
    least, most = (centre - far).min(axis=0), (centre + far).max(axis=0)
    shift = np.array([(least[0] + most[0]) / 2, (least[1] + most[1]) / 2, least[2]])
    sides = most - least
    scale = min(1.9 / max(sides[0], sides[1]), 1.5 / sides[2])
    return [Solid(s.kind, (s.centre - shift) * scale, s.frame * scale, s.top) for s in solids]
