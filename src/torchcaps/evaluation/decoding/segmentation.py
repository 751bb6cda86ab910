"""Which digit does a pixel belong to? Overlapping digits, drawn one capsule at a time.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv 1710.09829, section
6 and figure 5. The paper shows pictures; the figures here put numbers to them. A pixel with ink of both digits belongs
to both.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.accuracy.multilabel import top_labels
from torchcaps.evaluation.base import EvaluationResult, Images, check_images
from torchcaps.evaluation.decoding.reconstruction import reconstructions
from torchcaps.evaluation.forward import image_activations

AXES = ("n", "k", "channels", "height", "width")
Drawings = Float[Tensor, "n k channels height width"]


@dataclass(frozen=True, eq=False)
class Segments:
    """What the decoder draws from k capsules of each image, one at a time."""

    images: Drawings  # `[n, k, channels, height, width]` in [0, 1], on the CPU
    shown: Int64[Tensor, "n k"]  # `[n, k]` int64, the class whose capsule was decoded
    activations: Float[Tensor, "n classes"]  # `[n, classes]` lengths in [0, 1]

    @property
    def lengths(self) -> Float[Tensor, "n k"]:
        """The activation of each decoded capsule."""
        return self.activations.gather(1, self.shown)


@dataclass(frozen=True)
class Segmentation(EvaluationResult):
    """Decoded digits against the true single digits; means over images and digits."""

    error: float  # mean squared error per pixel
    iou: float  # intersection over union of the pixels at or above the threshold, in [0, 1]; 1 where neither has one
    ink_right: (
        float | None
    )  # share of the ink of one digit alone where its drawing is the brightest; None without any
    correlation: (
        float | None
    )  # of the pixels, in [-1, 1], without pictures of one brightness; None if all are
    threshold: float  # what counts as ink
    num_samples: int  # n


def segment(
    model: nn.Module, images: Images, labels: Int64[Tensor, "n k"] | None = None
) -> Segments:
    """Decode the labeled capsules of each image, or the two most active ones, each with all others at zero. Labels
    `[n, k]` may name absent classes, whose drawings should stay faint. Raises ValueError for a model without class
    capsules and a decoder, or arguments that do not fit."""
    check_images(images)
    if labels is None:
        labels = top_labels(image_activations(model, images))
    check_shape("labels", labels, ("n", "k"), n=len(images))
    check_range("number of labels", labels.shape[1], low=1)
    drawn = [reconstructions(model, images, column) for column in labels.unbind(1)]
    return Segments(
        torch.stack([one.images for one in drawn], dim=1),
        labels.cpu().clone(),
        drawn[0].activations,
    )


def match_segments(segments: Segments, labels: Int64[Tensor, "n 2"]) -> Segments:
    """Two decoded capsules put in the order of `labels`: a class found stands in its label's place. A class that is no
    label takes the place that is left, so that a mistake is compared with the digit it missed. Raises ValueError for
    other than two capsules an image, or labels of another shape."""
    check_shape("segments.shown", segments.shown, ("n", "k"), k=2)
    check_shape("labels", labels, ("n", "k"), n=len(segments.shown), k=2)
    crossed = segments.shown == labels.cpu().flip(1)
    straight = segments.shown == labels.cpu()
    turn = crossed.any(dim=1) & ~straight.any(dim=1)
    images = torch.where(turn.view(-1, 1, 1, 1, 1), segments.images.flip(1), segments.images)
    shown = torch.where(turn.unsqueeze(1), segments.shown.flip(1), segments.shown)
    return Segments(images, shown, segments.activations)


def score_segmentation(
    drawn: Drawings, digits: Drawings, *, threshold: float = 0.5
) -> Segmentation:
    """Per-pixel figures for drawings, such as `segment(...).images`, of the true single digits at their places, in the
    same order; both in [0, 1]. A pixel of at least the threshold, in (0, 1], is ink. Raises ValueError for shapes that
    do not fit, none of them, or a threshold out of range."""
    check_shape("drawn", drawn, AXES)
    check_shape("digits", digits, AXES, **dict(zip(AXES, drawn.shape, strict=True)))
    check_range("number of samples", drawn.shape[0] * drawn.shape[1], low=1)
    check_range("threshold", threshold, low=1e-6, high=1)
    drawn, digits = drawn.detach().double().cpu(), digits.detach().double().cpu()
    return Segmentation(
        error=float((drawn - digits).square().mean()),
        iou=float(_iou(drawn >= threshold, digits >= threshold).mean()),
        ink_right=_ink_right(drawn, digits, threshold),
        correlation=_correlation(drawn.flatten(2), digits.flatten(2)),
        threshold=threshold,
        num_samples=len(drawn),
    )


def _iou(first: Tensor, second: Tensor) -> Tensor:
    """`[n, k]` for masks `[n, k, ...]`."""
    both, either = (
        mask.flatten(2).sum(dim=2).double() for mask in (first & second, first | second)
    )
    return torch.where(either > 0, both / either.clamp(min=1), 1.0)


def _ink_right(drawn: Tensor, digits: Tensor, threshold: float) -> float | None:
    ink = digits * (digits >= threshold)
    alone = (ink > 0).sum(dim=1, keepdim=True) == 1
    # Equally bright drawings decide nothing.
    others = drawn.unsqueeze(1) >= drawn.unsqueeze(2)  # [n, own, other, ...]
    brightest = others.sum(dim=2) == 1
    total = float((ink * alone).sum())
    return float((ink * alone * brightest).sum()) / total if total else None


def _correlation(x: Tensor, y: Tensor) -> float | None:
    x, y = x - x.mean(dim=2, keepdim=True), y - y.mean(dim=2, keepdim=True)
    scale = (x.square().sum(dim=2) * y.square().sum(dim=2)).sqrt()
    varied = scale > 1e-12
    return float(((x * y).sum(dim=2)[varied] / scale[varied]).mean()) if varied.any() else None
