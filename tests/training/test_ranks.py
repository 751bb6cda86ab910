"""Training in two processes, as one of them sees it; no process is launched."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from torchcaps.data import load_dataset
from torchcaps.distributed import Ranks
from torchcaps.errors import TrainingError
from torchcaps.models import create_model
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.training import Interrupted, loggers, train
from torchcaps.training.batches import DatasetBatches
from torchcaps.training.loggers import MemoryLogger
from torchcaps.training.loop import Trainer

from .makers import TINY, stop_after, tiny


@pytest.fixture
def trainer(bars):
    images = load_dataset(bars, "train")
    config = TrainConfig.of(loss="margin", reconstruction=0.0, shift=0, precision="fp32", lr=0.1)
    model = create_model("capsnet", num_classes=3, img_size=images.img_size, **TINY)
    task = create_task(model, config, images)
    batches = DatasetBatches(images, task, config)
    return Trainer(task, config, batches, images, MemoryLogger(), initial_weights=model.state_dict)


def compute_gradient(trainer, ranks, num_images):
    """Gradient of the class capsules that one process computes in a step of `num_images`."""
    trainer.updater.ranks = ranks
    images = trainer.batches.images
    [batch] = images.batches([torch.arange(num_images)], images.targets)
    trainer.updater.compute_gradients(batch, 0, 0.0)
    return trainer.task.model.class_capsules.weight.grad


@pytest.mark.parametrize("num_images", [6, 5, 1])
def test_the_mean_gradient_of_two_processes_is_that_of_one(trainer, num_images):
    expected = compute_gradient(trainer, Ranks(0, 1), num_images)
    gradient0 = compute_gradient(trainer, Ranks(0, 2), num_images)
    gradient1 = compute_gradient(trainer, Ranks(1, 2), num_images)
    tolerance = 1e-5 * expected.abs().max().item()
    torch.testing.assert_close((gradient0 + gradient1) / 2, expected, rtol=0, atol=tolerance)


def resume_beside(monkeypatch, bars, folder, reply):
    """Resume a run as rank 0 of two, whose partner replies with this checksum, or with the same."""
    with pytest.raises(Interrupted):
        train(tiny(bars), folder, should_stop=stop_after(4))
    ranks = SimpleNamespace(
        is_main=True,
        world_size=2,
        gather=lambda checksum: [checksum, reply or checksum],
        broadcast=lambda state: state,
    )
    monkeypatch.setattr(loggers, "current", lambda: ranks)
    return train(tiny(bars), folder, resume=True)


def test_processes_with_the_same_images_continue_a_run(monkeypatch, bars, tmp_path):
    run = resume_beside(monkeypatch, bars, tmp_path / "run", reply=None)
    assert run.is_finished


def test_processes_with_different_images_are_refused(monkeypatch, bars, tmp_path):
    with pytest.raises(TrainingError, match="expected the same images and labels in all processes"):
        resume_beside(monkeypatch, bars, tmp_path / "run", reply="another checksum")
