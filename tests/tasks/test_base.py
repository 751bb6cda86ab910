"""What every task has by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps.errors import UnknownNameError
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task


class Bare(Task):
    """A task that says no more than it must."""

    name = "bare"

    def sample_batch(self, images, indices, generator):
        return (images.float_images(indices),)

    def training_step(self, batch, progress):
        return {"loss": self.model(batch[0]).square().mean()}

    def eval_step(self, batch):
        error = self.model(batch[0]).square().flatten(1).mean(dim=1)
        return {"loss": error, "accuracy": -error}


def test_a_task_of_one_loss_needs_no_name_for_it():
    assert Bare(nn.Linear(2, 2), TrainConfig()).loss == "loss"
    with pytest.raises(UnknownNameError, match="unknown loss 'margin'; known: loss"):
        Bare(nn.Linear(2, 2), TrainConfig.of(loss="margin"))


def test_a_task_that_says_nothing_of_single_pictures_says_so():
    with pytest.raises(ValueError, match="predict: the task bare says nothing of single pictures"):
        Bare(nn.Linear(2, 2), TrainConfig()).predict(torch.zeros(1, 1, 2, 2))
