"""Weights of classes in a loss, so that rare classes count as much as frequent ones."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from torchcaps.data.classes import class_counts
from torchcaps.transfer import to_device, widen


def balanced_weights(
    labels: Shaped[Tensor, " n *classes"], num_classes: int
) -> Float[Tensor, " classes"]:
    """Weight of a class: `w_c = m / (C * m_c)`, the mean number of labels over its own.

    There are m labels, m_c of them of class c, and C classes with labels (a class without one has
    the weight 1). The mean of w over all labels is 1. It is scikit-learn's "balanced".

    Args:
        labels: of the training images: one class each, or 0 and 1 for each class.
        num_classes: number of weights.
    """
    counts = class_counts(labels, num_classes)
    mean_count = counts.sum() / (counts > 0).sum()
    return torch.where(counts > 0, mean_count / widen(counts), 1.0).float()


def image_weights(
    class_weights: Float[Tensor, " classes"], labels: Shaped[Tensor, " batch *classes"]
) -> Float[Tensor, " batch"]:
    """Weight of an image: that of its class; of several classes their mean."""
    weights = to_device(class_weights, labels.device)
    if labels.dim() == 1:
        return weights[labels]
    return (weights * labels).sum(dim=1) / labels.sum(dim=1)


def image_losses(
    loss: Callable[..., Tensor], scores: Any, targets: Tensor, *arguments: Any
) -> Float[Tensor, " batch"]:
    """The loss of each image by itself: as that of a batch of this one image.

    Their mean is the loss of the batch, for a loss that is a mean over images.

    Args:
        loss: takes scores, targets and the arguments; returns a mean over a batch.
        scores: tensors `[batch, ...]` or None, which may be nested in tuples.
        targets: `[batch, ...]`.
        arguments: what else the loss takes.
    """

    def image_loss(image_scores: Any, target: Tensor) -> Tensor:
        batch = tree_map_only(Tensor, lambda x: x.unsqueeze(0), (image_scores, target))
        return loss(*batch, *arguments)

    axes = tree_map(lambda leaf: None if leaf is None else 0, scores)
    losses: Tensor = torch.func.vmap(image_loss, in_dims=(axes, 0))(scores, targets)
    return losses
