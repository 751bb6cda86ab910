"""The form of gray training images, and pictures brought into it: background, ink, size, place.

Ink is what stands out from the background, whichever of the two is darker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.errors import DataError

Gray = Float[np.ndarray, "height width"]
Marks = Bool[np.ndarray, "height width"]
MAX_SIDE = 256  # pixels: a larger picture is looked at in this size
EDGE = 0.3  # share of the ink's strength above which a pixel belongs to a mark
EVEN = 0.1  # deviation from a level that is still this level
FAINT = 0.08  # contrast below which nothing is drawn
SPECK = 0.03  # share of all marks below which a mark is dirt
ALIKE = 1.5  # factor between sizes that are still alike
LOOSE = 0.1  # of the side: images whose centers are further away are not centered
SIGMA = 1.4826  # of a normal distribution, by its median deviation
EMPTY = "empty"
UNEVEN = "its background is not even, as that of the training images is"


class Drawing(NamedTuple):
    """A picture in the form of the training images.

    Attributes:
        image: in [0, 1].
        changes: what was done, in words; empty for nothing.
        problem: why nothing can be said of it: "empty", or a sentence; empty for no problem.
    """

    image: Gray
    changes: str
    problem: str


@dataclass(frozen=True)
class Form:
    """What gray training images on an even background have in common; shares are of their side.

    Attributes:
        background: level of the background, in [0, 1].
        ink: level of the marks, in [0, 1]; images are light on dark where it is above `background`.
        border: largest share of the outermost pixels that are marks.
        size: usual longer side of the marks, a share.
        row: with `column` the mean center of mass, shares.
        column: see `row`.
        deviation: largest distance from it along an axis, a share; 1 where marks are anywhere.
        stroke: usual width of thin strokes, a share.
    """

    background: float
    ink: float
    border: float
    size: float
    row: float
    column: float
    deviation: float
    stroke: float

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if not isinstance(number, int | float) or not 0 <= number <= 1:
                raise DataError(f"form: {field.name}: expected a number in [0, 1], got {number!r}")

    def fits(self, image: Gray) -> bool:
        """Whether an image of the training images' size has their form already.

        Args:
            image: in [0, 1].
        """
        ink = (image - self.background) / (self.ink - self.background)
        edge = abs(ink[_ring(ink.shape)])
        is_even = np.median(edge) <= EVEN and (edge > EDGE).mean() <= self.border
        if not is_even or ink.min() < -EDGE or abs(ink.max() - 1) > EDGE:
            return False
        side = max(image.shape)
        size, center = _place(ink)
        is_near = abs(center / side - (self.row, self.column)).max() <= self.deviation + 1 / side
        return bool(is_near and 1 / ALIKE < size / side / self.size < ALIKE)

    def bring(self, image: Gray, img_size: tuple[int, int], invert: str = "auto") -> Drawing:
        """A picture in this form: its ink alone, in the size and place of the training images.

        The background may be shaded and noisy. Strokes that are thinner than usual become thicker.

        Args:
            image: in [0, 1], of any size.
            img_size: (height, width) of the outcome.
            invert: "auto" takes as ink what stands out most; "yes" and "no" take what the training
                images have as background or as ink.
        """
        from scipy import ndimage

        is_light = self.ink > self.background
        image = _resized(image, min(MAX_SIDE / max(image.shape), 1))
        difference, noise = _without_background(image)
        floor = max(4 * noise, FAINT / 2)
        if invert == "auto":
            sign = (difference * (abs(difference) > floor)).sum()
        else:
            sign = 1 if is_light == (invert == "no") else -1
        ink = (difference if sign > 0 else -difference).clip(0)
        strength = _strength(ink, floor)
        edge = max(EDGE * strength, floor)
        changes = "inverted, " if (sign > 0) != is_light else ""
        problem = ""
        if noise > EVEN or (abs(difference) > edge)[_ring(image.shape)].mean() > self.border:
            problem = UNEVEN
        if strength < max(FAINT, 5 * noise):
            problem = problem or EMPTY
        if problem:
            blank = np.full(img_size, self.background, np.float32)
            return Drawing(blank, "", problem)

        marks, _ = ndimage.label(ink > edge, np.ones((3, 3)))
        areas = np.bincount(marks[marks > 0])
        marks = (areas >= SPECK * areas.sum())[marks]
        is_near = ndimage.binary_dilation(marks, iterations=math.ceil(max(image.shape) / 60))
        ink = ((ink - 2 * noise) / (strength - 2 * noise)).clip(0, 1) * is_near
        if self.deviation < 1:
            ink = self._centered(ink, marks, img_size)
            changes += "cropped and centered"
        else:
            ink = _resized(ink, img_size)
            changes += "background made even"
        return Drawing(self.background + (self.ink - self.background) * ink, changes, "")

    def _centered(self, ink: Gray, marks: Marks, img_size: tuple[int, int]) -> Gray:
        """The ink in the size and place of the training images."""
        from scipy import ndimage

        side = max(img_size)
        rows, columns = _lines(marks)
        length = max(len(rows), len(columns))
        reach = max(self.stroke * length / self.size - _stroke_width(ink), 0) / 2
        ink = np.pad(ink, math.ceil(reach) + 1)[rows[0] :, columns[0] :]
        ink = ink[: len(rows) + 2 * math.ceil(reach) + 2, : len(columns) + 2 * math.ceil(reach) + 2]
        if reach:
            distance = ndimage.distance_transform_edt(ink <= EDGE)
            ink = np.maximum(ink, (reach + 0.5 - distance).clip(0, 1))
        ink = _resized(ink, self.size * side / (length + 2 * reach))
        ink = (ink / _strength(ink, EDGE * ink.max())).clip(0, 1)
        # The window of this size in which the ink has its place.
        place = np.multiply(side, (self.row, self.column))
        top, left = (_place(ink)[1] - place).round().astype(int) + side
        return np.pad(ink, side)[top : top + img_size[0], left : left + img_size[1]]


def measure_form(images: Float[Tensor, "n channels height width"]) -> Form | None:
    """The form that images have in common.

    Args:
        images: in [0, 1].

    Returns:
        The form; None where they are not gray, or have no even background with marks on it that are
        all lighter, or all darker.
    """
    gray = images.mean(1).cpu().numpy()
    edges = gray[:, _ring(gray.shape[1:])]
    background = float(np.median(edges))
    difference = gray - background
    light, dark = difference.clip(0).sum(), -difference.clip(max=0).sum()
    strengths = abs(difference).max((1, 2))
    ink = difference / np.copysign(np.median(strengths), light - dark)
    is_even = (abs(np.median(edges, 1) - background) <= EVEN).mean() > 1 - EVEN
    is_one_sided = min(light, dark) <= EVEN * max(light, dark)
    if (images != images[:, :1]).any() or not (is_even and is_one_sided) or strengths.max() < EDGE:
        return None
    side = max(gray.shape[1:])
    drawings = ink[ink.max((1, 2)) > EDGE]
    sizes, centers = zip(*map(_place, drawings), strict=True)
    center = np.mean(centers, 0) / side
    deviation = abs(np.divide(centers, side) - center).max()
    figures = (
        background,
        background + np.copysign(np.median(strengths), light - dark),
        np.quantile((abs(edges - background) > EDGE * np.median(strengths)).mean(1), 0.99) + EVEN,
        np.median(sizes) / side,
        *center,
        deviation if deviation < LOOSE else 1,
        np.quantile(list(map(_stroke_width, drawings)), 0.25) / side,
    )
    return Form(*(round(min(max(float(figure), 0.0), 1.0), 4) for figure in figures))


def _without_background(image: Gray) -> tuple[Gray, float]:
    """The difference from the background, a quadratic function of the position; and its noise."""
    y, x = np.meshgrid(*(np.linspace(-1, 1, side) for side in image.shape), indexing="ij")
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=2)
    is_background = _ring(image.shape)
    difference = image - np.median(image[is_background])
    for width in (EVEN, EVEN / 5, EVEN / 5, EVEN / 5):
        noise = SIGMA * float(np.median(abs(difference[is_background])))
        is_background = abs(difference) < max(width, 3 * noise)
        chosen = terms[is_background]
        weights, *_ = np.linalg.lstsq(chosen.T @ chosen, chosen.T @ image[is_background])
        difference = image - terms @ weights
    return difference, noise


def _ring(shape: tuple[int, ...]) -> Marks:
    """The outermost pixels, at least one on each side."""
    width = math.ceil(min(shape) / 28)
    is_outside = np.ones(shape, bool)
    is_outside[width:-width, width:-width] = False
    return is_outside


def _strength(ink: Gray, floor: float) -> float:
    """How far marks stand out: nearly the most."""
    return float(np.quantile(ink[ink > floor], 0.9)) if (ink > floor).any() else 0.0


def _stroke_width(ink: Gray) -> float:
    """Mean width of strokes in pixels: their area over half of their outline."""
    outline = sum(abs(np.diff(np.pad(ink, 1), axis=axis)).sum() for axis in (0, 1))
    return float(8 / math.pi * ink.sum() / outline)  # along the axes it is 4 / pi times as long


def _lines(marks: Marks) -> tuple[range, range]:
    """The rows and the columns from the first to the last one with marks."""
    rows, columns = (np.flatnonzero(marks.any(axis)) for axis in (1, 0))
    return range(rows[0], rows[-1] + 1), range(columns[0], columns[-1] + 1)


def _place(ink: Gray) -> tuple[int, Float[np.ndarray, 2]]:
    """The longer side of the marks, and (row, column) of the center of mass, in pixels."""
    positions = np.indices(ink.shape) + 0.5
    return max(map(len, _lines(ink > EDGE))), (positions * ink).sum((1, 2)) / ink.sum()


def _resized(image: Gray, size: float | tuple[int, int]) -> Gray:
    """An image at another size, or at a share of its own, by antialiased interpolation."""
    if not isinstance(size, tuple):
        height, width = (max(1, round(side * size)) for side in image.shape)
        size = (height, width)
    pixels = torch.from_numpy(np.ascontiguousarray(image, np.float32))[None, None]
    return F.interpolate(pixels, size, mode="bilinear", antialias=True)[0, 0].numpy()
