"""Running a model over many images: evaluation mode, no gradients, bounded batches."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from torchcaps.errors import check_positive, check_shape
from torchcaps.evaluation.base import (
    BATCH,
    Activations,
    Images,
    Labels,
    check_images,
    check_labels,
)
from torchcaps.transfer import (
    autocast as autocast,
    device_of as device_of,
    eval_mode as eval_mode,
    evaluating as evaluating,
    widen,
)
from torchcaps.types import ModelSpec, declares, model_metadata, spec_of


def activations_of(model: nn.Module, images: Tensor, spec: ModelSpec | None = None) -> Activations:
    """Return what a model gives for the classes, in float32; the softmax of logits.

    Args:
        model: any model.
        images: `[batch, channels, height, width]`, on its device.
        spec: what a model that declares nothing is taken for.
    """
    outputs: Tensor = model(images).float()
    if declares(model) or model_metadata(model).spec is not None:
        spec = spec_of(model)
    has_logits = spec is not None and spec.activation == "logit" and outputs.dim() == 2
    return outputs.softmax(dim=1) if has_logits else outputs


def image_activations(model: nn.Module, images: Images, *, batch_size: int = BATCH) -> Activations:
    """Run a classifier over images, a batch at a time.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        batch_size: images at a time.

    Returns:
        `[n, classes]` activations, as float32 on the CPU.

    Raises:
        ArgumentError: for images that do not fit, or a model that gives other axes.
    """
    check_images(images)
    with evaluating(model):
        parts = [
            activations_of(model, batch).cpu()
            for batch, _ in batches(model, images, batch_size=batch_size)
        ]
    check_shape("output of the model", parts[0], ("batch", "classes"))
    return torch.cat(parts)


def batches(
    model: nn.Module,
    images: Images,
    labels: Labels | None = None,
    *,
    batch_size: int = BATCH,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over images and labels, a batch at a time, on the device of the model.

    Args:
        model: gives the device.
        images: `[n, channels, height, width]`.
        labels: `[n]`; by default the numbers of the images.
        batch_size: images at a time.

    Raises:
        ArgumentError: for a batch size below 1.
    """
    check_positive(batch_size=batch_size)
    device = device_of(model)
    if labels is None:
        labels = torch.arange(len(images))
    pairs = zip(images.split(batch_size), labels.split(batch_size), strict=True)
    for image_batch, label_batch in pairs:
        yield image_batch.to(device), label_batch.to(device)


def right_answers(model: nn.Module, images: Images, labels: Labels) -> Bool[Tensor, " n"]:
    """Return whether the largest activation of each image is that of its label.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.

    Returns:
        `[n]` booleans on the CPU.

    Raises:
        ArgumentError: for a label that is no class of the model.
    """
    activations = image_activations(model, images)
    check_labels(labels, activations.shape[1])
    return activations.argmax(dim=1) == labels.cpu()


def proportion(flags: Bool[Tensor, "*shape"]) -> float:
    """Return the part of the flags that is true, in [0, 1]."""
    return float(widen(flags).mean())
