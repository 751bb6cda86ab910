"""How good a model is on the held-out images, between epochs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from torchcaps.data import ImageSet
from torchcaps.functional import margin_loss
from torchcaps.training.collapse import diagnose

BATCH = 256


class Validation(NamedTuple):
    """Accuracy in [0, 1], mean margin loss, and what is wrong with the model, in sentences."""

    accuracy: float
    loss: float
    warnings: list[str]


@torch.inference_mode()
def validate(model: nn.Module, images: ImageSet, bf16: bool) -> Validation:
    """Measure `model` on images that are on its device; it is in evaluation mode afterwards."""
    model.eval()
    device, outcomes = images.images.device, []
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for batch in torch.arange(len(images), device=device).split(BATCH):
            outcomes.append(model(images.float_images(batch)).float())
    activation, labels = torch.cat(outcomes), images.labels
    loss = margin_loss(activation, labels).item()
    accuracy = (activation.argmax(dim=1) == labels).double().mean().item()
    return Validation(accuracy, loss, diagnose(activation, labels, loss))
