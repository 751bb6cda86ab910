from __future__ import annotations

import pytest
import torch

from torchcaps.data import ImageSet
from torchcaps.errors import DataError
from torchcaps.training import TrainConfig
from torchcaps.training.sampling import augment, order, split

CPU = torch.device("cpu")


def images_of(count=8):
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def set_of(labels):
    pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return ImageSet(pixels, torch.tensor(labels), ("a", "b"), "two")


def test_every_epoch_takes_every_image_once_in_its_own_order():
    orders = [order(TrainConfig(seed=1), epoch, 500) for epoch in range(3)]
    assert all(sorted(found.tolist()) == list(range(500)) for found in orders)
    assert not any(torch.equal(orders[a], orders[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_order_and_augmentation_come_from_seed_and_place_alone():
    torch.manual_seed(5)
    first = order(TrainConfig(seed=1), 2, 50), augment(images_of(), TrainConfig(seed=1), 7)
    torch.manual_seed(6)
    again = order(TrainConfig(seed=1), 2, 50), augment(images_of(), TrainConfig(seed=1), 7)
    other = order(TrainConfig(seed=2), 2, 50), augment(images_of(), TrainConfig(seed=2), 7)
    for one, same, different in zip(first, again, other, strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, different)


def test_every_step_is_augmented_differently():
    config = TrainConfig()
    assert not torch.equal(augment(images_of(), config, 0), augment(images_of(), config, 1))


@pytest.mark.parametrize("changes", [{"shift": 3}, {"flip": True}, {"degrees": 30.0}, {"zoom": 0.2}])
def test_each_augmentation_is_switched_by_its_setting(changes):
    off = TrainConfig(shift=0)
    assert torch.equal(augment(images_of(), off, 3), images_of())
    assert not torch.equal(augment(images_of(), off.updated(**changes), 3), images_of())


def test_holding_out_takes_a_share_or_a_count_and_loses_no_image():
    labels = [0] * 20 + [1] * 10
    for holdout, expected in ((0.1, 3), (6, 6), (6.0, 6)):
        kept, held = split(set_of(labels), TrainConfig(holdout=holdout), CPU)
        assert len(held) == expected
        assert sorted(kept.images[:, 0, 0, 0].tolist() + held.images[:, 0, 0, 0].tolist()) == list(range(30))


def test_a_class_with_one_image_keeps_it_for_training():
    kept, held = split(set_of([0] * 10 + [1]), TrainConfig(holdout=0.5), CPU)
    assert (kept.labels == 1).sum() == 1
    assert (held.labels == 1).sum() == 0


@pytest.mark.parametrize("holdout", [0.1, 2, 30])
def test_nothing_left_on_one_side_is_an_error(holdout):
    with pytest.raises(DataError, match="holdout: "):
        split(set_of([0, 1]), TrainConfig(holdout=holdout), CPU)
