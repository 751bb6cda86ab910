"""Running a model over many images: evaluation mode, no gradients, bounded batches, nothing left changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_known, check_range
from torchcaps.evaluation.base import (
    BATCH,
    Images,
    Labels,
    check_images,
    check_labels,
)
from torchcaps.types import ModelSpec, declares, model_metadata, spec_of

PRECISIONS = ("bf16", "fp32")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every submodule has its own training flag back."""
    with eval_mode(model), torch.inference_mode():
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode with gradients; afterwards every submodule has its own training flag back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer; the CPU for a model without either."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context for "fp32" (off) or "bf16". Raises UnknownNameError (a ValueError) for another precision."""
    check_known("precision", precision, PRECISIONS)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def activations_of(
    model: nn.Module, images: Tensor, spec: ModelSpec | None = None
) -> Float[Tensor, "batch classes"]:
    """What `model(images)` gives for the classes, in float32; of a model that declares logits, their softmax.

    `spec` is what a model is taken for that declares nothing.
    """
    outputs: Tensor = model(images).float()
    if declares(model) or model_metadata(model).spec is not None:
        spec = spec_of(model)
    is_logit = spec is not None and spec.activation == "logit" and outputs.dim() == 2
    return outputs.softmax(dim=1) if is_logit else outputs


def image_activations(
    model: nn.Module, images: Images, *, batch_size: int = BATCH
) -> Float[Tensor, "n classes"]:
    """`model(images)` of images `[n, channels, height, width]` in [0, 1], a batch at a time, as float32 on the CPU.
    Raises ValueError for images that are no images, or a model that does not give `[batch, classes]`."""
    check_images(images)
    with evaluating(model):
        parts = [
            activations_of(model, batch).cpu()
            for batch, _ in batches(model, images, batch_size=batch_size)
        ]
    if parts[0].dim() != 2:
        raise ArgumentError(
            "model", f"expected [batch, classes] activations, got {list(parts[0].shape)}"
        )
    return torch.cat(parts)


def batches(
    model: nn.Module, images: Images, labels: Labels | None = None, *, batch_size: int = BATCH
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels (without any: the images' numbers) a batch at a time, on the model's device. Raises ValueError
    for a batch size below 1."""
    check_range("batch_size", batch_size, low=1)
    place = device_of(model)
    given = torch.arange(len(images)) if labels is None else labels
    for batch, some in zip(images.split(batch_size), given.split(batch_size), strict=True):
        yield batch.to(place), some.to(place)


def right_answers(
    model: nn.Module, images: Images, labels: Labels, batch_size: int = BATCH
) -> Bool[Tensor, " n"]:
    """`[n]` booleans on the CPU: whether the largest activation is that of the label. Raises ValueError for a label
    that is no class of the model."""
    found = image_activations(model, images, batch_size=batch_size)
    check_labels(labels, found.shape[1])
    return found.argmax(dim=1) == labels.cpu()


def proportion(flags: Bool[Tensor, "*shape"]) -> float:
    """The part of the flags that is true, in [0, 1]."""
    return float(flags.double().mean())
