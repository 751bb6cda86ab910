"""How well masks were found: Dice, intersection over union, and boundaries, for each class."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import EvaluationResult, TextTable
from torchcaps.words import rounded

TOLERANCE = 2  # pixels


class PixelCounts(NamedTuple):
    """Numbers of pixels of each class but the background in each image, `[n, classes - 1]`."""

    both: Tensor  # in the predicted and in the true mask
    predicted: Tensor
    true: Tensor
    edge_predicted: Tensor  # on the boundary: a neighbor, diagonal ones too, is of another class
    edge_true: Tensor
    near_true: Tensor  # on the predicted boundary, near the true one
    near_predicted: Tensor  # the reverse


@dataclass(frozen=True)
class MaskFigures(EvaluationResult):
    """Figures of masks over all images together, so that large and small images count by their pixels."""

    num_samples: int  # images
    dice: float  # mean over the classes that appear, `2 |P and T| / (|P| + |T|)`, the background apart
    iou: float  # the same of `|P and T| / |P or T|`
    boundary: float  # the same of the harmonic mean of the shares of either boundary that are near the other one
    tolerance: int  # near is within a square of so many pixels to each side
    pixel_accuracy: float  # share of all pixels, background included, that have the right class
    per_class: dict[
        str, dict[str, float | None]
    ]  # the same by class; None for one that is in no mask of either kind

    @property
    def summary(self) -> str:
        """`mean Dice 0.9712 on 1,000 images`."""
        return f"mean Dice {self.dice:.4f}, mean IoU {self.iou:.4f} on {self.num_samples:,} images{self.extra_words}"

    def table(self) -> TextTable:
        """A row for each class, the mean first."""
        heads = ("class", "Dice", "IoU", f"boundary within {self.tolerance} px")
        mean = {"dice": self.dice, "iou": self.iou, "boundary": self.boundary}
        rows: dict[str, Any] = {"mean, without background": mean, **self.per_class}
        cells = [(name, *map(rounded, figures.values())) for name, figures in rows.items()]
        return TextTable(heads, cells)


def pixel_counts(
    predicted: Int64[Tensor, "n height width"],
    true: Int64[Tensor, "n height width"],
    classes: int,
    *,
    tolerance: int = TOLERANCE,
) -> PixelCounts:
    """What the figures of masks are made from. Pixels have a class from 0, the background, of so many; `tolerance` is
    that of boundaries, in pixels. Raises ValueError for shapes that do not fit, or numbers out of range."""
    axes = ("n", "height", "width")
    check_shape("true", true, axes)
    check_shape("predicted", predicted, axes, **dict(zip(axes, true.shape, strict=True)))
    check_range("classes", classes, low=2)
    check_range("tolerance", tolerance, low=0)
    numbers = torch.arange(1, classes, device=true.device).view(-1, 1, 1)
    p, t = ((mask.unsqueeze(1) == numbers).float() for mask in (predicted, true))
    edge_p, edge_t = _edge(p), _edge(t)
    maps = (
        p * t,
        p,
        t,
        edge_p,
        edge_t,
        edge_p * _spread(edge_t, tolerance),
        edge_t * _spread(edge_p, tolerance),
    )
    return PixelCounts(*(x.flatten(2).sum(dim=2) for x in maps))


def mask_figures(
    counts: PixelCounts,
    right: Float[Tensor, " n"],
    classes: tuple[str, ...],
    *,
    tolerance: int = TOLERANCE,
) -> MaskFigures:
    """Figures from the counts of all images, and the share of right pixels of each; classes include the background."""
    both, predicted, true, edge_p, edge_t, near_t, near_p = (x.double().sum(dim=0) for x in counts)
    appears = torch.maximum(predicted, true) > 0
    missing = torch.tensor(torch.nan, dtype=torch.float64)
    dice = torch.where(appears, 2 * both / (predicted + true), missing)
    iou = torch.where(appears, both / (predicted + true - both), missing)
    # Two boundaries that are both missing, as of masks that fill their images, agree.
    precision, recall = (
        (near / edge).nan_to_num(1.0) for near, edge in ((near_t, edge_p), (near_p, edge_t))
    )
    boundary = torch.where(
        appears, (2 * precision * recall / (precision + recall)).nan_to_num(0.0), missing
    )
    figures = {"dice": dice, "iou": iou, "boundary": boundary}
    mean = {name: values.nanmean().nan_to_num(0.0).item() for name, values in figures.items()}
    per_class = {
        name: {
            key: None if values[k].isnan() else values[k].item() for key, values in figures.items()
        }
        for k, name in enumerate(classes[1:])
    }
    return MaskFigures(
        len(right),
        **mean,
        tolerance=tolerance,
        pixel_accuracy=right.double().mean().item(),
        per_class=per_class,
    )


def _edge(inside: Tensor) -> Tensor:
    """1 on pixels beside one outside; what lies beyond the image is neither."""
    return inside * F.max_pool2d(1 - inside, 3, stride=1, padding=1)


def _spread(edge: Tensor, reach: int) -> Tensor:
    return F.max_pool2d(edge, 2 * reach + 1, stride=1, padding=reach)
