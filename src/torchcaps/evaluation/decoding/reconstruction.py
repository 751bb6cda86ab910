"""Looking inside: what the decoder draws from a class capsule, and what each pose dimension stands for.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv 1710.09829,
sections 4.1 (reconstruction) and 5.1 (what the dimensions of a capsule represent).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import Images, Labels, capsule_model, check_images, check_labels
from torchcaps.evaluation.forward import batches, device_of, evaluating
from torchcaps.types import Capsules

# Images encoded or decoded at a time.
CHUNK = 256


@dataclass(frozen=True, eq=False)
class Reconstructions:
    """What the decoder drew from one capsule of each image.

    Attributes:
        images: `[batch, channels, height, width]` reconstructions in [0, 1], on the CPU.
        shown: `[batch]` int64, the class whose capsule was decoded.
        activations: `[batch, classes]` class-capsule activations in [0, 1].
        predictions: `[batch]` int64, the class with the largest activation.
    """

    images: Images
    shown: Labels
    activations: Float[Tensor, "batch classes"]
    predictions: Labels


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Reconstructions after moving one pose dimension at a time.

    Attributes:
        reconstructions: `[batch, dims, steps, channels, height, width]` in [0, 1], on the CPU.
        offsets: `[steps]`, what was added to the dimension, from -span to span.
        shown: `[batch]` int64, the class whose capsule was moved and decoded.
    """

    reconstructions: Float[Tensor, "batch dims steps channels height width"]
    offsets: Float[Tensor, " steps"]
    shown: Labels


def reconstructions(model: nn.Module, images: Images, labels: Labels | None = None) -> Reconstructions:
    """Decode the capsule of each image's label, or the most active capsule when no labels are given.

    Args:
        model: declares class capsules and a decoder.
        images: `[batch, channels, height, width]` in [0, 1], batch at least 1.
        labels: `[batch]` int64 class indices.

    Raises:
        ValueError: for a model without a decoder, or images or labels that do not fit.
    """
    with evaluating(model):
        capsules, shown = _shown_capsules(model, images, labels)
        rebuilt = _decoded(
            model, len(images), lambda rows: (Capsules(capsules.pose[rows], capsules.activation[rows]), shown[rows])
        )
    activations = capsules.activation.float().cpu()
    return Reconstructions(torch.cat(rebuilt), shown.cpu().clone(), activations.clone(), activations.argmax(dim=1))


def perturb(
    model: nn.Module, images: Images, labels: Labels | None = None, *, span: float = 0.25, steps: int = 11
) -> Perturbation:
    """Move each pose dimension of one capsule an image over `linspace(-span, span, steps)`, and decode.

    The capsule of the label moves, or the most active one when no labels are given. The others are zero first, so that
    nothing but the shown capsule reaches the decoder; activations stay as they were. Source: arXiv 1710.09829,
    section 5.1, whose figure 4 moves each of 16 dimensions from -0.25 to 0.25 in steps of 0.05.

    Args:
        model: declares class capsules and a decoder.
        images: `[batch, channels, height, width]` in [0, 1], batch at least 1.
        labels: `[batch]` int64 class indices.
        span: the largest move to either side, at least 0. Poses are shorter than 1 in a vector capsule.
        steps: at least 2; an odd number includes the capsule as it is.

    Returns:
        Perturbation: its reconstructions take batch x dims x steps images of memory.

    Raises:
        ValueError: for a model without a decoder, images or labels that do not fit, or span or steps too small.
    """
    check_range("span", span, low=0)
    check_range("steps", steps, low=2)
    with evaluating(model):
        capsules, shown = _shown_capsules(model, images, labels)
        offsets = torch.linspace(-span, span, steps, device=capsules.pose.device)
        grid = (len(images), capsules.pose.shape[-1], steps)
        rebuilt = _decoded(model, prod(grid), lambda cells: _moved(capsules, shown, offsets, cells))
    return Perturbation(torch.cat(rebuilt).unflatten(0, grid), offsets.cpu().clone(), shown.cpu().clone())


def _shown_capsules(model: nn.Module, images: Tensor, labels: Tensor | None) -> tuple[Capsules, Tensor]:
    """The class capsules of all images, zero but for the shown ones' poses, and which ones are shown."""
    check_images(images)
    encode = capsule_model(model, decoder=True).capsules
    parts = [encode(chunk) for chunk, _ in batches(model, images, batch_size=CHUNK)]
    pose, activation = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    if labels is None:
        labels = activation.argmax(dim=1)
    check_labels(labels, activation.shape[1])
    check_shape("labels", labels, ("batch",), batch=len(images))
    shown = labels.to(pose.device)
    mask = torch.nn.functional.one_hot(shown, activation.shape[1]).unsqueeze(-1)
    return Capsules(pose * mask, activation), shown


def _moved(capsules: Capsules, shown: Tensor, offsets: Tensor, cells: Tensor) -> tuple[Capsules, Tensor]:
    """Capsules and shown class for flat indices into [batch, dims, steps]."""
    dims, steps = capsules.pose.shape[-1], len(offsets)
    row, dim, step = cells // (dims * steps), cells // steps % dims, cells % steps
    pose = capsules.pose[row]  # [cells, classes, dims], a copy
    here = torch.arange(len(cells), device=pose.device)
    pose[here, shown[row], dim] += offsets[step].to(pose.dtype)
    return Capsules(pose, capsules.activation[row]), shown[row]


def _decoded(model: nn.Module, count: int, capsules_of: Callable[[Tensor], tuple[Capsules, Tensor]]) -> list[Tensor]:
    """Reconstructions of `count` capsule sets, made and decoded a chunk at a time."""
    decode = capsule_model(model, decoder=True).reconstruct
    chunks = torch.arange(count, device=device_of(model)).split(CHUNK)
    return [decode(*capsules_of(chunk)).float().cpu() for chunk in chunks]
