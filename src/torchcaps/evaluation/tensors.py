"""Running a model over images that are a tensor already, with the checks that every test on them shares."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.checks import check_images, check_labels
from torchcaps.evaluation.forward import device_of, evaluating

BATCH = 256


def image_activations(
    model: nn.Module, images: Float[Tensor, "n channels height width"], *, batch_size: int = BATCH
) -> Float[Tensor, "n classes"]:
    """`model(images)` in evaluation mode, a batch at a time: `[n, classes]` float32 on the CPU.

    Args:
        model: any classifier; its mode is restored.
        images: `[n, channels, height, width]` in [0, 1], on any device, n at least 1.
        batch_size: at least 1; it bounds the memory and changes no figure.

    Raises:
        ValueError: for images that are no images, or a model that does not give `[batch, classes]`.
    """
    check_images(images)
    check_range("batch_size", batch_size, low=1)
    place = device_of(model)
    with evaluating(model):
        parts = [model(batch.to(place)).float().cpu() for batch in images.split(batch_size)]
    if parts[0].dim() != 2:
        raise ValueError(f"model: expected [batch, classes] activations, got {list(parts[0].shape)}")
    # Joined outside inference mode: an ordinary tensor.
    return torch.cat(parts)


def check_labelled(images: Tensor, labels: Int64[Tensor, " n"], classes: int | None = None) -> None:
    """Raise ValueError unless `images` are pictures in [0, 1] and `labels` `[n]` go with them."""
    check_images(images)
    check_labels(labels, torch.iinfo(torch.int64).max if classes is None else classes)
    check_shape("labels", labels, ("n",), n=len(images))
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(f"images: expected pixels in [0, 1], got values from {low:.4g} to {high:.4g}")


def right_answers(
    model: nn.Module, images: Float[Tensor, "n channels height width"], labels: Int64[Tensor, " n"], batch_size: int
) -> Tensor:
    """`[n]` booleans on the CPU: whether the largest activation is that of the label.

    Raises:
        ValueError: for a label that is no class of the model.
    """
    found = image_activations(model, images, batch_size=batch_size)
    check_labels(labels, found.shape[1])
    return found.argmax(dim=1) == labels.cpu()


def share(flags: Tensor) -> float:
    """The share of true ones, in [0, 1]."""
    return float(flags.double().mean())
