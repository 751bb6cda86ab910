"""Looking inside: reconstructions from class capsules, and the meaning of their pose dimensions.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017,
arXiv 1710.09829, sections 4.1 (reconstruction), 5.1 (what the dimensions of a capsule represent)
and 6 (overlapping digits, figure 5).

`segment` decodes k class capsules of each of n images, one at a time, into k drawings;
`match_segments` puts two drawings in the order of the true digits; `score_segmentation` compares
drawings with the true single digits. The paper shows pictures of them; the figures here put numbers
to them. A pixel with ink of both digits belongs to both.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

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
    batches,
    capsule_model,
    check_images,
    check_labeled,
    check_labels,
    check_like,
    device_of,
    evaluating,
    image_activations,
)
from torchcaps.types import Capsules

CHUNK = 256  # images encoded or decoded at a time
INK = 0.5  # brightness from which a pixel is ink
AXES = ("n", "k", "channels", "height", "width")

# Axes of poses, and when they have a name.
NUM_AXES = 4
REACH = 2.5  # standard deviations on either side
STEPS = 11
MIN_IMAGES = 8  # of a class whose axes are measured
MIN_CORRELATION = 0.9  # of Spearman, between the place on an axis and what it changes
MIN_CHANGE = 1.0  # from end to end, in the larger of two: the standard deviation over the class,
# and what an eye sees
VISIBLE = {
    "slant": 0.1,
    "width": 0.5,
    "height": 0.5,
    "thickness": 0.1,
    "across": 1.0,
    "down": 1.0,
}

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
    check_labels(labels, num_classes, n=len(images))
    labels = labels.to(pose.device)
    return Capsules(pose * one_hot(labels, num_classes).unsqueeze(-1), activation), labels


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
    is_reversed = (selected == labels.flip(1)).any(dim=1) & ~is_in_order
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
    drawing_ink = drawings >= INK
    digit_ink = digits >= INK
    intersection = (drawing_ink & digit_ink).flatten(2).sum(dim=2).double()
    union = (drawing_ink | digit_ink).flatten(2).sum(dim=2)
    ink = digits * digit_ink
    ink = ink * ((ink > 0).sum(dim=1, keepdim=True) == 1)  # of one digit alone
    # A drawing is the brightest where only itself is as bright. Equally bright ones decide nothing.
    is_as_bright = drawings.unsqueeze(1) >= drawings.unsqueeze(2)  # [n, k, k to compare, ...]
    is_brightest = is_as_bright.sum(dim=2) == 1
    # Over the pixels of a picture, where both vary.
    pictures = (drawings.flatten(2), digits.flatten(2))
    x, y = (pixels - pixels.mean(dim=2, keepdim=True) for pixels in pictures)
    norms = (x.square().sum(dim=2) * y.square().sum(dim=2)).sqrt()
    varies = norms > 1e-12
    correlations = (x * y).sum(dim=2)[varies] / norms[varies]
    return Segmentation(
        error=float((drawings - digits).square().mean()),
        iou=float((intersection / union).nan_to_num(1.0).mean()),
        ink_right=float((ink * is_brightest).sum() / ink.sum()) if ink.any() else None,
        correlation=float(correlations.mean()) if varies.any() else None,
        num_samples=len(drawings),
    )


@dataclass(frozen=True, eq=False)
class PoseAxes:
    """The poses of one class.

    Attributes:
        mean: `[dim]`, mean pose of the images of the class that are read right.
        axes: `[axes, dim]`, unit vectors, those of the largest variance first.
        std: `[axes]`, standard deviation of the poses along each.
        share: part of the variance that the axes hold, in [0, 1].
        names: what each axis changes: "slant", "width", "height", "thickness", "across" or "down",
            or "" where the drawing does not change steadily.
    """

    mean: Float[Tensor, " dim"]
    axes: Float[Tensor, "axes dim"]
    std: Float[Tensor, " axes"]
    share: float
    names: tuple[str, ...]


def measure_drawings(images: Images) -> dict[str, Float[Tensor, " n"]]:
    """Slant, width, height, thickness and place of the ink of each image.

    Args:
        images: `[n, channels, height, width]` in [0, 1].

    Returns:
        By name: "slant" is the tangent of the lean to the right; "width" and "height" are standard
        deviations of the ink in pixels; "thickness" is the ink per pixel of its outline; "across"
        and "down" are the center of the ink in pixels.
    """
    ink = images.double().mean(dim=1)
    total = _sum_pixels(ink).clamp_min(1e-9)
    rows = torch.arange(ink.shape[1], dtype=ink.dtype)[:, None]
    columns = torch.arange(ink.shape[2], dtype=ink.dtype)
    weights = ink / total[:, None, None]
    down = _sum_pixels(weights * rows)
    across = _sum_pixels(weights * columns)
    y = rows - down[:, None, None]
    x = columns - across[:, None, None]
    variance_y = _sum_pixels(weights * y * y)
    variance_x = _sum_pixels(weights * x * x)
    slant = -_sum_pixels(weights * x * y) / variance_y.clamp_min(1e-9)
    outline = _sum_pixels(ink.diff(dim=1).abs()) + _sum_pixels(ink.diff(dim=2).abs())
    upright = variance_x - slant.square() * variance_y  # once the slant is taken out
    return {
        "slant": slant,
        "width": upright.clamp_min(0).sqrt(),
        "height": variance_y.sqrt(),
        "thickness": total / outline.clamp_min(1e-9),
        "across": across,
        "down": down,
    }


def _sum_pixels(x: Tensor) -> Tensor:
    return x.sum(dim=(1, 2))


def pose_axes(model: nn.Module, images: Images, labels: Labels) -> dict[int, PoseAxes]:
    """The principal axes of the poses of each class, named by what they change.

    An axis has a name where, from -2.5 to 2.5 standard deviations, a measure of the drawing changes
    steadily (Spearman's correlation at least 0.9) and visibly: by at least one standard deviation
    of that measure over the drawings of the class, and by `VISIBLE`. Of several, the one that
    changes most counts, and each names one axis alone.

    Args:
        model: a model with class capsules and a decoder.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.

    Returns:
        By class; classes with fewer than 8 images that the model reads right are absent.

    Raises:
        ArgumentError: for another model, or images or labels that do not fit.
    """
    check_labeled(images, labels)
    network = capsule_model(model, decoder=True)
    by_class = {}
    with evaluating(network):
        pose, activation = network.capsules(images.to(device_of(network)))
        pose = pose.cpu()
        labels = labels.cpu()
        is_right = activation.argmax(dim=1).cpu() == labels
        for label in range(activation.shape[1]):
            is_example = is_right & (labels == label)
            if int(is_example.sum()) >= MIN_IMAGES:
                by_class[label] = _axes_of_class(network, pose[is_example, label].double(), label)
    return by_class


def _axes_of_class(model: Any, poses: Tensor, label: int) -> PoseAxes:
    """The axes of one class from its poses `[n, dim]`."""
    mean = poses.mean(dim=0)
    _, spread, axes = torch.linalg.svd(poses - mean, full_matrices=False)
    variances = spread.square() / (len(poses) - 1)
    count = min(NUM_AXES, len(variances))
    axes = axes[:count]
    deviations = variances[:count].sqrt()
    drawn = measure_drawings(_draw(model, poses, label))
    units = {name: max(float(drawn[name].std()), VISIBLE[name]) for name in VISIBLE}
    names: list[str] = []
    for axis, deviation in zip(axes, deviations, strict=True):
        offsets = torch.linspace(-REACH, REACH, STEPS, dtype=axis.dtype) * deviation
        along = measure_drawings(_draw(model, mean + offsets[:, None] * axis, label))
        name = name_axis(along, units, names)
        names.append(name)
        if name and along[name][-1] < along[name][0]:
            axis.neg_()  # what the name says grows to the right
    return PoseAxes(
        mean.float(),
        axes.float(),
        deviations.float(),
        float(variances[:count].sum() / variances.sum()),
        tuple(names),
    )


def _draw(model: Any, poses: Tensor, label: int) -> Images:
    """Drawings of poses `[n, dim]` of one class, with all other capsules at zero."""
    is_label = torch.arange(model.num_classes) == label
    poses = poses.float()
    pose = is_label[:, None] * poses[:, None]
    activation = is_label * poses.norm(dim=-1, keepdim=True)
    device = device_of(model)
    labels = torch.full((len(poses),), label, device=device)
    drawings: Tensor = model.reconstruct(Capsules(pose.to(device), activation.to(device)), labels)
    return drawings.float().cpu()


def name_axis(
    along: Mapping[str, Tensor], units: Mapping[str, float], names: Collection[str] = ()
) -> str:
    """The measure that changes steadily and most along an axis.

    Args:
        along: figures of drawings in the order of the axis, `[steps]`, by measure.
        units: of a visible change of each measure.
        names: measures that other axes have.

    Returns:
        The name of the measure; "" for none.
    """
    from scipy.stats import spearmanr

    changes = {}
    for name, figures in along.items():
        change = float((figures[-1] - figures[0]).abs()) / units[name]
        if change < MIN_CHANGE or name in names:
            continue
        if abs(spearmanr(torch.arange(len(figures)), figures).statistic) >= MIN_CORRELATION:
            changes[name] = change
    return max(changes, key=changes.__getitem__, default="")
