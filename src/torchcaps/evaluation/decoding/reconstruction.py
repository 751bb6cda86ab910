"""Looking inside: what the decoder draws from a class capsule, and what each pose dimension stands for.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv 1710.09829,
sections 4.1 (reconstruction) and 5.1 (what the dimensions of a capsule represent).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import Images, Labels, capsule_model, check_images, check_labels
from torchcaps.evaluation.forward import batches, evaluating
from torchcaps.types import Capsules

CHUNK = 256  # images encoded or decoded at a time


@dataclass(frozen=True, eq=False)
class Reconstructions:
    """What the decoder drew from one capsule of each image."""

    images: Images  # `[batch, channels, height, width]` reconstructions in [0, 1], on the CPU
    shown: Labels  # `[batch]` int64, the class whose capsule was decoded
    activations: Float[
        Tensor, "batch classes"
    ]  # `[batch, classes]` class-capsule activations in [0, 1]
    predictions: Labels  # `[batch]` int64, the class with the largest activation


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Reconstructions after moving one pose dimension at a time."""

    reconstructions: Float[
        Tensor, "batch dims steps channels height width"
    ]  # in [0, 1], on the CPU
    offsets: Float[
        Tensor, " steps"
    ]  # `[steps]`, what was added to the dimension, from -span to span
    shown: Labels  # `[batch]` int64, the class whose capsule was moved and decoded


def reconstructions(
    model: nn.Module, images: Images, labels: Labels | None = None
) -> Reconstructions:
    """Decode the capsule of each image's label, or the most active capsule when no labels are given. Raises ValueError
    for a model that does not declare class capsules and a decoder, or images or labels that do not fit."""
    with evaluating(model):
        capsules, shown = _shown_capsules(model, images, labels)
        rebuilt = _decoded(model, capsules, shown)
    activations = capsules.activation.float().cpu()
    return Reconstructions(
        torch.cat(rebuilt), shown.cpu().clone(), activations.clone(), activations.argmax(dim=1)
    )


def perturb(
    model: nn.Module,
    images: Images,
    labels: Labels | None = None,
    *,
    span: float = 0.25,
    steps: int = 11,
) -> Perturbation:
    """Move each pose dimension of one capsule an image over `linspace(-span, span, steps)`, and decode.

    The capsule of the label moves, or the most active one when no labels are given. The others are zero first, so that
    nothing but the shown capsule reaches the decoder; activations stay as they were. Source: arXiv 1710.09829, section
    5.1, whose figure 4 moves each of 16 dimensions from -0.25 to 0.25 in steps of 0.05; poses are shorter than 1 in a
    vector capsule, and an odd number of steps includes the capsule as it is. The outcome takes batch x dims x steps
    images of memory. Raises ValueError as `reconstructions`, or for a span below 0 or fewer than two steps."""
    check_range("span", span, low=0)
    check_range("steps", steps, low=2)
    with evaluating(model):
        (pose, activation), shown = _shown_capsules(model, images, labels)
        offsets = torch.linspace(-span, span, steps, device=pose.device)
        grid = (len(images), pose.shape[-1], steps)
        moves = torch.eye(grid[1]).to(pose).unsqueeze(1) * offsets.to(pose).unsqueeze(
            1
        )  # [dims, steps, dim]
        here = one_hot(shown, activation.shape[1]).view(len(images), 1, 1, -1, 1)
        moved = (pose[:, None, None] + here * moves.unsqueeze(2)).flatten(0, 2)
        activation, cells = (
            x.repeat_interleave(grid[1] * steps, dim=0) for x in (activation, shown)
        )
        rebuilt = _decoded(model, Capsules(moved, activation), cells)
    return Perturbation(
        torch.cat(rebuilt).unflatten(0, grid), offsets.cpu().clone(), shown.cpu().clone()
    )


def _shown_capsules(
    model: nn.Module, images: Tensor, labels: Tensor | None
) -> tuple[Capsules, Tensor]:
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
    return Capsules(pose * one_hot(shown, activation.shape[1]).unsqueeze(-1), activation), shown


def _decoded(model: nn.Module, capsules: Capsules, shown: Tensor) -> list[Tensor]:
    """Reconstructions of these capsules, a chunk at a time, on the CPU."""
    decode = capsule_model(model, decoder=True).reconstruct
    chunks = zip(*(x.split(CHUNK) for x in (*capsules, shown)), strict=True)
    return [
        decode(Capsules(pose, activation), labels).float().cpu()
        for pose, activation, labels in chunks
    ]
