"""Looking inside: reconstructions from class capsules, and the meaning of their pose dimensions.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017,
arXiv 1710.09829, sections 4.1 (reconstruction), 5.1 (what the dimensions of a capsule represent)
and 6 (overlapping digits, figure 5).

`segment` decodes k class capsules of each of n images, one at a time, into k drawings;
`match_segments` puts two drawings in the order of the true digits; `score_segmentation` compares
drawings with the true single digits. The paper shows pictures of them; the figures here put numbers
to them. A pixel with ink of both digits belongs to both.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.accuracy.multilabel import top_labels
from torchcaps.evaluation.base import (
    Activations,
    EvaluationResult,
    Images,
    Labels,
    capsule_model,
    check_images,
    check_labels,
    check_like,
)
from torchcaps.evaluation.decoding.pose_axes import VISIBLE, measure_drawings, name_axis
from torchcaps.evaluation.forward import batches, evaluating, image_activations
from torchcaps.types import Capsules

CHUNK = 256  # images encoded or decoded at a time
INK = 0.5  # brightness from which a pixel is ink
AXES = ("n", "k", "channels", "height", "width")
Drawings = Float[Tensor, "n k channels height width"]


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

    @property
    def names(self) -> list[list[str]]:
        """What each dimension of each image changes steadily and visibly, or ""; see `pose_axes`."""
        return [
            [name_axis(measure_drawings(drawings), VISIBLE) for drawings in rows]
            for rows in self.reconstructions
        ]


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


@dataclass(frozen=True, eq=False)
class Segments:
    """Reconstructions from k capsules of each image, one at a time.

    Attributes:
        images: `[n, k, channels, height, width]` in [0, 1], on the CPU.
        selected: `[n, k]` int64, the class whose capsule was decoded.
        activations: `[n, classes]` lengths in [0, 1].
    """

    images: Drawings
    selected: Int64[Tensor, "n k"]
    activations: Activations

    @property
    def lengths(self) -> Float[Tensor, "n k"]:
        """The activation of each decoded capsule."""
        return self.activations.gather(1, self.selected)


@dataclass(frozen=True)
class Segmentation(EvaluationResult):
    """Decoded digits against the true single digits; means over images and digits.

    Attributes:
        error: mean squared error per pixel.
        iou: intersection over union of the pixels with ink; 1 where neither has
            one.
        ink_right: share of the ink that belongs to one digit alone where the drawing of that digit
            is the brightest; None without such ink.
        correlation: correlation of the pixels, in [-1, 1], without pictures of one brightness; None
            if all are of one brightness.
        num_samples: n, number of images.
    """

    error: float
    iou: float
    ink_right: float | None
    correlation: float | None
    num_samples: int


def segment(
    model: nn.Module,
    images: Images,
    labels: Int64[Tensor, "n k"] | None = None,
) -> Segments:
    """Decode several capsules of each image, each with all others at zero.

    Args:
        model: a model with class capsules and a decoder.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n, k]` classes to decode, k at least 1; by default the two most active ones. They
            may name absent classes, whose drawings should stay faint.

    Returns:
        The decoded images `[n, k, channels, height, width]`, with their classes.

    Raises:
        ArgumentError: for another model, or arguments that do not fit.
    """
    if labels is None:
        labels = top_labels(image_activations(model, images))
    check_shape("labels", labels, ("n", "k"), n=len(images))
    check_range("number of labels", labels.shape[1], low=1)
    decoded = [reconstructions(model, images, column) for column in labels.unbind(1)]
    drawings = torch.stack([drawing.images for drawing in decoded], dim=1)
    return Segments(drawings, labels.cpu().clone(), decoded[0].activations)


def match_segments(segments: Segments, labels: Int64[Tensor, "n 2"]) -> Segments:
    """Put the two decoded capsules of each image in the order of the labels.

    A decoded class that is no label takes the place of the label that was missed, so that a mistake
    is compared with the digit it missed.

    Args:
        segments: two decoded capsules an image.
        labels: `[n, 2]` true classes.

    Returns:
        The same capsules in the order of the labels.

    Raises:
        ArgumentError: for another number of capsules, or labels of another shape.
    """
    check_shape("segments.selected", segments.selected, ("n", "k"), k=2)
    check_shape("labels", labels, ("n", "k"), n=len(segments.selected), k=2)
    labels = labels.cpu()
    images = segments.images
    selected = segments.selected
    is_in_order = (selected == labels).any(dim=1)
    has_match = (selected == labels.flip(1)).any(dim=1)
    is_reversed = has_match & ~is_in_order
    images = torch.where(is_reversed.view(-1, 1, 1, 1, 1), images.flip(1), images)
    selected = torch.where(is_reversed.view(-1, 1), selected.flip(1), selected)
    return Segments(images, selected, segments.activations)


def score_segmentation(drawings: Drawings, digits: Drawings) -> Segmentation:
    """Compare drawings with the true single digits, pixel by pixel.

    Args:
        drawings: `[n, k, channels, height, width]` in [0, 1], such as `segment(...).images`.
        digits: the true digits at their places, in the same order and shape.

    Returns:
        Error, intersection over union, ink and correlation.

    Raises:
        ArgumentError: for shapes that do not fit, or none of them.
    """
    check_shape("drawings", drawings, AXES)
    check_like("digits", digits, drawings, AXES)
    check_range("number of samples", drawings.shape[0] * drawings.shape[1], low=1)
    drawings = drawings.detach().cpu().double()
    digits = digits.detach().cpu().double()
    is_drawn = drawings >= INK
    is_ink = digits >= INK
    intersection = (is_drawn & is_ink).flatten(2).sum(dim=2).double()
    union = (is_drawn | is_ink).flatten(2).sum(dim=2)
    ink = digits * is_ink
    ink = ink * ((ink > 0).sum(dim=1, keepdim=True) == 1)  # of one digit alone
    # A drawing is the brightest where only itself is as bright. Equally bright ones decide nothing.
    is_as_bright = drawings.unsqueeze(1) >= drawings.unsqueeze(2)  # [n, k, k to compare, ...]
    is_brightest = is_as_bright.sum(dim=2) == 1
    return Segmentation(
        error=float((drawings - digits).square().mean()),
        iou=float((intersection / union).nan_to_num(1.0).mean()),
        ink_right=float((ink * is_brightest).sum() / ink.sum()) if ink.any() else None,
        correlation=_correlation(drawings.flatten(2), digits.flatten(2)),
        num_samples=len(drawings),
    )


def _correlation(x: Tensor, y: Tensor) -> float | None:
    """The mean correlation of pictures `[n, k, pixels]` over their pixels, where both vary."""
    x = x - x.mean(dim=2, keepdim=True)
    y = y - y.mean(dim=2, keepdim=True)
    x_power = x.square().sum(dim=2)
    y_power = y.square().sum(dim=2)
    norms = (x_power * y_power).sqrt()
    varies = norms > 1e-12
    correlations = (x * y).sum(dim=2)[varies] / norms[varies]
    return float(correlations.mean()) if varies.any() else None
