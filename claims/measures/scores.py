"""How strongly a model speaks for a class, without the ties of numbers that round to one."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.evaluation.base import Images, batches, evaluating, image_activations
from torchcaps.types import spec_of

Scores = Float[Tensor, "n classes"]


def class_scores(model: nn.Module, images: Images) -> Scores:
    """Log-probabilities of a model with logits, and activations of any other; in float64."""
    if not spec_of(model).logits:
        return image_activations(model, images).double()
    logits = image_logits(model, images)
    if spec_of(model).multilabel:
        return nn.functional.logsigmoid(logits)
    return logits.log_softmax(dim=1)


def image_logits(model: Any, images: Images) -> Scores:
    """Logits `[n, classes]` of a model that has them, in float64 on the CPU."""
    parts = []
    with evaluating(model):
        for batch, _ in batches(model, images):
            parts.append(model.logits(batch).double().cpu())
    return torch.cat(parts)
