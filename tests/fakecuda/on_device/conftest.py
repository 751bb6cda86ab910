"""What the checks have in common: a tensor on the device, and faults in a step."""

import pytest
import torch

from torchcaps.tasks.classify import Classify


@pytest.fixture
def x():
    return torch.arange(4.0, device="cuda")


@pytest.fixture
def change_loss(monkeypatch):
    """A function that lets another one change the loss of each step, beside the activations."""

    def change(function):
        training_step = Classify.training_step

        def changed_step(self, batch, fraction_trained):
            losses = training_step(self, batch, fraction_trained)
            return losses | {"loss": function(losses["loss"], losses["activation"])}

        monkeypatch.setattr(Classify, "training_step", changed_step)

    return change
