from itertools import product

import pytest
import torch

from torchcaps.data import ImageSet, dataset_info, split_views
from torchcaps.errors import DataError, UnknownNameError

TOYS = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}


def views(split):
    """A set with a pixel for each of smallNORB's 24,300 scenes."""
    known = torch.tensor(list(product(range(5), TOYS[split], range(9), range(0, 36, 2), range(6))))
    factors = dict(
        zip(
            ("instance", "elevation", "azimuth", "lighting"),
            known[:, 1:].unbind(dim=1),
            strict=True,
        )
    )
    images = torch.zeros(len(known), 1, 1, 1, dtype=torch.uint8)
    return ImageSet(images, known[:, 0], tuple("abcde"), split, factors, "instance")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("by", "codes"), [("azimuth", {30, 32, 34, 0, 2, 4}), ("elevation", {0, 1, 2})]
)
def test_both_protocols(split, by, codes):
    familiar, novel = split_views(views(split), by)
    assert (len(familiar), len(novel)) == (8_100, 16_200)
    assert set(familiar.factors[by].tolist()) == codes
    assert not codes & set(novel.factors[by].tolist())
    for part in (familiar, novel):
        assert part.labels.bincount().tolist() == [len(part) // 5] * 5
        other = "elevation" if by == "azimuth" else "azimuth"
        assert len(part.factors[other].unique()) == (9 if other == "elevation" else 18)


@pytest.mark.parametrize("base", ["smallnorb", "synthnorb"])
@pytest.mark.parametrize("by", ["azimuth", "elevation"])
def test_infos_say_how_many(base, by):
    novel, familiar = dataset_info(f"{base}-{by}"), dataset_info(f"{base}-{by}-familiar")
    assert (novel.train, novel.test, familiar.train, familiar.test) == (8_100, 16_200, 8_100, 8_100)


def test_what_cannot_be_parted():
    whole = views("test")
    with pytest.raises(
        UnknownNameError, match="unknown viewpoint 'azimut'; did you mean 'azimuth'"
    ):
        split_views(whole, "azimut")
    with pytest.raises(DataError, match="test: all of its images are familiar by azimuth"):
        split_views(split_views(whole, "azimuth").familiar, "azimuth")
    bare = ImageSet(whole.images, whole.labels, whole.classes, "bare")
    with pytest.raises(DataError, match="bare: expected the factor 'azimuth', got none"):
        split_views(bare, "azimuth")
