from itertools import product

import pytest
import torch

from torchcaps.data import Dataset, dataset_info, split_views
from torchcaps.errors import UnknownNameError

from ..makers import refusal

FACTORS = ("instance", "elevation", "azimuth", "lighting")
FAMILIAR = {"azimuth": {30, 32, 34, 0, 2, 4}, "elevation": {0, 1, 2}}


@pytest.fixture(scope="module")
def scenes():
    """A set with a pixel for each of the 24,300 scenes of smallNORB's test split."""
    toys = (0, 1, 2, 3, 5)
    codes = torch.tensor(list(product(range(5), toys, range(9), range(0, 36, 2), range(6))))
    labels, *columns = codes.unbind(dim=1)
    images = torch.zeros(len(codes), 1, 1, 1, dtype=torch.uint8)
    factors = dict(zip(FACTORS, columns, strict=True))
    return Dataset(images, {"label": labels, **factors}, tuple("abcde"), "scenes")


@pytest.mark.parametrize("by", FAMILIAR)
def test_a_third_of_the_views_is_familiar(scenes, by):
    familiar, novel = split_views(scenes, by)
    assert (len(familiar), len(novel)) == (8_100, 16_200)
    assert set(familiar.targets[by].tolist()) == FAMILIAR[by]
    assert not FAMILIAR[by] & set(novel.targets[by].tolist())
    for views in (familiar, novel):
        assert views.labels.bincount().tolist() == [len(views) // 5] * 5
        for factor in FACTORS:
            if factor != by:
                assert torch.equal(views.targets[factor].unique(), scenes.targets[factor].unique())


@pytest.mark.parametrize("base", ["smallnorb", "synthnorb"])
@pytest.mark.parametrize("by", FAMILIAR)
def test_infos_say_how_many(base, by):
    novel = dataset_info(f"{base}-{by}")
    familiar = dataset_info(f"{base}-{by}-familiar")
    assert (novel.train, novel.test) == (8_100, 16_200)
    assert (familiar.train, familiar.test) == (8_100, 8_100)


def test_what_cannot_be_split_is_refused(scenes):
    with refusal("unknown viewpoint 'azimut'; did you mean", UnknownNameError):
        split_views(scenes, "azimut")
    with refusal("scenes: all of its images are familiar by azimuth"):
        split_views(split_views(scenes, "azimuth").familiar, "azimuth")
    bare = Dataset(scenes.images, {"label": scenes.labels}, scenes.classes, "bare")
    with refusal("bare: expected the target 'azimuth', got .'label'"):
        split_views(bare, "azimuth")
