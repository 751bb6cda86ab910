"""Training in two processes, as one of them sees it; no process is launched."""

from __future__ import annotations

import pytest
import torch

from torchcaps.data import load_dataset
from torchcaps.distributed import Ranks
from torchcaps.models import create_model
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.training.loop import Trainer
from torchcaps.training.sampling import DatasetBatches

from .makers import TINY


@pytest.fixture
def trainer(bars):
    images = load_dataset(bars, "train")
    config = TrainConfig.of(loss="margin", reconstruction=0.0, shift=0, precision="fp32", lr=0.1)
    model = create_model("capsnet", num_classes=3, img_size=images.img_size, **TINY)
    task = create_task(model, config, images)
    batches = DatasetBatches(images, task, config)
    return Trainer(task, config, batches, images)


def compute_gradient(trainer, ranks, num_images):
    """Gradient of the class capsules that one process computes in a step of `num_images`."""
    trainer.updater.ranks = ranks
    images = trainer.batches.images
    [batch] = images.batches([torch.arange(num_images)], images.targets)
    trainer.updater.compute_gradients(batch, 0.0)
    return trainer.task.model.class_capsules.weight.grad


@pytest.mark.parametrize("num_images", [6, 5, 1])
def test_the_mean_gradient_of_two_processes_is_that_of_one(trainer, num_images):
    expected = compute_gradient(trainer, Ranks(0, 1), num_images)
    gradient0 = compute_gradient(trainer, Ranks(0, 2), num_images)
    gradient1 = compute_gradient(trainer, Ranks(1, 2), num_images)
    tolerance = 1e-5 * expected.abs().max().item()
    torch.testing.assert_close((gradient0 + gradient1) / 2, expected, rtol=0, atol=tolerance)
