"""synthtoys: many toys, which differ from each other, in smallNORB's layout."""

from functools import partial

import torch

from torchcaps.data import dataset_info, render_synthnorb
from torchcaps.data.sets import synthnorb


def test_each_design_in_other_proportions_is_another_toy(monkeypatch):
    part = partial(render_synthnorb, instances=[0], azimuths=[0, 6])
    monkeypatch.setattr(synthnorb, "render_synthnorb", part)
    smaller = synthnorb.SYNTHTOYS | {"size": 8, "elevations": (4,)}
    monkeypatch.setattr(synthnorb, "SYNTHTOYS", smaller)
    monkeypatch.setattr(synthnorb, "NUM_PROPORTIONS", 2)
    images = synthnorb.render_synthtoys("test")
    counts = images.groups.unique(return_counts=True)[1]
    assert counts.tolist() == [4] * 10  # five categories, two proportions; two views and two lamps
    brightness = []
    for proportions in (0, 1):
        of_seed = torch.nonzero(images.targets["instance"] // 10 == proportions).flatten()
        brightness.append(images.subset(of_seed).images.double().mean())
    assert brightness[0] != brightness[1]


def test_infos_say_how_many():
    assert dataset_info("synthtoys").test == 100 * 18 * 3 * 2
    assert dataset_info("synthtoys-azimuth").test == 7_200
    assert dataset_info("synthtoys-azimuth-familiar").test == 3_600
