"""Where the images of a step come from."""

from itertools import chain

import pytest

from torchcaps.data import load_dataset
from torchcaps.settings import TrainConfig
from torchcaps.training.batches import DatasetBatches
from torchcaps.training.sampling import epoch_permutation


@pytest.fixture
def images(bars):
    return load_dataset(bars, "train")


def indices_of(source, epoch, start=0):
    return [indices.tolist() for _, indices in source.epoch(epoch, start)]


def test_an_epoch_takes_every_image_once_in_the_order_of_the_seed(images):
    config = TrainConfig.of(seed=3, batch_size=7)
    source = DatasetBatches(images, config)
    batches = indices_of(source, epoch=2)
    assert (
        list(chain.from_iterable(batches)) == epoch_permutation(config, 2, images.labels).tolist()
    )
    assert len(batches) == source.steps(2)
    assert all(batch_images is images for batch_images, _ in source.epoch(2))


def test_steps_that_are_done_are_left_out(images):
    source = DatasetBatches(images, TrainConfig.of(batch_size=8))
    assert indices_of(source, epoch=0, start=2) == indices_of(source, epoch=0)[2:]


def test_a_last_batch_that_is_too_small_joins_the_one_before_it(images):
    source = DatasetBatches(images.subset(range(9)), TrainConfig.of(batch_size=4), smallest=2)
    assert [len(batch) for batch in indices_of(source, epoch=0)] == [4, 5]
