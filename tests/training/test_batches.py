"""Where the batches of a step come from."""

from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchcaps as tc
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.testing import seeded
from torchcaps.training.inputs import read_samples
from torchcaps.training.sampling import DatasetBatches, epoch_permutation


def source_of(images, **settings):
    config = TrainConfig.of(**settings)
    task = create_task(nn.Linear(2, 3), config, images)
    return DatasetBatches(images, task, config)


def batches_of(source, epoch, start=0):
    first_step = epoch * source.steps(epoch) + start
    for step, item in enumerate(source.epoch(epoch, start), start=first_step):
        source.seed(step)
        yield source.load(item)


def indices_of(source, epoch, start=0):
    return [batch.indices.tolist() for batch in source.epoch(epoch, start)]


def test_an_epoch_takes_every_image_once_in_the_order_of_the_seed(images):
    source = source_of(images, seed=3, batch_size=7)
    order = list(chain.from_iterable(indices_of(source, epoch=2)))
    assert order == epoch_permutation(source.config, 2, images.labels).tolist()
    assert len(indices_of(source, epoch=2)) == source.steps(2)
    for batch in batches_of(source, 2):
        assert torch.equal(batch.inputs, images.float_images(batch.indices))
        assert torch.equal(batch.targets["label"], images.labels[batch.indices])


def test_steps_that_are_done_are_left_out(images):
    source = source_of(images, batch_size=8)
    assert indices_of(source, epoch=0, start=2) == indices_of(source, epoch=0)[2:]


def test_composites_of_a_step_are_the_same_however_many_steps_are_left_out(images):
    pairs = tc.data.make_pairs(images, max_shift=1)
    config = TrainConfig.of(batch_size=8)
    model = tc.create_model("capsnet_small", num_classes=3, img_size=pairs.img_size)
    source = DatasetBatches(pairs, create_task(model, config, pairs), config)
    batches = list(batches_of(source, 1))
    assert torch.equal(next(batches_of(source, 1, start=1)).inputs, batches[1].inputs)
    assert not torch.equal(next(batches_of(source, 0)).inputs, batches[0].inputs)


def pixels(count=24):
    return torch.rand(count, 1, 4, 4, generator=seeded())


def test_a_step_of_several_batches_of_a_loader_is_one_step_on_all_of_them():
    """Without a schedule, one step of SGD on two batches of 6 is one on all 12 images."""
    weights = []
    for batch_size, accumulate in ((12, 1), (6, 2)):
        layer = nn.Linear(16, 3)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        loader = DataLoader(TensorDataset(pixels(12), torch.arange(12) % 3), batch_size)
        validation = (pixels(3), torch.arange(3))
        tc.fit(
            nn.Sequential(nn.Flatten(), layer),
            loader,
            validation=validation,
            epochs=1,
            accumulate=accumulate,
            optimizer="sgd",
            momentum=0.0,
            lr=0.1,
            schedule="constant",
            precision="fp32",
            verbose=False,
        )
        weights.append(layer.weight.detach())
    assert weights[0].abs().max() > 1e-4
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize(
    "sample",
    [
        (pixels(3), torch.tensor([2, 0, 1])),
        [pixels(3), torch.tensor([2, 0, 1]), "more"],
        {"pixel_values": pixels(3), "labels": ["2", "0", "1"]},
        tc.data.Batch(pixels(3), {"label": torch.tensor([2, 0, 1])}, torch.arange(3)),
    ],
)
def test_batches_of_a_loader_become_one_type(sample):
    inputs, read = read_samples([sample], ("0", "1", "2"))
    assert torch.equal(inputs, pixels(3))
    assert read.tensors["label"].tolist() == [2, 0, 1]
