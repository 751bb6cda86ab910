"""What an evaluation asks of its arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.errors import check_shape


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise ValueError unless `labels` are int64 indices of `classes` classes, `[n]`, n at least 1."""
    check_shape("labels", labels, ("n",))
    if labels.dtype != torch.int64:
        raise ValueError(f"labels: expected int64 class indices, got {labels.dtype}")
    if len(labels) == 0:
        raise ValueError("labels: expected at least one sample, got none")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"labels: expected class indices from 0 to {classes - 1}, got {low if low < 0 else high}")


def check_lengths(activations: Tensor) -> None:
    """Raise ValueError unless all activations are in [0, 1], which neither logits nor NaN are."""
    # A length computed in bfloat16 may round a little above one; a logit lies far outside.
    low, high = float(activations.min()), float(activations.max())
    if not (low >= -0.01 and high <= 1.01):
        raise ValueError(
            f"activations: expected lengths in [0, 1], not logits, got values from {low:.4g} to {high:.4g}"
        )


def check_images(images: Tensor) -> None:
    """Raise ValueError unless `images` are floating-point `[batch, channels, height, width]`, batch at least 1."""
    check_shape("images", images, ("batch", "channels", "height", "width"))
    if not images.is_floating_point():
        raise ValueError(f"images: expected floating-point values in [0, 1], got {images.dtype}")
    if len(images) == 0:
        raise ValueError("images: expected at least one image, got none")
