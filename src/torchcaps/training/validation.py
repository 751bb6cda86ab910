"""How good a model is on the held-out images, between epochs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.data import ImageSet, multi_hot
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
    wanted = labels if labels.dim() == 1 else multi_hot(labels, activation.shape[1])
    loss = margin_loss(activation, wanted).item()
    accuracy = right(activation, labels).double().mean().item()
    return Validation(accuracy, loss, diagnose(activation, labels, loss))


def right(activation: Float[Tensor, "n classes"], labels: Int64[Tensor, " n *k"]) -> Bool[Tensor, " n"]:
    """Whether the most active class is the label; of k labels, whether the k most active classes are exactly those."""
    if labels.dim() == 1:
        return activation.argmax(dim=1) == labels
    found = activation.topk(labels.shape[1], dim=1).indices
    return (found.unsqueeze(1) == labels.unsqueeze(2)).any(dim=2).all(dim=1)
