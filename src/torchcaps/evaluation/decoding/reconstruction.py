"""Looking inside: reconstructions from a class capsule, and the meaning of its pose dimensions.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017,
arXiv 1710.09829, sections 4.1 (reconstruction) and 5.1 (what the dimensions of a capsule
represent).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import (
    Activations,
    Images,
    Labels,
    capsule_model,
    check_images,
    check_labels,
)
from torchcaps.evaluation.forward import batches, evaluating
from torchcaps.types import Capsules

CHUNK = 256  # images encoded or decoded at a time


@dataclass(frozen=True, eq=False)
class Reconstructions:
    """Reconstructions from one capsule of each image.

    Attributes:
        images: `[batch, channels, height, width]` in [0, 1], on the CPU.
        selected: `[batch]` int64, the class whose capsule was decoded.
        activations: `[batch, classes]` class-capsule activations in [0, 1].
        predictions: `[batch]` int64, the class with the largest activation.
    """

    images: Images
    selected: Labels
    activations: Activations
    predictions: Labels


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Reconstructions after moving one pose dimension at a time.

    Attributes:
        reconstructions: decoded images in [0, 1], on the CPU.
        offsets: added to the dimension, from -span to span.
        selected: `[batch]` int64, the class whose capsule was moved and decoded.
    """

    reconstructions: Float[Tensor, "batch dims steps channels height width"]
    offsets: Float[Tensor, " steps"]
    selected: Labels


def reconstructions(
    model: nn.Module,
    images: Images,
    labels: Labels | None = None,
) -> Reconstructions:
    """Decode one capsule of each image.

    Args:
        model: a model with class capsules and a decoder.
        images: `[batch, channels, height, width]` in [0, 1].
        labels: `[batch]` classes to decode; by default the most active ones.

    Returns:
        The decoded images, with the class that was decoded and the predicted class; on the CPU.

    Raises:
        ArgumentError: for another model, or images or labels that do not fit.
    """
    with evaluating(model):
        capsules, labels = _masked_capsules(model, images, labels)
        decoded = _decode(model, capsules, labels)
    activations = capsules.activation.float().cpu().clone()
    return Reconstructions(
        torch.cat(decoded),
        labels.cpu().clone(),
        activations,
        activations.argmax(dim=1),
    )


def perturb(
    model: nn.Module,
    images: Images,
    labels: Labels | None = None,
    *,
    span: float = 0.25,
    steps: int = 11,
) -> Perturbation:
    """Move each pose dimension of one capsule an image over `linspace(-span, span, steps)`.

    The other capsules are zero first, so that nothing but this capsule reaches the decoder;
    activations stay as they were. Section 5.1 of arXiv 1710.09829, whose figure 4 moves each of 16
    dimensions from -0.25 to 0.25 in steps of 0.05; poses are shorter than 1 in a vector capsule,
    and an odd number of steps includes the capsule as it is. The outcome takes batch x dims x
    steps images of memory.

    Args:
        model: a model with class capsules and a decoder.
        images: `[batch, channels, height, width]` in [0, 1].
        labels: `[batch]` classes whose capsules move; by default the most active ones.
        span: largest offset, at least 0.
        steps: number of offsets, at least 2.

    Returns:
        The decoded images `[batch, dims, steps, channels, height, width]`, with the offsets.

    Raises:
        ArgumentError: as `reconstructions`, or for a span or steps out of range.
    """
    check_range("span", span, low=0)
    check_range("steps", steps, low=2)
    with evaluating(model):
        (pose, activation), labels = _masked_capsules(model, images, labels)
        num_images, num_classes, num_dims = pose.shape
        offsets = torch.linspace(-span, span, steps, device=pose.device)
        moves = torch.eye(num_dims).to(pose).unsqueeze(1) * offsets.to(pose).unsqueeze(1)
        # [batch, 1, 1, classes, 1] x [dims, steps, 1, dim]
        is_decoded = one_hot(labels, num_classes).view(num_images, 1, 1, num_classes, 1)
        poses = pose[:, None, None] + is_decoded * moves.unsqueeze(2)
        num_copies = num_dims * steps
        capsules = Capsules(poses.flatten(0, 2), activation.repeat_interleave(num_copies, dim=0))
        decoded = _decode(model, capsules, labels.repeat_interleave(num_copies, dim=0))
    return Perturbation(
        torch.cat(decoded).unflatten(0, (num_images, num_dims, steps)),
        offsets.cpu().clone(),
        labels.cpu().clone(),
    )


def _masked_capsules(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
) -> tuple[Capsules, Tensor]:
    """Return the class capsules of all images, and the labels; other poses are zero."""
    check_images(images)
    encode = capsule_model(model, decoder=True).capsules
    chunks = [encode(chunk) for chunk, _ in batches(model, images, batch_size=CHUNK)]
    pose, activation = map(torch.cat, zip(*chunks, strict=True))
    num_classes = activation.shape[1]
    if labels is None:
        labels = activation.argmax(dim=1)
    check_labels(labels, num_classes)
    check_shape("labels", labels, ("batch",), batch=len(images))
    labels = labels.to(pose.device)
    masked = pose * one_hot(labels, num_classes).unsqueeze(-1)
    return Capsules(masked, activation), labels


def _decode(model: nn.Module, capsules: Capsules, labels: Tensor) -> list[Tensor]:
    """Return the reconstructions of capsules, made a chunk at a time, on the CPU."""
    decode = capsule_model(model, decoder=True).reconstruct
    chunks = zip(*(tensor.split(CHUNK) for tensor in (*capsules, labels)), strict=True)
    return [
        decode(Capsules(pose, activation), label).float().cpu()
        for pose, activation, label in chunks
    ]
