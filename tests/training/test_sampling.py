from __future__ import annotations

import pytest
import torch

from torchcaps.data import ImageSet, PlacedSet, make_pairs, placed
from torchcaps.errors import DataError
from torchcaps.models import CNN
from torchcaps.tasks import create_task
from torchcaps.training import TrainConfig
from torchcaps.training.sampling import cropped, epoch_permutation, split, step_seed

CPU = torch.device("cpu")


def images_of(count=8):
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(0))


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
    generator = torch.Generator().manual_seed(step_seed(config, step))
    return create_task(model, config, images).train().sample_batch(images, indices, generator)


def augment(images, config, step):
    labels = torch.zeros(len(images), dtype=torch.int64)
    return draw(
        ImageSet(images, labels, ("a", "b"), "some"), torch.arange(len(images)), config, step
    ).images


def set_of(labels):
    pixels = (
        torch.arange(len(labels), dtype=torch.uint8)
        .view(-1, 1, 1, 1)
        .expand(-1, 1, 2, 2)
        .contiguous()
    )
    return ImageSet(pixels, torch.tensor(labels), ("a", "b"), "two")


def test_every_epoch_takes_every_image_once_in_its_own_order():
    orders = [epoch_permutation(TrainConfig.of(seed=1), epoch, 500) for epoch in range(3)]
    assert all(sorted(order.tolist()) == list(range(500)) for order in orders)
    assert not any(torch.equal(orders[a], orders[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def random_choices(seed):
    """The order of an epoch, and the images of a step."""
    config = TrainConfig.of(seed=seed)
    return epoch_permutation(config, 2, 50), augment(images_of(), config, 7)


def test_order_and_augmentation_come_from_seed_and_place_alone():
    torch.manual_seed(5)
    expected = random_choices(seed=1)
    torch.manual_seed(6)
    repeated = random_choices(seed=1)
    different = random_choices(seed=2)
    for n in range(2):
        assert torch.equal(expected[n], repeated[n])
        assert not torch.equal(expected[n], different[n])


def test_every_step_is_augmented_differently():
    config = TrainConfig()
    assert not torch.equal(augment(images_of(), config, 0), augment(images_of(), config, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"shift": 3},
        {"flip": True},
        {"degrees": 30.0},
        {"zoom": 0.2},
        {"shear": 0.3},
        {"aspect": 0.3},
        {"morphology": 1.0},
        {"erase": 3},
        {"color_jitter": True},
    ],
)
def test_each_augmentation_is_switched_by_its_setting(changes):
    off = TrainConfig.of(shift=0)
    assert torch.equal(augment(images_of(), off, 3), images_of())
    assert not torch.equal(augment(images_of(), off.updated(**changes), 3), images_of())


def test_holding_out_takes_a_share_or_a_count_and_loses_no_image():
    labels = [0] * 20 + [1] * 10
    for holdout, expected in ((0.1, 3), (6, 6), (6.0, 6)):
        train_images, val_images = split(set_of(labels), TrainConfig.of(holdout=holdout), CPU)
        assert len(val_images) == expected
        assert sorted(
            train_images.images[:, 0, 0, 0].tolist() + val_images.images[:, 0, 0, 0].tolist()
        ) == list(range(30))


def test_a_class_with_one_image_keeps_it_for_training():
    train_images, val_images = split(set_of([0] * 10 + [1]), TrainConfig.of(holdout=0.5), CPU)
    assert (train_images.labels == 1).sum() == 1
    assert (val_images.labels == 1).sum() == 0


@pytest.mark.parametrize("holdout", [0.1, 2, 30])
def test_nothing_left_on_one_side_is_an_error(holdout):
    with pytest.raises(DataError, match="holdout: "):
        split(set_of([0, 1]), TrainConfig.of(holdout=holdout), CPU)


def test_an_epoch_of_a_given_size_takes_that_many_different_images():
    config = TrainConfig.of(epoch_size=20)
    orders = [epoch_permutation(config, epoch, 50) for epoch in range(2)]
    assert all(len(set(order.tolist())) == len(order) == 20 for order in orders)
    assert set(orders[0].tolist()) != set(orders[1].tolist())
    large_epoch = epoch_permutation(TrainConfig.of(epoch_size=80), 0, 50)
    assert len(large_epoch) == 80
    assert set(large_epoch[:50].tolist()) == set(range(50))  # all of them before any comes again


def test_a_crop_is_anywhere_in_training_and_the_middle_in_validation():
    config = TrainConfig.of(shift=0, crop=8)
    first, second = augment(images_of(), config, 0), augment(images_of(), config, 1)
    assert first.shape == (8, 1, 8, 8)
    assert not torch.equal(first, second)
    images = ImageSet(images_of(), torch.zeros(8, dtype=torch.int64), ("a", "b"), "some")
    assert torch.equal(cropped(images, 8).images, images_of()[:, :, 2:10, 2:10])
    assert cropped(images, None) is images


def pairs_of(count=12):
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 120, (count, 1, 10, 10), dtype=torch.uint8, generator=generator)
    source = ImageSet(images, torch.arange(count) % 3, ("a", "b", "c"), "some")
    return make_pairs(source, max_shift=2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"shift": 2}, {"flip": True}, {"degrees": 20.0}, {"crop": 9}, {"shift": 1, "crop": 11}],
)
def test_the_parts_of_a_composite_go_where_it_goes(changes):
    config = TrainConfig.of(shift=0).updated(**changes)
    batch = draw(pairs_of(), torch.arange(12), config, 5)
    assert batch.labels.shape == (12, 2)
    assert (batch.labels[:, 0] != batch.labels[:, 1]).all()
    # No pixel of these is above 119, so that no sum is cut off at 255.
    torch.testing.assert_close(batch.images, batch.singles.sum(dim=1))


def test_light_changes_the_composite_and_not_what_is_to_be_drawn():
    plain = draw(pairs_of(), torch.arange(12), TrainConfig.of(shift=0), 5)
    bright = draw(pairs_of(), torch.arange(12), TrainConfig.of(shift=0, color_jitter=True), 5)
    assert torch.equal(bright.singles, plain.singles)
    assert not torch.equal(bright.images, plain.images)


def test_every_step_has_composites_and_places_of_its_own():
    everything, config = torch.arange(12), TrainConfig.of(shift=0)
    singles = pairs_of().maker.source
    for image_set in (pairs_of(), placed(singles, 20)):
        first, repeated = (
            draw(image_set, everything, config, 1),
            draw(image_set, everything, config, 1),
        )
        assert torch.equal(first.images, repeated.images)
        assert not torch.equal(first.images, draw(image_set, everything, config, 2).images)
    assert isinstance(placed(singles, 20), PlacedSet)


def test_holding_out_composites_parts_the_images_they_consist_of():
    train_images, val_images = split(pairs_of(), TrainConfig.of(holdout=0.25), CPU)
    assert len(train_images.maker.source) + len(val_images.maker.source) == 12
    train_pixels, val_pixels = (
        {tuple(image.flatten().tolist()) for image in part.maker.source.images}
        for part in (train_images, val_images)
    )
    assert not train_pixels & val_pixels


def test_few_labels_are_as_many_of_each_class_and_part_of_more():
    images = set_of([0] * 30 + [1] * 20)

    def train_images(per_class, seed=0):
        config = TrainConfig.of(holdout=10, per_class=per_class, seed=seed)
        return split(images, config, CPU)[0]

    def pixels(subset):
        return set(subset.images[:, 0, 0, 0].tolist())

    subset3 = train_images(3)
    assert subset3.labels.bincount().tolist() == [3, 3]
    assert pixels(subset3) < pixels(train_images(6))
    assert pixels(subset3) != pixels(train_images(3, seed=1))
    with pytest.raises(ValueError, match="labels: expected"):
        split(pairs_of(), TrainConfig.of(holdout=0.25, per_class=2), CPU)
