"""Agreement of masks: Dice, intersection over union, and boundaries, for each class."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import EvaluationResult, TextTable, check_like, widen
from torchcaps.words import rounded

TOLERANCE = 2  # pixels

PerClass = dict[str, dict[str, float | None]]


class PixelCounts(NamedTuple):
    """Numbers of pixels of each class but the background in each image, `[n, classes - 1]`."""

    intersection: Tensor  # in the predicted and in the true mask
    predicted: Tensor
    true: Tensor
    edge_predicted: Tensor  # on the boundary: a neighbor, diagonal ones too, is of another class
    edge_true: Tensor
    near_true: Tensor  # on the predicted boundary, near the true one
    near_predicted: Tensor  # the reverse


@dataclass(frozen=True)
class MaskFigures(EvaluationResult):
    """Figures of masks over all images together: large and small images count by their pixels."""

    num_samples: int  # images
    dice: float  # `2 |P and T| / (|P| + |T|)`, mean over the classes that appear, no background
    iou: float  # the same of `|P and T| / |P or T|`
    # The same of the harmonic mean of the shares of either boundary that are near the other one:
    # within a square of two pixels to each side.
    boundary: float
    pixel_accuracy: float  # share of all pixels, background included, that have the right class
    # The same by class; None for one that is in no mask of either kind.
    per_class: PerClass

    @property
    def summary(self) -> str:
        """`mean Dice 0.9712, mean IoU 0.9441 on 1,000 images`."""
        return (
            f"mean Dice {self.dice:.4f}, mean IoU {self.iou:.4f} on {self.num_samples:,} images"
            f"{self.extra_words}"
        )

    def table(self) -> TextTable:
        """A row for each class, the mean first."""
        heads = ("class", "Dice", "IoU", f"boundary within {TOLERANCE} px")
        mean = {"dice": self.dice, "iou": self.iou, "boundary": self.boundary}
        rows: dict[str, Any] = {"mean, without background": mean, **self.per_class}
        cells = [(name, *map(rounded, figures.values())) for name, figures in rows.items()]
        return TextTable(heads, cells)


def pixel_counts(
    predicted: Int64[Tensor, "n height width"],
    true: Int64[Tensor, "n height width"],
    classes: int,
) -> PixelCounts:
    """Count the pixels that the figures of masks are made from.

    Args:
        predicted: `[n, height, width]` predicted classes from 0, the background.
        true: `[n, height, width]` true classes.
        classes: number of classes, with the background, at least 2.

    Raises:
        ArgumentError: for shapes that do not fit, or numbers out of range.
    """
    axes = ("n", "height", "width")
    check_shape("true", true, axes)
    check_like("predicted", predicted, true, axes)
    check_range("classes", classes, low=2)
    foreground = torch.arange(1, classes, device=true.device).view(-1, 1, 1)
    p = (predicted.unsqueeze(1) == foreground).float()
    t = (true.unsqueeze(1) == foreground).float()
    edge_p = _edge(p)
    edge_t = _edge(t)
    maps = (p * t, p, t, edge_p, edge_t, edge_p * _dilate(edge_t), edge_t * _dilate(edge_p))
    return PixelCounts._make(x.flatten(2).sum(dim=2) for x in maps)


def mask_figures(
    counts: PixelCounts,
    right: Float[Tensor, " n"],
    classes: tuple[str, ...],
) -> MaskFigures:
    """Return the figures of all images together.

    Args:
        counts: pixels of all images, from `pixel_counts`.
        right: `[n]` share of right pixels of each image.
        classes: names of the classes, the background first.
    """
    total = PixelCounts._make(widen(count).sum(dim=0) for count in counts)
    intersection, predicted, true, *_ = total
    appears = torch.maximum(predicted, true) > 0
    # Two boundaries that are both missing, as of masks that fill their images, agree.
    precision = (total.near_true / total.edge_predicted).nan_to_num(1.0)
    recall = (total.near_predicted / total.edge_true).nan_to_num(1.0)
    by_class = {
        "dice": 2 * intersection / (predicted + true),
        "iou": intersection / (predicted + true - intersection),
        "boundary": (2 * precision * recall / (precision + recall)).nan_to_num(0.0),
    }
    means = {}
    per_class: PerClass = {name: {} for name in classes[1:]}
    for figure, numbers in by_class.items():
        means[figure] = numbers[appears].mean().nan_to_num(0.0).item()
        rows = zip(per_class.values(), numbers.tolist(), appears.tolist(), strict=True)
        for row, number, is_present in rows:
            row[figure] = number if is_present else None
    return MaskFigures(
        len(right),
        **means,
        pixel_accuracy=widen(right).mean().item(),
        per_class=per_class,
    )


def _edge(inside: Tensor) -> Tensor:
    """Return 1 on pixels beside one outside; what lies beyond the image is neither."""
    return inside * F.max_pool2d(1 - inside, 3, stride=1, padding=1)


def _dilate(edge: Tensor) -> Tensor:
    return F.max_pool2d(edge, 2 * TOLERANCE + 1, stride=1, padding=TOLERANCE)
