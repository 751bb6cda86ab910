from __future__ import annotations

import pytest
import torch

from tasks.makers import batch_of
from torchcaps.data import Dataset, make_pairs, placed
from torchcaps.models import CNN
from torchcaps.tasks import create_task
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig
from torchcaps.training.sampling import (
    BATCH,
    DROPOUT,
    ORDER,
    cropped,
    epoch_permutation,
    split,
    step_seed,
)


def images_of(count=8):
    return torch.rand(count, 1, 12, 12, generator=seeded())


def draw(images, indices, config, step):
    """A batch of a step of a training."""
    model = CNN(
        images.num_classes,
        1,
        12,
        channels=(1,),
        kernels=(1,),
        hidden=(),
        multilabel=images.labels.dim() == 2,
    )
    generator = seeded(step_seed(config, step))
    return batch_of(create_task(model, config, images).train(), images, indices, generator)


def augment(images, config, step):
    labels = torch.zeros(len(images), dtype=torch.int64)
    image_set = Dataset(images, {"label": labels}, ("a", "b"), "some")
    return draw(image_set, torch.arange(len(images)), config, step).inputs


def set_of(labels):
    """Images whose pixels are their number."""
    numbers = torch.arange(len(labels), dtype=torch.uint8)
    pixels = numbers.view(-1, 1, 1, 1).repeat(1, 1, 2, 2)
    return Dataset(pixels, {"label": torch.tensor(labels)}, ("a", "b"), "two")


def numbers_of(images):
    """Numbers of the images of `set_of`."""
    return images.images[:, 0, 0, 0].tolist()


def test_augmentation_order_and_dropout_draw_numbers_of_their_own():
    seeds = [step_seed(TrainConfig.of(seed=1), 3, stream) for stream in (BATCH, ORDER, DROPOUT)]
    assert len(set(seeds)) == 3


def test_every_epoch_takes_every_image_once_in_its_own_order():
    orders = set()
    for epoch in range(3):
        order = epoch_permutation(TrainConfig.of(seed=1), epoch, torch.zeros(500)).tolist()
        assert sorted(order) == list(range(500))
        orders.add(tuple(order))
    assert len(orders) == 3


@pytest.mark.parametrize(("holdout", "expected"), [(0.1, 3), (6, 6), (6.0, 6)])
def test_holding_out_takes_a_share_or_a_count_and_loses_no_image(holdout, expected):
    images = set_of([0] * 20 + [1] * 10)
    train_images, val_images = split(images, TrainConfig.of(holdout=holdout))
    assert len(val_images) == expected
    assert sorted(numbers_of(train_images) + numbers_of(val_images)) == list(range(30))


def test_another_seed_takes_other_images_of_each_class():
    images = set_of([0] * 20 + [1] * 20)
    chosen = set()
    for seed in range(3):
        train_images, _ = split(images, TrainConfig.of(per_class=4, seed=seed), images)
        assert train_images.labels.bincount().tolist() == [4, 4]
        chosen.add(tuple(numbers_of(train_images)))
    assert len(chosen) == 3


def test_a_small_epoch_takes_different_images():
    config = TrainConfig.of(epoch_size=20)
    epoch0 = epoch_permutation(config, 0, torch.zeros(50))
    epoch1 = epoch_permutation(config, 1, torch.zeros(50))
    assert len(epoch0) == len(epoch0.unique()) == 20
    assert len(epoch1) == len(epoch1.unique()) == 20
    assert not torch.equal(epoch0.sort().values, epoch1.sort().values)


def test_a_large_epoch_repeats_images_only_after_all_of_them():
    order = epoch_permutation(TrainConfig.of(epoch_size=80), 0, torch.zeros(50))
    assert len(order) == 80
    assert torch.equal(order[:50].sort().values, torch.arange(50))


def test_a_crop_is_anywhere_in_training_and_the_middle_in_validation():
    config = TrainConfig.of(shift=0, crop=8)
    crops = augment(images_of(), config, 0)
    assert crops.shape == (8, 1, 8, 8)
    assert not torch.equal(crops, augment(images_of(), config, 1))
    images = Dataset(images_of(), {"label": torch.zeros(8, dtype=torch.int64)}, ("a", "b"), "some")
    assert torch.equal(cropped(images, 8).images, images_of()[:, :, 2:10, 2:10])
    assert cropped(images, None) is images


def pairs_of(count=12):
    generator = seeded(3)
    images = torch.randint(0, 120, (count, 1, 10, 10), dtype=torch.uint8, generator=generator)
    source = Dataset(images, {"label": torch.arange(count) % 3}, ("a", "b", "c"), "some")
    return make_pairs(source, max_shift=2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"flip": True}, {"degrees": 20.0}, {"shift": 1, "crop": 11}],
)
def test_the_parts_of_a_composite_go_where_it_goes(changes):
    config = TrainConfig.of(shift=0).updated(**changes)
    batch = draw(pairs_of(), torch.arange(12), config, 5)
    assert (batch.targets["labels"].sum(dim=1) == 2).all()
    # No pixel of these is above 119, so that no sum is cut off at 255.
    torch.testing.assert_close(batch.inputs, batch.targets["singles"].sum(dim=1))


def test_color_jitter_changes_the_composite_and_not_its_parts():
    plain = draw(pairs_of(), torch.arange(12), TrainConfig.of(shift=0), 5)
    bright = draw(pairs_of(), torch.arange(12), TrainConfig.of(shift=0, color_jitter=True), 5)
    assert torch.equal(bright.targets["singles"], plain.targets["singles"])
    assert not torch.equal(bright.inputs, plain.inputs)


def test_every_step_has_composites_and_places_of_its_own():
    indices = torch.arange(12)
    config = TrainConfig.of(shift=0)
    singles = pairs_of().maker.source
    for image_set in (pairs_of(), placed(singles, 20)):
        batch = draw(image_set, indices, config, 1)
        assert torch.equal(batch.inputs, draw(image_set, indices, config, 1).inputs)
        assert not torch.equal(batch.inputs, draw(image_set, indices, config, 2).inputs)


def test_composites_of_both_splits_have_no_image_in_common():
    train_images, val_images = split(pairs_of(), TrainConfig.of(holdout=0.25))
    train_sources = train_images.maker.source.images
    val_sources = val_images.maker.source.images
    sources = torch.cat([train_sources, val_sources])
    assert len(sources) == len(sources.unique(dim=0)) == 12


def test_a_balanced_epoch_has_every_class_equally_often():
    labels = torch.tensor([0] * 40 + [1] * 7 + [2] * 3)
    config = TrainConfig.of(balance=True)
    epochs = [epoch_permutation(config, epoch, labels) for epoch in range(6)]
    for order in epochs:
        assert len(order) == 50
        assert sorted(labels[order].bincount().tolist()) == [16, 17, 17]
        counts = order.bincount(minlength=50)
        # Within a class, no image is taken twice more often than another.
        for label in range(3):
            class_counts = counts[labels == label]
            assert class_counts.max() - class_counts.min() <= 1
        # Every batch is balanced too.
        for batch in order.split(6)[:-1]:
            assert labels[batch].bincount(minlength=3).tolist() == [2, 2, 2]
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[2], epoch_permutation(config, 2, labels))
    # All images of the large class are taken in turn.
    assert len(torch.cat(epochs).unique()) > 45


def test_a_balanced_epoch_may_be_longer_or_shorter():
    labels = torch.tensor([0] * 4 + [3])  # two classes have no image
    for size in (1, 2, 9, 20):
        config = TrainConfig.of(balance=True, epoch_size=size)
        counts = labels[epoch_permutation(config, 0, labels)].bincount(minlength=4)
        assert counts.sum() == size
        assert abs(counts[0] - counts[3]) <= 1
